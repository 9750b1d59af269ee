"""Looks at the TCP connections of the host, as often as it is cheap: about half a percent of a core.

A list takes the kernel through its whole table of connections, 2 MB on most machines, however few there are. So up to
`ASKED_MAX` connections are asked for by themselves, as often as `SHARE` allows: ten of them at almost every tick; the
list, which shows new ones, is read every `LIST_S`. Up to `ALL_MAX` are all listed with their TCP_INFO, as often as
`SHARE` allows (a hundred: three times a second) and at least once a second. Of more, the list is read as often as
`SHARE` allows (1,000: every 3 s, 10,000: every 25 s), and between two lists the `FOLLOWED_MAX` that matter are asked
for by themselves, once a second: `flows.importance` says which, and those that bring most. All of it goes in slices, so
that no tick waits for a list.

Of a UDP socket the kernel counts no bytes. It tells what waits in this host now (`sk_wmem_alloc`), which shows
who sends. UDP sockets are listed every two seconds, for the status alone.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable, Iterator

from broker.events.log import Log
from broker.measure.budget import CpuBudget
from broker.measure.flow_table import FlowTable, importance
from broker.measure.port_classes import PortClasses
from broker.measure.tcp_diag import TcpConnection, UdpSocket, tcp_asked, tcp_pages, udp_pages

SHARE = 0.003
"""Of a core, for the list."""
HASTENED_SHARE = 0.01
"""While it is hastened: ten connections may be looked at every thirty milliseconds, five hundred every half second."""
INTERVAL_S_MIN, LIST_S, SECOND_S = 0.1, 0.5, 1.0
SLICE_S = 0.003
"""CPU time in one tick. A page is 0.4 ms."""
RETRY_S = 30.0
ASKED_MAX = 64
"""With 12 µs each 0.8 ms, where a list takes 0.2 ms for its table and as much again for 64 connections: not more, and
the caches keep what the tick is about to use."""
ALL_MAX = 500
"""With 7 µs each, classified and all, 3.5 ms: the decision believes a connection's figures for 1.5 s."""
FOLLOWED_MAX, BRINGING_MAX = 128, 32
"""With 12 µs each, 1.5 ms every second: 0.15 % of a core. The decision looks at 32 of them, and at what those that
bring something to us bring together: they are the fewer on most hosts."""
UDP_SHARE, UDP_SLICE_S, UDP_INTERVAL_S = 0.002, 0.002, 2.0
"""A thousand sockets take 3 ms: two slices, and 0.15 % of a core."""
UDP_SHOWN_MAX = 32
UDP_SENT_S = 30.0
"""So long a socket counts as sending after something of it was seen waiting: a look meets a queue by chance."""
UDP_RETRY_S = 60.0
"""A kernel without udp_diag gets it only when its module is loaded."""


class TcpWatch:
    """Feeds a flow table. For one thread."""

    def __init__(self, *, log: Log, clock: Callable[[], float]) -> None:
        self._log, self._clock = log, clock
        self._few = CpuBudget(
            self._list, share=SHARE, interval_s_min=INTERVAL_S_MIN, interval_s_max=SECOND_S, slice_s=SLICE_S
        )
        self._asking = CpuBudget(
            self._follow, share=SHARE, interval_s_min=INTERVAL_S_MIN, interval_s_max=SECOND_S, slice_s=SLICE_S
        )
        self._all = CpuBudget(self._list, share=SHARE, interval_s_min=SECOND_S, slice_s=SLICE_S)
        self._averages = CpuBudget(
            self._follow, share=SHARE, interval_s_min=SECOND_S, interval_s_max=SECOND_S, slice_s=SLICE_S
        )
        self._many = False
        self._chosen: list[TcpConnection] = []

    def hasten(self) -> None:
        """Read again at the next tick where a reading is cheap, because the senders matter now."""
        if not self._many:
            self._few.hasten(share=HASTENED_SHARE)

    def look(self, flows: FlowTable, *, matching: PortClasses, now_s: float) -> None:
        """Look, when it is time. A kernel that refuses is asked again after `RETRY_S`; delay signals are then fewer."""
        self._flows, self._port_classes = flows, matching
        try:
            if self._many:
                self._all.go(now_s=now_s)
                self._averages.go(now_s=now_s)
            elif self._few.go(now_s=now_s):
                if len(self._chosen) <= ASKED_MAX:  # between two lists they are asked for, or there are none
                    self._few.space(LIST_S)
            elif not self._few.under_way and 0 < len(self._chosen) <= ASKED_MAX:
                self._asking.go(now_s=now_s)
        except OSError as problem:
            self._log.warning("tcp-unmeasured", error=str(problem))
            for work in (self._few, self._asking, self._all, self._averages):
                work.wait(now_s + RETRY_S)

    def _list(self) -> Iterator[None]:
        count = 0
        found: list[TcpConnection] = []
        for page in tcp_pages(clock=self._clock):
            count += len(page)
            found.extend(page)
            if len(found) > 2 * ALL_MAX:
                found = self._choose(found)
            yield
        self._many = count > ALL_MAX
        self._flows.count_tcp(count)
        self._chosen = self._choose(found) if self._many else found
        self._flows.see_tcp(self._chosen, matching=self._port_classes)

    def _follow(self) -> Iterator[None]:
        found: list[TcpConnection] = []
        for page in tcp_asked(self._chosen, clock=self._clock):
            found.extend(page)
            yield
        self._flows.see_tcp(found, matching=self._port_classes)

    def _choose(self, connections: list[TcpConnection]) -> list[TcpConnection]:
        bringing = heapq.nlargest(BRINGING_MAX, connections, key=lambda one: one.received_bytes)
        chosen = {one.question for one in bringing}
        classed = [(one, self._port_classes.class_of(one)) for one in connections if one.question not in chosen]
        first = heapq.nsmallest(FOLLOWED_MAX - len(bringing), classed, key=lambda entry: importance(*entry))
        return [*bringing, *(one for one, _ in first)]


class UdpWatch:
    """For one thread. A kernel that refuses is asked again after `UDP_RETRY_S`.

    Args:
        pages: gives the sockets, a page at a time.
    """

    def __init__(self, *, log: Log, pages: Callable[[], Iterator[list[UdpSocket]]] = udp_pages) -> None:
        self._log, self._pages = log, pages
        self._passes = CpuBudget(self._list, share=UDP_SHARE, interval_s_min=UDP_INTERVAL_S, slice_s=UDP_SLICE_S)
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
            self._passes.wait(now_s + UDP_RETRY_S)

    def _list(self) -> Iterator[None]:
        assert self._port_classes is not None
        sent_s: dict[int, float] = {}
        found: list[tuple[UdpSocket, str, bool]] = []
        for page in self._pages():
            for one in page:
                if one.waiting_bytes:
                    sent_s[one.inode] = self._now_s
                elif self._now_s - self._sent_s.get(one.inode, -UDP_SENT_S) < UDP_SENT_S:
                    sent_s[one.inode] = self._sent_s[one.inode]
                found.append((one, self._port_classes.class_of(one), one.inode in sent_s))
            if len(found) > 2 * UDP_SHOWN_MAX:
                found = _senders_first(found)
            yield
        self._sent_s = sent_s
        self.shown = tuple(_senders_first(found))


def _senders_first(found: list[tuple[UdpSocket, str, bool]]) -> list[tuple[UdpSocket, str, bool]]:
    return heapq.nsmallest(UDP_SHOWN_MAX, found, key=lambda one: (not one[2], one[1] == "other", one[0].inode))
