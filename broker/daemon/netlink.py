"""Asks the kernel two questions over raw netlink: which TCP connections there are and how they fare, and which way
an address is reached. Read-only, unprivileged, standard library only.

sock_diag(7), rtnetlink(7), and `struct tcp_info` of linux/tcp.h, of which only fields are read that every kernel since
4.18 has. The class of a connection is told by INET_DIAG_CLASS_ID, in which the kernel gives the socket's priority
(net/ipv4/inet_diag.c): the very number that HTB takes.
"""

from __future__ import annotations

import errno
import ipaddress
import os
import socket
import struct
from collections.abc import Iterator
from dataclasses import dataclass

_NETLINK_ROUTE, _NETLINK_SOCK_DIAG = 0, 4
_SOCK_DIAG_BY_FAMILY, _RTM_GETROUTE, _RTM_NEWROUTE = 20, 26, 24
_NLM_F_REQUEST, _NLM_F_DUMP = 0x1, 0x300
_NLMSG_ERROR, _NLMSG_DONE = 2, 3
_TCP_ESTABLISHED = 1
_ATTRIBUTE_INFO, _ATTRIBUTE_TOS, _ATTRIBUTE_TCLASS, _ATTRIBUTE_CLASS_ID = 2, 5, 6, 17
_EXTENSIONS = 1 << (_ATTRIBUTE_INFO - 1) | 1 << (_ATTRIBUTE_TOS - 1) | 1 << (_ATTRIBUTE_TCLASS - 1)
_RTA_DST, _RTA_OIF = 1, 4
_MESSAGE_BYTES = 72  # struct inet_diag_msg
_RECEIVE_BYTES = 1 << 17
_TIMEOUT_S = 1.0
_TCP_INFO_BYTES_MIN = 168  # up to and with tcpi_delivery_rate


