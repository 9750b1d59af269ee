"""Finds who holds a socket, and duplicates sockets of other processes, without the right to look into processes.

CAP_SYS_PTRACE would let whoever takes the daemon over read and write the memory of every process (/proc/PID/mem), and
the daemon reads what other hosts and all its users send. So a small process beside it (`finding.py`) has the capability
and the daemon gives it up before it listens to anybody. What it can still get is lists of descriptors and duplicates of
IPv4 and IPv6 sockets. Who starts the daemon without the capability has a finder that finds nothing.

A question waits for its answer at most `ANSWER_S`; one that comes later is dropped by its number.
"""

from __future__ import annotations

import contextlib
import os
import socket
import subprocess
import sys
import time
from array import array
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from broker.process import capabilities, rt_priority
from broker.process.log import Log
from broker.process.socket_finder import ANSWER, BYTES_MAX, DENIED, GIVEN, MORE, REFUSED
from hive_qos.errors import KernelRejectedError, PrivilegeError

MODULE = "broker.process.socket_finder"
ANSWER_S = 0.1
"""The loop waits meanwhile, in ticks that nobody else waits for: less than a beat of the watchdog's."""
READY_S_MAX = 15.0
"""A Python process starts in 0.2 s; on a machine that stands still now and then, in a few."""
END_S_MAX = 2.0
"""The finder ends within milliseconds after the daemon closed its end, unless a disk makes it wait."""


class SocketFinder:
    """The daemon's side. For the loop's thread.

    Args:
        command: what is run, before the descriptor.
    """

    def __init__(self, *, log: Log, command: tuple[str, ...] = (sys.executable, "-P", "-m", MODULE)) -> None:
        self._log, self._command = log, command
        self._process: subprocess.Popen[bytes] | None = None
        self._sock: socket.socket | None = None
        self._number = 0
        self._waited_s = 0.0
        self._close: Callable[[int], None] = os.close

    def start(self) -> None:
        """Start the process, and give the capability up, for this thread and those that it starts from now on."""
        ours, its = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        environment = {name: value for name, value in os.environ.items() if name != "NOTIFY_SOCKET"}
        try:
            with rt_priority.suspended():
                self._process = subprocess.Popen(
                    [*self._command, str(its.fileno())],
                    stdin=subprocess.DEVNULL,
                    stdout=subprocess.DEVNULL,
                    cwd="/",
                    env=environment,
                    pass_fds=(its.fileno(),),
                    start_new_session=True,
                )
        except OSError as problem:
            ours.close()
            self._log.warning("finder-start-failed", error=str(problem))
        else:
            self._sock = ours
        finally:
            its.close()
        capabilities.drop(capabilities.SYS_PTRACE)
        if self._sock is not None:
            with contextlib.suppress(PermissionError):  # the log says so, or it comes yet
                self._answer(self._sock, within_s=READY_S_MAX)

    def close(self) -> None:
        """End the process."""
        if self._sock is not None:
            self._sock.close()
            self._sock = None
        if self._process is not None:
            with contextlib.suppress(subprocess.TimeoutExpired):  # it waits for a disk, and ends when that answers
                self._process.wait(END_S_MAX)
            self._process = None

    def cpu_s(self) -> float:
        """The processor time of this thread, waiting for the finder counted as such: for `Sliced`."""
        return time.thread_time() + self._waited_s

    def sockets_of(self, pid: int) -> Iterator[tuple[int, int]]:
        """As `descriptors.sockets_of`."""
        for kind, values, _ in self._ask(b"s", pid):
            if kind == DENIED:
                raise PermissionError(f"process {pid} may not be looked into")
            yield from zip(values[::2], values[1::2], strict=True)

    @contextmanager
    def duplicate(
        self, pid: int, descriptor: int, *, cookie: int, close: Callable[[int], None]
    ) -> Iterator[socket.socket | None]:
        """As `duplicates.duplicate`; of IPv4 and IPv6 sockets."""
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

    def _ask(self, word: bytes, *numbers: int) -> Iterator[tuple[int, array[int], socket.socket | None]]:
        """The answers to one question: kind, values, and the socket that came with it, which is the caller's.

        Raises:
            PermissionError: no answer in time, or nobody to ask.
        """
        if self._sock is None:
            raise PermissionError("the finder has ended; restart the broker")
        self._number += 1
        asked = self._number
        question = b"%b %d %b" % (word, asked, b" ".join(b"%d" % number for number in numbers))
        with contextlib.suppress(OSError):  # it does not read, or has ended: the answer says which
            self._sock.send(question, socket.MSG_DONTWAIT)
        kind, until_s = MORE, time.monotonic() + ANSWER_S
        while kind == MORE:
            number, kind, values, sock = self._answer(self._sock, within_s=until_s - time.monotonic())
            if number == asked:
                yield kind, values, sock
                until_s = time.monotonic() + ANSWER_S
            else:  # of a question before, whose pages may be many
                kind = MORE
                if sock is not None:
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
