"""Query the kernel for sockets, their owners, and the state of TCP connections: sock_diag(7).

Read-only, unprivileged. Every field is one that kernels since 4.18 give, but for the cgroup
(5.8), which is then 0. The class of a socket is told by INET_DIAG_CLASS_ID, in which the kernel gives the socket's
priority (net/ipv4/inet_diag.c): the very number that HTB takes.

On one core of the test machine a connection in a list costs 5 µs, with its TCP_INFO or without, and 10 where it is
asked for by itself. So there are two ways to look at many: list them all now and then, and ask for those that matter in
between. Filters that run in the kernel keep out connections over loopback, and all but some cgroups' sockets.
pyroute2 0.9.7 takes 73 µs to decode one where this takes 3: a thousand in a second would be 7 % of a core.
"""

from __future__ import annotations

import errno
import os
import socket
import struct
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import lru_cache
from typing import Literal, NamedTuple

from msgspec import Struct

from hive_qos.netlink import (
    NLM_F_DUMP,
    NLM_F_REQUEST,
    NLMSG_DONE,
    NLMSG_ERROR,
    Request,
    frame,
    pack_attribute,
    split,
)

_NETLINK_SOCK_DIAG, _TCPDIAG_GETSOCK, _SOCK_DIAG_BY_FAMILY = 4, 18, 20
_ESTABLISHED, _CLOSE, _LISTEN = 1, 7, 10
_STATES_CONNECTED = 1 << _ESTABLISHED
_STATES_WITH_OWNER = {
    # Of TCP all that a program may still hold and send by: not closed, nor waiting for the network alone (6, 12).
    socket.IPPROTO_TCP: 0xFFF & ~(1 << 6 | 1 << _CLOSE) | 1 << 1,
    socket.IPPROTO_UDP: 1 << _ESTABLISHED | 1 << _CLOSE,  # connected or not
}
_INFO, _TOS, _TCLASS, _V6ONLY, _CLASS_ID, _CGROUP_ID = 2, 5, 6, 11, 17, 21
_SHORT = 1 << (_TOS - 1) | 1 << (_TCLASS - 1)  # the second brings the class id, too
_WHOLE = _SHORT | 1 << (_INFO - 1)
_ATTRIBUTE_BYTECODE = 1
_BASE = struct.Struct("=BB2x4x16s16sIQ4xIIII")  # struct inet_diag_msg, without its ports
_PORTS = struct.Struct("!HH")
_BASE_BYTES, _INODE_AT = 72, 68
_TCP_INFO = struct.Struct("=7xB12xI44xI20xI4xI16xQQ12xIIIQ")  # struct tcp_info of linux/tcp.h, up to tcpi_delivery_rate
_U16, _U32, _U64 = struct.Struct("=H"), struct.Struct("=I"), struct.Struct("=Q")
_RECEIVE_BYTES = 1 << 17
_TIMEOUT_S = 1.0
ASKED_AT_ONCE = 64
"""Connections of one question: 64 answers of 1.5 KiB fit the socket's default receive buffer of 208 KiB."""
CGROUPS_FILTERED_MAX = 64
"""Cgroups that one filter names: the kernel tries them one after the other for each socket."""


class TcpConnection(NamedTuple):
    """One established TCP connection of this network namespace, as its own stack sees it.

    `priority` is the socket's (0 when nobody set it), `cgroup_id` the number of the cgroup in which it was made (0
    where the kernel does not say), `waiting_bytes` what is unacknowledged or not sent yet. Times in seconds, counters
    since it was opened; `arrived_segments` counts those out of order, too, and wraps at 2**32; each has up to
    `segment_bytes`. `receive_rtt_s` is the round trip as the receiver sees it: from an answer of ours to the data that
    it let the other end send. `at_s` is when the kernel said so.

    A tuple and no dataclass, because a thousand of them are made every second.
    """

    local: tuple[str, int]
    remote: tuple[str, int]
    uid: int
    inode: int
    classid: int
    dscp: int
    rtt_s: float
    rtt_s_min: float | None
    acked_bytes: int
    received_bytes: int
    sent_segments: int
    retransmitted_segments: int
    delivery_rate_bits_per_s: int
    application_limited: bool
    waiting_bytes: int = 0
    cgroup_id: int = 0
    at_s: float = 0.0
    question: bytes = b""
    """Family and id of the socket, by which the kernel finds it again without a list."""
    arrived_segments: int = 0
    segment_bytes: int = 0
    receive_rtt_s: float | None = None


