"""Receive the kernel's events when an interface comes, goes, is renamed, or changes carrier or speed. rtnetlink(7).

An event is a hint that something is different now, never the truth: whoever hears one looks. So what is lost when many
come at once costs nothing but that look.
"""

from __future__ import annotations

import errno
import os
from dataclasses import dataclass

from pyroute2.netlink.rtnl.ifinfmsg import ifinfmsg

from hive_qos.errors import KernelRejectedError
from hive_qos.netlink import NetlinkSocket
from shaping.netlink import messages

_RTMGRP_LINK = 1
_RTM_NEWLINK, _RTM_DELLINK = 16, 17  # linux/rtnetlink.h
_PACKETS_MAX = 64
"""Read at a time; what is there beyond that wakes the loop again."""


@dataclass(frozen=True)
class LinkChanges:
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
                packet = self._kernel.receive()
            except KernelRejectedError as problem:
                if problem.errno_value == errno.EAGAIN:
                    break
                if problem.errno_value != errno.ENOBUFS:
                    raise
                lost = True
                continue
            for kind, _, _, body in packet:
                if kind in (_RTM_NEWLINK, _RTM_DELLINK):
                    link = messages.decode(ifinfmsg, kind, body)
                    numbers.add(link["index"])
                    name = link.get_attr("IFLA_IFNAME")  # bytes where it is no text
                    if name is not None:
                        names.add(os.fsdecode(name))
        return LinkChanges(frozenset(numbers), frozenset(names), lost)

    def close(self) -> None:
        """Release the socket."""
        self._kernel.close()