@dataclass(frozen=True)
class TcpConnection:
    """One established TCP connection of this network namespace, as its own stack sees it.

    `classid` is the socket's priority (0 when nobody set it). Times in seconds, counters since it was opened.
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
    unacked_segments: int


class NetlinkError(OSError):
    """The kernel refused a question; `errno` says why."""


class Kernel:
    """Two netlink sockets of the network namespace in which this was made. For one thread."""

    def __init__(self) -> None:
        self._diag = _open(_NETLINK_SOCK_DIAG)
        self._route = _open(_NETLINK_ROUTE)
        self._sequence = 0

    def close(self) -> None:
        """Release the sockets."""
        self._diag.close()
        self._route.close()

    def tcp_connections(self) -> Iterator[TcpConnection]:
        """Established TCP connections, IPv4 and IPv6, without those over loopback.

        Raises:
            NetlinkError: this kernel has no INET_DIAG, or refuses.
        """
        for family in (socket.AF_INET, socket.AF_INET6):
            request = struct.pack("=BBBBI48x", family, socket.IPPROTO_TCP, _EXTENSIONS, 0, 1 << _TCP_ESTABLISHED)
            for kind, payload in self._ask(self._diag, _SOCK_DIAG_BY_FAMILY, request, dump=True):
                if kind == _SOCK_DIAG_BY_FAMILY and len(payload) >= _MESSAGE_BYTES:
                    connection = _read_connection(payload)
                    if connection is not None:
                        yield connection

    def interface_towards(self, address: str) -> str | None:
        """Name the interface that a packet to a literal address leaves by, None when there is no route."""
        parsed = ipaddress.ip_address(address)
        family = socket.AF_INET if parsed.version == 4 else socket.AF_INET6
        attribute = struct.pack("=HH", 4 + len(parsed.packed), _RTA_DST) + parsed.packed
        request = struct.pack("=BBBBBBBBI", family, 8 * len(parsed.packed), 0, 0, 0, 0, 0, 0, 0) + attribute
        try:
            for kind, payload in self._ask(self._route, _RTM_GETROUTE, request, dump=False):
                index = attributes(payload, 12).get(_RTA_OIF) if kind == _RTM_NEWROUTE else None
                if index is not None:
                    return socket.if_indextoname(struct.unpack("=I", index[:4])[0])
        except OSError as error:
            if error.errno in (errno.ENETUNREACH, errno.EHOSTUNREACH, errno.ENXIO, errno.EINVAL, errno.EACCES):
                return None
            raise
        return None

    def _ask(self, sock: socket.socket, kind: int, payload: bytes, *, dump: bool) -> Iterator[tuple[int, memoryview]]:
        self._sequence = (self._sequence + 1) & 0xFFFFFFFF
        flags = _NLM_F_REQUEST | (_NLM_F_DUMP if dump else 0)
        sock.send(struct.pack("=IHHII", 16 + len(payload), kind, flags, self._sequence, 0) + payload)
        while True:
            packet = memoryview(sock.recv(_RECEIVE_BYTES))
            offset = 0
            while offset + 16 <= len(packet):
                length, found, _, sequence, _ = struct.unpack_from("=IHHII", packet, offset)
                if length < 16 or offset + length > len(packet):
                    break
                body = packet[offset + 16 : offset + length]
                offset += length + 3 & ~3
                if sequence != self._sequence:  # the rest of an answer that nobody waited for
                    continue
                if found == _NLMSG_DONE:
                    return
                if found == _NLMSG_ERROR:
                    code = -struct.unpack_from("=i", body)[0]
                    if code:
                        raise NetlinkError(code, os.strerror(code))
                    return
                yield found, body
                if not dump:
                    return


def _open(protocol: int) -> socket.socket:
    sock = socket.socket(socket.AF_NETLINK, socket.SOCK_RAW | socket.SOCK_CLOEXEC, protocol)
    sock.settimeout(_TIMEOUT_S)  # the kernel answers at once; a lost answer must not stop the daemon
    return sock


def attributes(payload: memoryview, offset: int) -> dict[int, memoryview]:
    """The attributes of a message from `offset` on; stops at one that does not fit."""
    found: dict[int, memoryview] = {}
    while offset + 4 <= len(payload):
        length, kind = struct.unpack_from("=HH", payload, offset)
        if length < 4 or offset + length > len(payload):
            break
        found[kind] = payload[offset + 4 : offset + length]
        offset += length + 3 & ~3
    return found


def _read_connection(payload: memoryview) -> TcpConnection | None:
    family = payload[0]
    size_bytes = 4 if family == socket.AF_INET else 16
    source, destination = bytes(payload[8 : 8 + size_bytes]), bytes(payload[24 : 24 + size_bytes])
    if source == destination or _is_loopback(destination):
        return None
    source_port, destination_port = struct.unpack_from("!HH", payload, 4)
    uid, inode = struct.unpack_from("=II", payload, 64)
    found = attributes(payload, _MESSAGE_BYTES)
    info = found.get(_ATTRIBUTE_INFO)
    if info is None or len(info) < _TCP_INFO_BYTES_MIN:
        return None
    tos = found.get(_ATTRIBUTE_TOS if family == socket.AF_INET else _ATTRIBUTE_TCLASS)
    classid = found.get(_ATTRIBUTE_CLASS_ID)
    rtt_us_min = struct.unpack_from("=I", info, 148)[0]
    return TcpConnection(
        local=(_text(source), source_port),
        remote=(_text(destination), destination_port),
        uid=uid,
        inode=inode,
        classid=struct.unpack("=I", classid[:4])[0] if classid is not None else 0,
        dscp=tos[0] >> 2 if tos else 0,
        rtt_s=struct.unpack_from("=I", info, 68)[0] / 1e6,
        rtt_s_min=None if rtt_us_min in (0, 0xFFFFFFFF) else rtt_us_min / 1e6,
        acked_bytes=struct.unpack_from("=Q", info, 120)[0],
        received_bytes=struct.unpack_from("=Q", info, 128)[0],
        sent_segments=struct.unpack_from("=I", info, 156)[0],
        retransmitted_segments=struct.unpack_from("=I", info, 100)[0],
        delivery_rate_bits_per_s=8 * struct.unpack_from("=Q", info, 160)[0],
        application_limited=bool(info[7] & 1),
        unacked_segments=struct.unpack_from("=I", info, 24)[0],
    )


def _is_loopback(address: bytes) -> bool:
    if len(address) == 4:
        return address[0] == 127
    return address == b"\0" * 15 + b"\x01" or (address[:12] == b"\0" * 10 + b"\xff\xff" and address[12] == 127)


def _text(address: bytes) -> str:
    if len(address) == 16 and address[:12] == b"\0" * 10 + b"\xff\xff":  # IPv4 through an IPv6 socket
        address = address[12:]
    return socket.inet_ntop(socket.AF_INET if len(address) == 4 else socket.AF_INET6, address)