class UdpSocket(NamedTuple):
    """One UDP socket of this network namespace; `remote` has port 0 where it is not connected.

    The kernel counts no bytes of it: `waiting_bytes` is what of it is in this host's queues now, with the kernel's own
    overhead.
    """

    local: tuple[str, int]
    remote: tuple[str, int]
    uid: int
    inode: int
    classid: int
    dscp: int
    waiting_bytes: int
    cgroup_id: int = 0


class OwnedSocket(Struct, frozen=True):
    """A socket of this network namespace that some program holds. `cookie` names it for as long as the kernel runs."""

    listens: bool
    uid: int
    inode: int
    cookie: int
    priority: int
    cgroup_id: int


class BoundSocket(Struct, frozen=True):
    """Where packets arrive that one socket of this network namespace gets.

    Args:
        versions: of IP, of those that it takes at every address of the host; none where `local` names one.
        local: address and port.
        remote: from where alone they come; None from everywhere.
        device: the number of the interface by which alone they come; 0 by any.
    """

    inode: int
    uid: int
    protocol: Literal["tcp", "udp"]
    versions: tuple[int, ...]
    local: tuple[str, int]
    remote: tuple[str, int] | None
    device: int


class SockDiagError(OSError):
    """The kernel refused a request; `errno` has the cause."""


def tcp_pages(*, clock: Callable[[], float]) -> Iterator[list[TcpConnection]]:
    """Established TCP connections, IPv4 and IPv6, without those over loopback; a page at a time.

    A page is what the kernel gives at once, about 60 connections; who stops between two holds nobody up.

    Raises:
        SockDiagError: this kernel has no INET_DIAG, or refuses.
    """
    for page in _dump(_requests(socket.IPPROTO_TCP, _WHOLE, _STATES_CONNECTED, NOT_LOOPBACK)):
        now_s = clock()
        yield [found for body in page if (found := read_connection(body, now_s)) is not None]


def tcp_asked(connections: Sequence[TcpConnection], *, clock: Callable[[], float]) -> Iterator[list[TcpConnection]]:
    """Ask for single connections again; those that have ended are left out. A page at a time.

    Raises:
        SockDiagError: the kernel refuses.
    """
    with _open() as sock:
        for start in range(0, len(connections), ASKED_AT_ONCE):
            some = connections[start : start + ASKED_AT_ONCE]
            sock.send(b"".join(frame(_question(one), NLM_F_REQUEST, 0) for one in some))
            page, now_s = [], clock()
            for _ in some:
                for kind, _, _, body in _receive(sock):
                    if kind == NLMSG_ERROR and (code := _refused(body)) not in _GONE:
                        _raise_refusal(code)
                    if kind == _SOCK_DIAG_BY_FAMILY and (found := read_connection(body, now_s)) is not None:
                        page.append(found)
            yield page


def owned_sockets(protocol: int, *, cgroups: Sequence[int] | None = None) -> Iterator[list[OwnedSocket]]:
    """Sockets of one protocol that programs hold, IPv4 and IPv6, over loopback too; a page at a time.

    Args:
        protocol: IPPROTO_TCP or IPPROTO_UDP.
        cgroups: only those made in these, at most `CGROUPS_FILTERED_MAX`; None: all.

    Raises:
        SockDiagError: this kernel has no such diagnosis, or cannot filter (ENOENT, EINVAL).
    """
    code = among_cgroups(cgroups) if cgroups is not None else b""
    for page in _dump(_requests(protocol, _SHORT, _STATES_WITH_OWNER[protocol], code)):
        yield [found for body in page if (found := _read_owned(body, protocol)) is not None]


