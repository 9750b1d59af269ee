"""Hears from the kernel when an interface comes, goes, is renamed, or its carrier or speed changes. rtnetlink(7).

An event is a hint that something is different now, never the truth: whoever hears one looks. So what is lost when many
come at once costs nothing but that look.
"""

from __future__ import annotations

import contextlib
import errno
import os
import socket
import struct

from msgspec import Struct

from shaping.netlink.attributes import attribute_map
from shaping.netlink.links import IFINFOMSG, IFLA_IFNAME, RTM_DELLINK, RTM_NEWLINK

_RTMGRP_LINK = 1
_HEADER = struct.Struct("=IHHII")
_RECEIVE_BYTES = 1 << 16
_PACKETS_MAX = 64
"""Read at a time; what is there beyond that wakes the loop again."""


class LinkChanges(Struct, frozen=True):
    """What events were about: numbers and names of interfaces. `lost`: some were not heard; look at everything."""

    numbers: frozenset[int] = frozenset()
    names: frozenset[str] = frozenset()
    lost: bool = False


class LinkEvents:
    """A socket that hears of the links of the network namespace in which it was made. For one thread."""

    def __init__(self) -> None:
        self._sock = socket.socket(
            socket.AF_NETLINK, socket.SOCK_RAW | socket.SOCK_CLOEXEC | socket.SOCK_NONBLOCK, socket.NETLINK_ROUTE
        )
        self._sock.bind((0, _RTMGRP_LINK))

    def fileno(self) -> int:
        """For a selector."""
        return self._sock.fileno()

    def heard(self) -> LinkChanges:
        """All that has come since last asked; never waits."""
        numbers: set[int] = set()
        names: set[str] = set()
        lost = False
        with contextlib.suppress(BlockingIOError):
            for _ in range(_PACKETS_MAX):
                try:
                    _read(self._sock.recv(_RECEIVE_BYTES), numbers, names)
                except OSError as problem:
                    if problem.errno != errno.ENOBUFS:
                        raise
                    lost = True
        return LinkChanges(frozenset(numbers), frozenset(names), lost)

    def close(self) -> None:
        """Release the socket."""
        self._sock.close()


def _read(packet: bytes, numbers: set[int], names: set[str]) -> None:
    offset = 0
    while offset + _HEADER.size <= len(packet):
        length, kind, _, _, _ = _HEADER.unpack_from(packet, offset)
        if length < _HEADER.size or offset + length > len(packet):
            return
        body = packet[offset + _HEADER.size : offset + length]
        offset += length + 3 & ~3
        if kind in (RTM_NEWLINK, RTM_DELLINK) and len(body) >= IFINFOMSG.size:
            numbers.add(IFINFOMSG.unpack_from(body)[2])
            name = attribute_map(body, IFINFOMSG.size).get(IFLA_IFNAME)
            if name is not None:
                names.add(os.fsdecode(name.rstrip(b"\0")))
