"""Receive the kernel's events when an interface comes, goes, is renamed, or changes carrier or speed. rtnetlink(7).

An event is a hint that something is different now, never the truth: whoever hears one looks. So what is lost when many
come at once costs nothing but that look.
"""

from __future__ import annotations

import errno
import os

from msgspec import Struct

from hive_qos.errors import KernelRejectedError
from hive_qos.netlink import (
    IFINFOMSG,
    IFLA_IFNAME,
    RTM_DELLINK,
    RTM_NEWLINK,
    NetlinkSocket,
    attribute_map,
)

_RTMGRP_LINK = 1
_PACKETS_MAX = 64
"""Read at a time; what is there beyond that wakes the loop again."""


class LinkChanges(Struct, frozen=True):
    """What events were about: numbers and names of interfaces. `lost`: some were not received; look at everything."""

    numbers: frozenset[int] = frozenset()
    names: frozenset[str] = frozenset()
    lost: bool = False


class LinkEvents:
    """A socket that receives the link events of the network namespace in which it was made. For one thread."""

    def __init__(self) -> None:
        self._kernel = NetlinkSocket(groups=_RTMGRP_LINK, timeout_s=0)

    def fileno(self) -> int:
        """For a selector."""
        return self._kernel.fileno()

    def changes(self) -> LinkChanges:
        """All that has come since last asked; never waits.

        Raises:
            KernelRejectedError: the socket failed.
        """
        numbers: set[int] = set()
        names: set[str] = set()
        lost = False
        for _ in range(_PACKETS_MAX):
            try:
                messages = self._kernel.receive()
            except KernelRejectedError as problem:
                if problem.errno_value == errno.EAGAIN:
                    break
                if problem.errno_value != errno.ENOBUFS:
                    raise
                lost = True
                continue
            for kind, _, _, body in messages:
                if kind in (RTM_NEWLINK, RTM_DELLINK) and len(body) >= IFINFOMSG.size:
                    numbers.add(IFINFOMSG.unpack_from(body)[2])
                    name = attribute_map(body, IFINFOMSG.size).get(IFLA_IFNAME)
                    if name is not None:
                        names.add(os.fsdecode(name.rstrip(b"\0")))
        return LinkChanges(frozenset(numbers), frozenset(names), lost)

    def close(self) -> None:
        """Release the socket."""
        self._kernel.close()
