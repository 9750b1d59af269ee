"""Which UDP sockets there are, and in which class: who else sends, though the kernel counts no bytes of one socket.

It tells what of a socket waits in this host at the moment (`sk_wmem_alloc`): that is how a sender is recognised.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable, Iterator

from broker.measure.budget import CpuBudget
from broker.measure.port_classes import PortClasses
from broker.measure.tcp_diag import UdpSocket, udp_pages
from broker.process.log import Log

SHARE, SLICE_S, INTERVAL_S = 0.002, 0.002, 2.0
"""A thousand sockets take 3 ms: two slices, and 0.15 % of a core."""
SHOWN_MAX = 32
SENT_S = 30.0
"""So long a socket counts as sending after something of it was seen waiting: a look meets a queue by chance."""
RETRY_S = 60.0
"""A kernel without udp_diag gets it only when somebody loads the module."""


class UdpWatch:
    """For one thread. A kernel that refuses is asked again after `RETRY_S`.

    Args:
        pages: gives the sockets, a page at a time.
    """

    def __init__(self, *, log: Log, pages: Callable[[], Iterator[list[UdpSocket]]] = udp_pages) -> None:
        self._log, self._pages = log, pages
        self._passes = CpuBudget(self._list, share=SHARE, interval_s_min=INTERVAL_S, slice_s=SLICE_S)
        self._port_classes: PortClasses | None = None
        self._sent_s: dict[int, float] = {}
        self._now_s = 0.0
        self.shown: tuple[tuple[UdpSocket, str, bool], ...] = ()
        """Sockets with their class, and whether something of theirs was seen waiting lately; senders first."""

    def look(self, *, matching: PortClasses, now_s: float) -> None:
        """Look a little further, when it is time."""
        self._port_classes, self._now_s = matching, now_s
        try:
            self._passes.go(now_s=now_s)
        except OSError as problem:
            self._log.warning("udp-unlisted", error=str(problem))
            self._passes.wait(now_s + RETRY_S)

    def _list(self) -> Iterator[None]:
        assert self._port_classes is not None
        sent_s: dict[int, float] = {}
        found: list[tuple[UdpSocket, str, bool]] = []
        for page in self._pages():
            for one in page:
                if one.waiting_bytes:
                    sent_s[one.inode] = self._now_s
                elif self._now_s - self._sent_s.get(one.inode, -SENT_S) < SENT_S:
                    sent_s[one.inode] = self._sent_s[one.inode]
                found.append((one, self._port_classes.class_of(one), one.inode in sent_s))
            if len(found) > 2 * SHOWN_MAX:
                found = _first(found)
            yield
        self._sent_s = sent_s
        self.shown = tuple(_first(found))


def _first(found: list[tuple[UdpSocket, str, bool]]) -> list[tuple[UdpSocket, str, bool]]:
    return heapq.nsmallest(SHOWN_MAX, found, key=lambda one: (not one[2], one[1] == "other", one[0].inode))
