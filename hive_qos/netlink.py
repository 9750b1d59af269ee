"""Netlink (netlink(7)): framing, attributes, and a socket for one thread, which carries all messages of ours.

pyroute2 lays out what is sent seldom (`shaping.netlink.messages`), we what is sent often or by a small process. Its own
sockets do not serve (0.9.7): they wait without end, keep the acknowledgement of each question, and are of no use after
ENOBUFS.

A batch is one system call: the kernel works through its messages in order under one lock each, and answers every one.
That is as near to a transaction as traffic control offers. nftables has real ones.

An attribute is a length, a kind and a value, padded to four bytes; a value may hold attributes again. The two high bits
of a kind are flags (nested, network byte order), not part of it.
"""

from __future__ import annotations

import contextlib
import errno
import os
import socket
import struct
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TypeVar

from hive_qos.errors import KernelRejectedError, PrivilegeError

T = TypeVar("T")
Packet = TypeVar("Packet", bytes, memoryview)

# struct nlmsghdr and numbers of linux/netlink.h.
NLM_F_REQUEST, NLM_F_ACK, NLM_F_DUMP = 0x1, 0x4, 0x300
NLM_F_REPLACE, NLM_F_EXCL, NLM_F_CREATE = 0x100, 0x200, 0x400
_HEADER = struct.Struct("=IHHII")  # length, type, flags, sequence, port
NLMSG_ERROR, NLMSG_DONE = 2, 3
_NLM_F_ACK_TLVS, _NLM_F_DUMP_INTR = 0x200, 0x10
_NLMSGERR_ATTR_MSG = 1
_SOL_NETLINK, _NETLINK_CAP_ACK, _NETLINK_EXT_ACK = 270, 10, 11
_SO_SNDBUFFORCE = 32

_BATCH_MESSAGES = 64
"""Messages in one system call: 64 of at most 400 bytes stay below the default send buffer of 208 KiB, and their
acknowledgements (at most 200 bytes each) below the receive buffer."""

_RECEIVE_BYTES = 256 * 1024
"""The kernel fills dumps to at most 32 KiB a message train; eight times that is never truncated."""

_DISCARDED_MAX = 1000
"""A receive buffer of 208 KiB holds some 280 small events; a microsecond each."""

_ANSWER_S = 5.0
"""The kernel answers while we send. Longer means that it never will; rather an error than a hanging broker."""

_DUMP_TRIES = 5
"""A dump that another program's change interrupted is repeated; so many in a row mean a fight over the tree."""

_ATTRIBUTE = struct.Struct("=HH")  # length, kind


@dataclass(frozen=True)
class Request:
    """One message without its header: what kind, which flags beyond REQUEST and ACK, and the bytes."""

    message_type: int
    flags: int
    body: bytes


