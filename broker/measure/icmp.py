"""ICMP echo (RFC 792, RFC 4443), as much of it as probes need: one socket for each family, requests out, replies in.

A "ping socket" (icmp(7): SOCK_DGRAM, for the groups in net.ipv4.ping_group_range) needs no capability. The kernel fills
in identifier and checksum, and hands over replies with that identifier alone.
"""

from __future__ import annotations

import errno
import ipaddress
import socket
import struct
from collections.abc import Iterator

from msgspec import Struct

REQUEST, REPLY = {4: 8, 6: 128}, {4: 0, 6: 129}
HEADER = struct.Struct("!BBHHH")
PAYLOAD_BYTES = 32
"""A token of the sender's. With the headers of ICMP and IPv6, a request is 80 bytes on the wire before Ethernet."""
READS_MAX = 64
"""Packets taken at once: a tick must not wait for whoever floods us with what looks like replies."""
_TIMESTAMP = getattr(socket, "SO_TIMESTAMPNS", 35)  # asm-generic/socket.h, where Python does not name it
_TIMESPEC = struct.Struct("@ll")


class EchoReply(Struct, frozen=True):
    """An echo's reply. `arrived_wall_s` is when the kernel took it in, by the wall clock; None where it did not say."""

    address: str
    sequence: int
    payload: bytes
    arrived_wall_s: float | None


class EchoSocket:
    """Requests and replies of one address family (4 or 6). Never blocks.

    Raises:
        OSError: the kernel does not allow it (EACCES), or not the family.
    """

    def __init__(self, version: int) -> None:
        self._version = version
        family = socket.AF_INET if version == 4 else socket.AF_INET6
        protocol = socket.IPPROTO_ICMP if version == 4 else socket.IPPROTO_ICMPV6
        self.socket = socket.socket(family, socket.SOCK_DGRAM | socket.SOCK_CLOEXEC, protocol)
        self.socket.setblocking(False)
        self.socket.setsockopt(socket.SOL_SOCKET, _TIMESTAMP, 1)

    def send(self, address: str, *, sequence: int, payload: bytes) -> bool:
        """Send one request; False when it could not leave now (no route, or a full queue), which is no error."""
        packet = HEADER.pack(REQUEST[self._version], 0, 0, 0, sequence) + payload
        try:
            self.socket.sendto(packet, (address, 0))
        except OSError:
            return False
        return True

    def replies(self) -> Iterator[EchoReply]:
        """What has come since, `READS_MAX` at most; anything that is no reply is passed over."""
        for _ in range(READS_MAX):
            try:
                data, ancillary, _, source = self.socket.recvmsg(512, 64)
            except BlockingIOError:
                return
            except OSError as problem:  # an ICMP error about an earlier request is handed over this way
                if problem.errno in (errno.EBADF, errno.ENOTSOCK):
                    raise
                continue
            if len(data) < HEADER.size:
                continue
            kind, _, _, _, sequence = HEADER.unpack_from(data)
            if kind == REPLY[self._version]:
                yield EchoReply(_plain(source[0]), sequence, data[HEADER.size :], _arrival(ancillary))

    def close(self) -> None:
        """Close the socket."""
        self.socket.close()


def _plain(address: str) -> str:
    """Without a link-local address' interface."""
    return str(ipaddress.ip_address(address.partition("%")[0]))


def _arrival(ancillary: list[tuple[int, int, bytes]]) -> float | None:
    for level, kind, data in ancillary:
        if level == socket.SOL_SOCKET and kind == _TIMESTAMP and len(data) >= _TIMESPEC.size:
            seconds, nanoseconds = _TIMESPEC.unpack_from(data)
            return float(seconds + nanoseconds / 1e9)
    return None