def bound_sockets(protocols: Mapping[int, str]) -> dict[int, BoundSocket]:
    """Those of these sockets that are of this network namespace, and that packets can reach, by inode.

    All of their protocol are listed: 1,000 others take about 2 ms.

    Args:
        protocols: "tcp" or "udp", by inode.

    Raises:
        SockDiagError: this kernel has no such diagnosis (ENOENT), or refuses.
    """
    found = {}
    for protocol in set(protocols.values()):
        number = socket.IPPROTO_TCP if protocol == "tcp" else socket.IPPROTO_UDP
        for page in _dump(_requests(number, _SHORT, _STATES_WITH_OWNER[number], b"")):
            for body in page:
                if len(body) >= _BASE_BYTES and _U32.unpack_from(body, _INODE_AT)[0] in protocols:
                    one = _read_bound(body, "tcp" if protocol == "tcp" else "udp")
                    found[one.inode] = one
    return found


def udp_pages() -> Iterator[list[UdpSocket]]:
    """UDP sockets that programs hold, IPv4 and IPv6, without those bound to loopback or connected over it; by pages.

    Raises:
        SockDiagError: this kernel has no such diagnosis (ENOENT), or refuses.
    """
    for page in _dump(_requests(socket.IPPROTO_UDP, _SHORT, _STATES_WITH_OWNER[socket.IPPROTO_UDP], b"")):
        yield [found for body in page if (found := _read_udp(body)) is not None]


# --- filters that run in the kernel (struct inet_diag_bc_op of linux/inet_diag.h) -------------------------------------

_JUMP, _DESTINATION, _CGROUP = 1, 8, 13  # INET_DIAG_BC_JMP, _D_COND, _CGROUP_COND


def _loopback() -> bytes:
    """Refuse 127.0.0.0/8, mapped into IPv6 too, and ::1. A filter ends at its end (taken) or 4 bytes beyond (refused).

    Each condition is followed by a jump out, which it skips where it does not hold.
    """
    code = b""
    for family, prefix, address in ((socket.AF_INET6, 128, bytes(15) + b"\x01"), (socket.AF_INET, 8, b"\x7f\0\0\0")):
        size = 12 + len(address)
        condition = struct.pack("=BBHBBxxi", _DESTINATION, size, size + 4, family, prefix, -1) + address
        code = condition + struct.pack("=BBH", _JUMP, 4, 4 + len(code) + 4) + code
    return code


NOT_LOOPBACK = _loopback()


def among_cgroups(cgroups: Sequence[int]) -> bytes:
    """The filter that takes sockets made in one of these cgroups alone."""
    size = 16  # of a condition and the jump after it
    code = struct.pack("=BBH", _JUMP, 4, 8)
    for number in cgroups[:CGROUPS_FILTERED_MAX]:
        found = struct.pack("=BBH", _JUMP, 4, 4 + len(code))  # to the very end: taken
        code = struct.pack("=BBHQ", _CGROUP, 12, size, number) + found + code
    return code


# --- the wire ---------------------------------------------------------------------------------------------------------


def _requests(protocol: int, extensions: int, states: int, code: bytes) -> tuple[bytes, ...]:
    """For IPv4 and IPv6. TCP's are asked for at once, in the older form of the question, which knows no family: each
    question takes the kernel through all of its table (0.15 ms for 2 MB, the usual size on a machine of 32 GB)."""
    if protocol == socket.IPPROTO_TCP:
        return (_request(_TCPDIAG_GETSOCK, struct.pack("=BxxB48xI4x", socket.AF_INET, extensions, states), code),)
    return tuple(
        _request(_SOCK_DIAG_BY_FAMILY, struct.pack("=BBBBI48x", family, protocol, extensions, 0, states), code)
        for family in (socket.AF_INET, socket.AF_INET6)
    )


def _question(one: TcpConnection) -> Request:
    head = struct.pack("=BBBBI", one.question[0], socket.IPPROTO_TCP, _WHOLE, 0, _STATES_CONNECTED)
    return Request(_SOCK_DIAG_BY_FAMILY, 0, head + one.question[1:])


def _request(kind: int, body: bytes, code: bytes) -> bytes:
    if code:
        body += pack_attribute(_ATTRIBUTE_BYTECODE, code)
    return frame(Request(kind, NLM_F_DUMP, body), NLM_F_REQUEST, 0)


