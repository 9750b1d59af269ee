"""Hear from the kernel that routes, or rules that choose among them, have changed. rtnetlink(7).

An event is a hint to look again; which route it is about does not matter. So it is asked for rather than waited for: a
routing daemon that changes a thousand routes a second never wakes the loop, and what does not fit in the socket's
buffer costs the kernel a counter.
"""

from __future__ import annotations

from hive_qos.netlink import NetlinkSocket

# linux/rtnetlink.h; of IPv6 rules only the number of the group is named there, RTNLGRP_IPV6_RULE = 19.
_RTMGRP_IPV4_ROUTE, _RTMGRP_IPV4_RULE, _RTMGRP_IPV6_ROUTE, _RTMGRP_IPV6_RULE = 0x40, 0x80, 0x400, 0x40000


class RouteEvents:
    """A socket that receives the events of the network namespace in which it was made. For one thread."""

    def __init__(self) -> None:
        groups = _RTMGRP_IPV4_ROUTE | _RTMGRP_IPV4_RULE | _RTMGRP_IPV6_ROUTE | _RTMGRP_IPV6_RULE
        self._kernel = NetlinkSocket(groups=groups, timeout_s=0)

    def changed(self) -> bool:
        """Whether anything has changed since last asked; never waits.

        Raises:
            KernelRejectedError: the socket failed.
        """
        return self._kernel.discard()

    def close(self) -> None:
        """Release the socket."""
        self._kernel.close()
