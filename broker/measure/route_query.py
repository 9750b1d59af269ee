"""Asks the kernel which way an address is reached, and how a link fares (rtnetlink(7)). Read-only, unprivileged."""

from __future__ import annotations

import errno
import ipaddress
import os
import socket
import struct
from collections.abc import Iterator

from msgspec import Struct

from shaping.netlink.attributes import attribute_map, pack_attribute
from shaping.netlink.links import IFINFOMSG, IFLA_IFNAME, RTM_NEWLINK, pack_link

# linux/netlink.h, linux/rtnetlink.h, linux/if.h, linux/if_link.h
_NETLINK_ROUTE = 0
_RTM_GETROUTE, _RTM_NEWROUTE, _RTM_GETLINK = 26, 24, 18
_NLM_F_REQUEST = 0x1
_NLMSG_ERROR = 2
_RTA_DST, _RTA_OIF = 1, 4
_RTMSG_BYTES = 12
_IFF_LOWER_UP = 1 << 16
_IFLA_CARRIER_CHANGES = 35
_RECEIVE_BYTES = 1 << 17
_TIMEOUT_S = 1.0


class NetlinkError(OSError):
    """The kernel refused a question; `errno` says why."""


class LinkInfo(Struct, frozen=True):
    """How a link fares: the number of its interface, whether it has a carrier (never while it is set down), and how
    often that has changed since the interface was made, None where the kernel does not count it (before 3.15)."""

    number: int
    carrier: bool
    carrier_changes: int | None


class RouteSocket:
    """A netlink socket of the network namespace in which this was made. For one thread."""

    def __init__(self) -> None:
        self._route = socket.socket(socket.AF_NETLINK, socket.SOCK_RAW | socket.SOCK_CLOEXEC, _NETLINK_ROUTE)
        self._route.settimeout(_TIMEOUT_S)  # the kernel answers at once; a lost answer must not stop the daemon
        self._sequence = 0

    def close(self) -> None:
        """Release the socket."""
        self._route.close()

    def interface_towards(self, address: str) -> str | None:
        """Name the interface that a packet to a literal address leaves by, None when there is no route."""
        parsed = ipaddress.ip_address(address)
        family = socket.AF_INET if parsed.version == 4 else socket.AF_INET6
        request = struct.pack("=BBBBBBBBI", family, 8 * len(parsed.packed), 0, 0, 0, 0, 0, 0, 0)
        request += pack_attribute(_RTA_DST, parsed.packed)
        try:
            for kind, payload in self._ask(_RTM_GETROUTE, request):
                index = attribute_map(payload, _RTMSG_BYTES).get(_RTA_OIF) if kind == _RTM_NEWROUTE else None
                if index is not None:
                    return socket.if_indextoname(struct.unpack("=I", index[:4])[0])
        except OSError as error:
            if error.errno in (errno.ENETUNREACH, errno.EHOSTUNREACH, errno.ENXIO, errno.EINVAL, errno.EACCES):
                return None
            raise
        return None

    def link(self, interface: str) -> LinkInfo | None:
        """Look at one link; None where there is none of that name.

        Raises:
            OSError: no answer in time, or another refusal.
        """
        try:
            for kind, payload in self._ask(
                _RTM_GETLINK, pack_link(0) + pack_attribute(IFLA_IFNAME, os.fsencode(interface) + b"\0")
            ):
                if kind == RTM_NEWLINK:
                    _, _, number, flags, _ = IFINFOMSG.unpack_from(payload)
                    changes = attribute_map(payload, IFINFOMSG.size).get(_IFLA_CARRIER_CHANGES)
                    counted = None if changes is None else struct.unpack("=I", changes[:4])[0]
                    return LinkInfo(number, bool(flags & _IFF_LOWER_UP), counted)
        except NetlinkError as error:
            if error.errno != errno.ENODEV:
                raise
        return None

    def _ask(self, kind: int, payload: bytes) -> Iterator[tuple[int, bytes]]:
        self._sequence = (self._sequence + 1) & 0xFFFFFFFF
        self._route.send(struct.pack("=IHHII", 16 + len(payload), kind, _NLM_F_REQUEST, self._sequence, 0) + payload)
        while True:
            packet = self._route.recv(_RECEIVE_BYTES)
            offset = 0
            while offset + 16 <= len(packet):
                length, found, _, sequence, _ = struct.unpack_from("=IHHII", packet, offset)
                if length < 16 or offset + length > len(packet):
                    break
                body = packet[offset + 16 : offset + length]
                offset += length + 3 & ~3
                if sequence != self._sequence:  # an answer that nobody waited for any more
                    continue
                if found == _NLMSG_ERROR:
                    code = -struct.unpack_from("=i", body)[0]
                    if code:
                        raise NetlinkError(code, os.strerror(code))
                    return
                yield found, body
                return