def _open() -> socket.socket:
    sock = socket.socket(socket.AF_NETLINK, socket.SOCK_RAW | socket.SOCK_CLOEXEC, _NETLINK_SOCK_DIAG)
    sock.settimeout(_TIMEOUT_S)  # the kernel answers at once; a lost answer must not stop the daemon
    return sock


def _dump(requests: Sequence[bytes]) -> Iterator[list[memoryview]]:
    """The answers to questions, as the kernel packs them. Their socket is their own: it may be left at any page."""
    with _open() as sock:
        for request in requests:
            sock.send(request)
            ended = False
            while not ended:
                page: list[memoryview] = []
                for kind, _, _, body in _receive(sock):
                    if kind in (NLMSG_ERROR, NLMSG_DONE):  # a list that is refused ends with either
                        _raise_refusal(_refused(body))
                        ended = True
                        break
                    page.append(body)
                if page:
                    yield page


def _receive(sock: socket.socket) -> list[tuple[int, int, int, memoryview]]:
    return split(memoryview(sock.recv(_RECEIVE_BYTES)))


def _refused(body: memoryview) -> int:
    """The errno in an error, or at the end of a list; 0 for none."""
    return max(0, -struct.unpack_from("=i", body)[0]) if len(body) >= 4 else 0


def _raise_refusal(code: int) -> None:
    if code:
        raise SockDiagError(code, os.strerror(code))


_GONE = (errno.ENOENT, errno.ESTALE)  # the socket that was asked for has ended, or another has its place

_Offsets = dict[int, int]
_layouts: dict[tuple[int, int], _Offsets] = {}
_LAYOUTS_MAX = 64
"""One kernel has a handful: an attribute more or less by family and state."""


def _offsets(body: memoryview) -> _Offsets:
    """Where each attribute's value begins.

    The kernel writes them in the same order with the same sizes, so that messages of one family and length look alike:
    what was found in one is tried on the next, and only looked for where the kinds that stand there are others.
    """
    key = (body[0], len(body))
    known = _layouts.get(key)
    if known is not None:
        for kind, offset in known.items():
            if _U16.unpack_from(body, offset - 2)[0] & 0x3FFF != kind:
                break
        else:
            return known
    found: _Offsets = {}
    offset = _BASE_BYTES
    while offset + 4 <= len(body):
        length, kind = struct.unpack_from("=HH", body, offset)
        if length < 4 or offset + length > len(body):
            break
        if kind & 0x3FFF in _WANTED and length - 4 >= _WANTED[kind & 0x3FFF]:
            found[kind & 0x3FFF] = offset + 4
        offset += length + 3 & ~3
    if len(_layouts) >= _LAYOUTS_MAX:
        _layouts.clear()
    _layouts[key] = found
    return found


_WANTED = {
    _INFO: _TCP_INFO.size,
    _TOS: 1,
    _TCLASS: 1,
    _V6ONLY: 1,
    _CLASS_ID: 4,
    _CGROUP_ID: 8,
}  # with the least size of each


def read_connection(body: memoryview, at_s: float = 0.0) -> TcpConnection | None:
    """Decode one connection; None for one of the host with itself, and for what is no such message."""
    if len(body) < _BASE_BYTES:
        return None
    family, _, source, destination, _, _, _, waiting, uid, inode = _BASE.unpack_from(body)
    if source == destination or _is_loopback(family, destination):
        return None
    local_port, remote_port = _PORTS.unpack_from(body, 4)
    offsets = _offsets(body)
    tos = offsets.get(_TOS if family == socket.AF_INET else _TCLASS)
    classid, cgroup, info = offsets.get(_CLASS_ID), offsets.get(_CGROUP_ID), offsets.get(_INFO)
    known = (
        (address_text(family, source), local_port),
        (address_text(family, destination), remote_port),
        uid,
        inode,
        _U32.unpack_from(body, classid)[0] if classid is not None else 0,
        body[tos] >> 2 if tos is not None else 0,
    )
    cgroup_id = _U64.unpack_from(body, cgroup)[0] if cgroup is not None else 0
    question = bytes((family,)) + bytes(body[4:52])
    if info is None:  # it closes, and has none any more
        return None
    (
        limited, segment_bytes, rtt_us, receive_rtt_us, retransmitted, acked, received, rtt_us_min, arrived,
        sent, rate
    ) = _TCP_INFO.unpack_from(body, info)  # fmt: skip
    return TcpConnection(
        *known,
        rtt_us / 1e6,
        None if rtt_us_min in (0, 0xFFFFFFFF) else rtt_us_min / 1e6,
        acked,
        received,
        sent,
        retransmitted,
        8 * rate,
        bool(limited & 1),
        waiting,
        cgroup_id,
        at_s,
        question,
        arrived,
        segment_bytes,
        receive_rtt_us / 1e6 if receive_rtt_us else None,
    )