class NetlinkSocket:
    """An AF_NETLINK socket in the network namespace of the thread that makes it; of rtnetlink, if nothing else is said.

    Args:
        groups: multicast groups whose events `receive` gives.
        timeout_s: how long an answer is waited for; 0 does not wait.

    Raises:
        KernelRejectedError: the kernel has no such netlink family.
    """

    def __init__(self, family: int = socket.NETLINK_ROUTE, *, groups: int = 0, timeout_s: float = _ANSWER_S) -> None:
        try:
            self._socket = socket.socket(socket.AF_NETLINK, socket.SOCK_RAW | socket.SOCK_CLOEXEC, family)
        except OSError as error:
            raise lost("open one", error) from error
        self._socket.bind((0, groups))
        self._socket.settimeout(timeout_s)
        self._socket.setsockopt(_SOL_NETLINK, _NETLINK_CAP_ACK, 1)
        self._socket.setsockopt(_SOL_NETLINK, _NETLINK_EXT_ACK, 1)
        self._sequence = 0

    def execute(self, requests: Sequence[tuple[str, Request]]) -> None:
        """Send requests in order and wait for all their acknowledgements.

        Args:
            requests: each with a readable description for the error.

        Raises:
            PrivilegeError: EPERM.
            KernelRejectedError: the first one that was refused, with the kernel's words. Those after it were tried.
        """
        first_error: KernelRejectedError | PrivilegeError | None = None
        for start in range(0, len(requests), _BATCH_MESSAGES):
            for error in self._execute_batch(requests[start : start + _BATCH_MESSAGES]):
                first_error = first_error or error
        if first_error is not None:
            raise first_error

    def transact(self, what: str, requests: Sequence[Request], *, begin: Request, end: Request) -> None:
        """Have all requests done or, where one of them is refused, none (nfnetlink's batches).

        Only the last is acknowledged: every answer takes a kilobyte of the receive buffer, and errors come unasked.

        Raises:
            PrivilegeError: EPERM.
            KernelRejectedError: the first error, with the kernel's words.
        """
        sent: list[int] = []
        data = bytearray()
        for number, request in enumerate((begin, *requests, end)):
            sent.append(self._next())
            flags = NLM_F_ACK if number == len(requests) else 0
            data += frame(request, NLM_F_REQUEST | flags, sent[-1])
        with contextlib.suppress(PermissionError):  # then the kernel refuses what is sent, too, and says why
            self._socket.setsockopt(socket.SOL_SOCKET, _SO_SNDBUFFORCE, len(data))  # it goes in one piece
        self._put(bytes(data))
        while True:
            for message_type, reported, sequence, body in self.receive():
                if message_type != NLMSG_ERROR or sequence not in sent:
                    continue
                error = _error_of(what, reported, body)
                if error is not None:
                    raise error
                if sequence == sent[-2]:
                    return

    def read(self, what: str, request: Request, decode: Callable[[int, bytes], T]) -> list[T]:
        """Ask for a list; asks again when it changed while it was read. `decode` takes a message's type and body.

        Raises:
            KernelRejectedError: the kernel refused, or the list never held still.
        """
        for _ in range(_DUMP_TRIES):
            objects, interrupted = self._read_once(what, request, decode, NLM_F_DUMP)
            if not interrupted:
                return objects
        raise KernelRejectedError(what, errno_value=errno.EAGAIN, detail="the list changed each time while it was read")

    def ask(self, what: str, request: Request, decode: Callable[[int, bytes], T]) -> T:
        """Ask for one object.

        Raises:
            KernelRejectedError: the kernel refused, or there is none.
        """
        objects, _ = self._read_once(what, request, decode, NLM_F_ACK)
        if not objects:
            raise KernelRejectedError(what, errno_value=errno.ENOENT, detail="the kernel has no answer")
        return objects[0]

    def discard(self) -> bool:
        """Drop what has come, at most `_DISCARDED_MAX` packets, and tell whether anything had, or was lost.

        Raises:
            KernelRejectedError: the socket failed.
        """
        for number in range(_DISCARDED_MAX):
            try:
                self._socket.recv(1, socket.MSG_DONTWAIT)
            except BlockingIOError:
                return number > 0
            except OSError as error:
                if error.errno != errno.ENOBUFS:
                    raise lost("discard events", error) from error
        return True

    def fileno(self) -> int:
        """For a selector."""
        return self._socket.fileno()

    def close(self) -> None:
        self._socket.close()

    def _execute_batch(self, requests: Sequence[tuple[str, Request]]) -> list[KernelRejectedError | PrivilegeError]:
        waiting: dict[int, str] = {}
        data = bytearray()
        for what, request in requests:
            sequence = self._next()
            waiting[sequence] = what
            data += frame(request, NLM_F_REQUEST | NLM_F_ACK, sequence)
        self._put(bytes(data))
        errors = []
        while waiting:
            for message_type, flags, sequence, body in self.receive():
                if message_type != NLMSG_ERROR or sequence not in waiting:
                    continue
                error = _error_of(waiting.pop(sequence), flags, body)
                if error is not None:
                    errors.append(error)
        return errors

    def _read_once(
        self, what: str, request: Request, decode: Callable[[int, bytes], T], flags: int
    ) -> tuple[list[T], bool]:
        """What comes until the list ends (NLM_F_DUMP) or the question is acknowledged (NLM_F_ACK); and whether a list
        changed meanwhile."""
        sequence = self._send(request, NLM_F_REQUEST | flags)
        objects: list[T] = []
        interrupted = False
        while True:
            for message_type, reported, found, body in self.receive():
                if found != sequence:
                    continue
                interrupted = interrupted or bool(reported & _NLM_F_DUMP_INTR)
                if message_type == NLMSG_DONE:
                    if len(body) >= 4 and (error := _error_of(what, 0, body)) is not None:
                        raise error
                    return objects, interrupted
                if message_type == NLMSG_ERROR:
                    error = _error_of(what, reported, body)
                    if error is not None:
                        raise error
                    return objects, interrupted
                objects.append(decode(message_type, body))

    def _send(self, request: Request, flags: int) -> int:
        sequence = self._next()
        self._put(frame(request, flags, sequence))
        return sequence

    def _next(self) -> int:
        """A request's number: 32 bits in the header, and 0 is the kernel's own."""
        self._sequence = self._sequence % 0xFFFF_FFFF + 1
        return self._sequence

    def _put(self, data: bytes) -> None:
        try:
            self._socket.send(data)
        except OSError as error:
            raise lost("send to the kernel", error) from error

    def receive(self) -> list[tuple[int, int, int, bytes]]:
        """One datagram as messages: type, flags, sequence, body. A late answer to an earlier request is told by its
        sequence and dropped by the caller."""
        try:
            return split(self._socket.recv(_RECEIVE_BYTES))
        except OSError as error:
            raise lost("wait for the kernel's answer", error) from error


