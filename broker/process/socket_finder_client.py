"""The daemon's side of the socket finder: asks who holds a socket, and for duplicates of other processes' sockets.

CAP_SYS_PTRACE lets its owner read and write the memory of every process (/proc/PID/mem). The daemon reads what other
hosts and all its users send, so it must not have that. The finder (`broker.process.socket_finder`) has it instead, and
the daemon gives it up before it listens to anybody. A daemon that is taken over then gets lists of descriptors and
duplicates of IPv4 and IPv6 sockets, no more. Where the daemon is started without the capability, none are found.

A question waits at most `ANSWER_S` for its answer. A later answer is dropped by its number.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import socket
import struct
import time
from array import array
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from broker.events.log import Log
from broker.process.side_process import READY_S_MAX, SideProcess, python
from broker.process.socket_finder import ANSWER, BYTES_MAX, DENIED, GIVEN, MORE, REFUSED
from hive_qos.errors import KernelRejectedError, PrivilegeError

MODULE = "broker.process.socket_finder"
ANSWER_S = 0.1
"""The loop waits meanwhile, in ticks that nobody else waits for: less than a beat of the watchdog's."""
_Answer = tuple[int, "array[int]", socket.socket | None]
"""Kind, values, and the socket that came with it, which is whose question it was."""
SYS_PTRACE = 19  # linux/capability.h
_CAPABILITY_HEADER = struct.pack("=Ii", 0x20080522, 0)  # _LINUX_CAPABILITY_VERSION_3, this thread
_CAPABILITY_SETS = struct.Struct("=6I")  # effective, permitted, inheritable of the first 32, and of the next
_libc = ctypes.CDLL(None, use_errno=True)


class SocketFinder:
    """The daemon's side. For the loop's thread.

    Args:
        command: what is run, before the descriptor.
    """

    def __init__(self, *, log: Log, command: tuple[str, ...] = python(MODULE)) -> None:
        self._log, self._process = log, SideProcess(command)
        self._sock: socket.socket | None = None
        self._number = 0
        self._early: dict[int, deque[_Answer]] = {}
        self._waited_s = 0.0
        self._close: Callable[[int], None] = os.close

    def start(self) -> None:
        """Start the process, and give the capability up, for this thread and those that it starts from now on."""
        try:
            self._sock = self._process.start_connected(now_s=time.monotonic())
        except OSError as problem:
            self._log.warning("finder-start-failed", error=str(problem))
        drop_capability(SYS_PTRACE)
        if self._sock is not None:
            with contextlib.suppress(PermissionError):  # the log says so, or it comes yet
                self._answer(self._sock, within_s=READY_S_MAX)

    def close(self) -> None:
        """End the process."""
        if self._sock is not None:
            self._sock.close()
            self._sock = None
        self._process.end()

    def cpu_s(self) -> float:
        """The processor time of this thread, waiting for the finder counted as such: for `CpuBudget`."""
        return time.thread_time() + self._waited_s

    def sockets_of(self, pid: int) -> Iterator[tuple[int, int]]:
        """As `proc_fds.sockets_of`."""
        for kind, values, _ in self._ask(b"s", pid):
            if kind == DENIED:
                raise PermissionError(f"process {pid} may not be looked into")
            yield from zip(values[::2], values[1::2], strict=True)

    @contextmanager
    def duplicate(
        self, pid: int, descriptor: int, *, cookie: int, close: Callable[[int], None]
    ) -> Iterator[socket.socket | None]:
        """As `pidfd_getfd.duplicate`; of IPv4 and IPv6 sockets."""
        self._close = close  # of one that comes too late, too
        *_, (kind, values, sock) = self._ask(b"t", pid, descriptor, cookie)
        if kind == DENIED:
            raise PrivilegeError("a socket of another process can be had with CAP_SYS_PTRACE alone")
        if kind == REFUSED:
            raise KernelRejectedError("take a socket from its process", errno_value=values[0])
        try:
            yield sock
        finally:
            if sock is not None:
                close(sock.detach())

    def _ask(self, word: bytes, *numbers: int) -> Iterator[_Answer]:
        """The answers to one question. Others may be asked before all have been read.

        Raises:
            PermissionError: no answer in time, or nobody to ask.
        """
        if self._sock is None:
            raise PermissionError("the finder has ended; restart the broker")
        self._number += 1
        asked = self._number
        self._send(word, asked, *numbers)
        early = self._early[asked] = deque()
        kind, until_s = MORE, time.monotonic() + ANSWER_S
        try:
            while kind == MORE:
                if not early:
                    self._receive(within_s=until_s - time.monotonic())
                else:
                    kind, values, sock = early.popleft()
                    yield kind, values, sock
                    until_s = time.monotonic() + ANSWER_S
        finally:
            del self._early[asked]
            if kind == MORE:
                self._send(b"e", asked)

    def _send(self, word: bytes, *numbers: int) -> None:
        with contextlib.suppress(OSError):  # it does not read, or has ended: the answer says which
            if self._sock is not None:
                self._sock.send(b"%b %b" % (word, b" ".join(b"%d" % number for number in numbers)), socket.MSG_DONTWAIT)

    def _receive(self, *, within_s: float) -> None:
        """Take the next answer, whichever question it is to; one that nobody waits for any more is dropped."""
        if self._sock is None:
            raise PermissionError("the finder has ended; restart the broker")
        number, kind, values, sock = self._answer(self._sock, within_s=within_s)
        if number in self._early:
            self._early[number].append((kind, values, sock))
        elif sock is not None:
            self._close(sock.detach())

    def _answer(self, finder: socket.socket, *, within_s: float) -> tuple[int, int, array[int], socket.socket | None]:
        began_s = time.monotonic()
        finder.settimeout(max(within_s, 0.001))
        try:
            packet, descriptors, _, _ = socket.recv_fds(finder, BYTES_MAX, 1, socket.MSG_CMSG_CLOEXEC)
        except TimeoutError as problem:
            raise PermissionError("the finder does not answer in time") from problem
        except ConnectionError:
            packet = b""
        finally:
            self._waited_s += time.monotonic() - began_s
        if not packet:
            self._log.error("finder-lost")
            self.close()
            raise PermissionError("the finder has ended; restart the broker")
        number, kind = ANSWER.unpack_from(packet)
        sock = socket.socket(fileno=descriptors[0]) if kind == GIVEN else None
        return number, kind, array("Q", packet[ANSWER.size :]), sock


def drop_capability(number: int) -> None:
    """Give a capability up, for this thread and those that it starts from now on (capabilities(7)).

    Raises:
        OSError: the kernel refuses.
    """
    sets = ctypes.create_string_buffer(_CAPABILITY_SETS.size)
    _capability_call("capget", sets)
    kept = list(_CAPABILITY_SETS.unpack(sets.raw))
    for index in range(3 * (number // 32), 3 * (number // 32) + 3):
        kept[index] &= ~(1 << number % 32)
    _capability_call("capset", ctypes.create_string_buffer(_CAPABILITY_SETS.pack(*kept), _CAPABILITY_SETS.size))


def _capability_call(name: str, sets: ctypes.Array[ctypes.c_char]) -> None:
    header = ctypes.create_string_buffer(_CAPABILITY_HEADER, len(_CAPABILITY_HEADER))
    if getattr(_libc, name)(header, sets) != 0:
        raise OSError(ctypes.get_errno(), f"{name}: {os.strerror(ctypes.get_errno())}")