def _read_owned(body: memoryview, protocol: int) -> OwnedSocket | None:
    if len(body) < _BASE_BYTES:
        return None
    _, state, _, _, _, cookie, _, _, uid, inode = _BASE.unpack_from(body)
    if not inode:  # no program's: the kernel's own, or not accepted yet
        return None
    offsets = _offsets(body)
    classid, cgroup = offsets.get(_CLASS_ID), offsets.get(_CGROUP_ID)
    return OwnedSocket(
        listens=protocol == socket.IPPROTO_TCP and state == _LISTEN,
        uid=uid,
        inode=inode,
        cookie=cookie,
        priority=_U32.unpack_from(body, classid)[0] if classid is not None else 0,
        cgroup_id=_U64.unpack_from(body, cgroup)[0] if cgroup is not None else 0,
    )


def _read_bound(body: memoryview, protocol: Literal["tcp", "udp"]) -> BoundSocket:
    family, state, source, destination, device, _, _, _, uid, inode = _BASE.unpack_from(body)
    local_port, remote_port = _PORTS.unpack_from(body, 4)
    connected = state != _LISTEN if protocol == "tcp" else state == _ESTABLISHED
    versions: tuple[int, ...] = ()
    if not any(source):
        narrow = _offsets(body).get(_V6ONLY)
        versions = (4,) if family == socket.AF_INET else (6,) if narrow is not None and body[narrow] else (4, 6)
    return BoundSocket(
        inode=inode,
        uid=uid,
        protocol=protocol,
        versions=versions,
        local=(address_text(family, source), local_port),
        remote=(address_text(family, destination), remote_port) if connected else None,
        device=device,
    )


def _read_udp(body: memoryview) -> UdpSocket | None:
    if len(body) < _BASE_BYTES:
        return None
    family, _, source, destination, _, _, _, waiting, uid, inode = _BASE.unpack_from(body)
    if not inode or _is_loopback(family, source) or _is_loopback(family, destination):
        return None
    local_port, remote_port = _PORTS.unpack_from(body, 4)
    offsets = _offsets(body)
    tos = offsets.get(_TOS if family == socket.AF_INET else _TCLASS)
    classid, cgroup = offsets.get(_CLASS_ID), offsets.get(_CGROUP_ID)
    return UdpSocket(
        local=(address_text(family, source), local_port),
        remote=(address_text(family, destination), remote_port),
        uid=uid,
        inode=inode,
        classid=_U32.unpack_from(body, classid)[0] if classid is not None else 0,
        dscp=body[tos] >> 2 if tos is not None else 0,
        waiting_bytes=waiting,
        cgroup_id=_U64.unpack_from(body, cgroup)[0] if cgroup is not None else 0,
    )


def _is_loopback(family: int, address: bytes) -> bool:
    """As `NOT_LOOPBACK`, for kernels or families whose filter let one through."""
    if family == socket.AF_INET:
        return address[0] == 127
    return address == _LOOPBACK6 or (address[:12] == _MAPPED and address[12] == 127)


_LOOPBACK6, _MAPPED = bytes(15) + b"\x01", bytes(10) + b"\xff\xff"  # RFC 4291, 2.5.3 and 2.5.5.2


@lru_cache(maxsize=8192)
def address_text(family: int, address: bytes) -> str:
    """The address of a message as text, an IPv4 one that comes through an IPv6 socket as what it is."""
    if family == socket.AF_INET:
        return socket.inet_ntop(socket.AF_INET, address[:4])
    if address[:12] == _MAPPED:
        return socket.inet_ntop(socket.AF_INET, address[12:])
    return socket.inet_ntop(socket.AF_INET6, address)