def frame(request: Request, flags: int, sequence: int) -> bytes:
    """One message with its header, padded."""
    length = _HEADER.size + len(request.body)
    header = _HEADER.pack(length, request.message_type, flags | request.flags, sequence, 0)
    return header + request.body + b"\0" * (-length % 4)


def split(packet: Packet) -> list[tuple[int, int, int, Packet]]:
    """The messages of one packet: type, flags, sequence, body. Stops at one that does not fit."""
    messages, offset = [], 0
    while offset + _HEADER.size <= len(packet):
        length, message_type, flags, sequence, _ = _HEADER.unpack_from(packet, offset)
        if length < _HEADER.size or offset + length > len(packet):
            break
        messages.append((message_type, flags, sequence, packet[offset + _HEADER.size : offset + length]))
        offset += (length + 3) & ~3
    return messages


def lost(what: str, error: OSError) -> KernelRejectedError:
    """The socket itself failed: a timeout (ETIMEDOUT), no memory for the answer (ENOBUFS)."""
    code = errno.ETIMEDOUT if isinstance(error, TimeoutError) else error.errno or errno.EIO
    return KernelRejectedError(f"{what} on a netlink socket", errno_value=code, detail=os.strerror(code))


def _error_of(what: str, flags: int, body: bytes) -> KernelRejectedError | PrivilegeError | None:
    """Read struct nlmsgerr: a negative errno, the request's header, then the kernel's words where it has some."""
    (code,) = struct.unpack_from("=i", body)
    if code == 0:
        return None
    words = os.strerror(-code)
    if flags & _NLM_F_ACK_TLVS:
        texts = attribute_map(body, 4 + _HEADER.size)
        words = texts.get(_NLMSGERR_ATTR_MSG, words.encode()).rstrip(b"\0").decode("utf-8", "replace")
    return refusal(what, -code, words)


def refusal(what: str, code: int, words: str) -> KernelRejectedError | PrivilegeError:
    """What the kernel refused, as an error: what was asked for, the errno, and the kernel's words."""
    if code in (errno.EPERM, errno.EACCES):
        return PrivilegeError(f"{what}: {words}; it needs CAP_NET_ADMIN in this network namespace")
    return KernelRejectedError(what, errno_value=code, detail=words)


def attribute_map(data: bytes, offset: int = 0) -> dict[int, bytes]:
    """The values from `offset` on by kind, in their order; of a kind that comes twice the second.

    Stops at one that does not fit, as the kernel's own macros do.
    """
    found = {}
    end = len(data) - _ATTRIBUTE.size
    while offset <= end:
        length, kind = _ATTRIBUTE.unpack_from(data, offset)
        if length < _ATTRIBUTE.size or offset + length > len(data):
            break
        found[kind & 0x3FFF] = data[offset + _ATTRIBUTE.size : offset + length]  # without the flags
        offset += (length + 3) & ~3
    return found


def pack_attribute(kind: int, payload: bytes) -> bytes:
    """One attribute, padded."""
    length = _ATTRIBUTE.size + len(payload)
    return _ATTRIBUTE.pack(length, kind) + payload + b"\0" * (-length % 4)


def pack_text(kind: int, text: str) -> bytes:
    """A text of ASCII as one, with its terminating zero."""
    return pack_attribute(kind, text.encode("ascii") + b"\0")
