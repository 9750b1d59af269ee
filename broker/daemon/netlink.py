"""Asks the kernel which way an address is reached (rtnetlink(7)). Read-only, unprivileged."""

from __future__ import annotations

import errno
import ipaddress
import os
import socket
import struct
from collections.abc import Iterator

from shaping.attributes import attribute_map, pack_attribute

# linux/netlink.h, linux/rtnetlink.h
_NETLINK_ROUTE = 0
_RTM_GETROUTE, _RTM_NEWROUTE = 26, 24
_NLM_F_REQUEST = 0x1
_NLMSG_ERROR = 2
_RTA_DST, _RTA_OIF = 1, 4
_RTMSG_BYTES = 12
_RECEIVE_BYTES = 1 << 17
_TIMEOUT_S = 1.0


class NetlinkError(OSError):
    """The kernel refused a question; `errno` says why."""


class Kernel:
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
