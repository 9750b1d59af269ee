"""Looks at the TCP connections of the host, as often as it is cheap: never more than about 2 % of a core.

Up to `ALL_MAX` connections are all read with their TCP_INFO, as often as `SHARE` allows: ten connections ten times a
second, a thousand once. Of more, the list is read at the same pace (10,000 take 5 s), and between two lists the
`FOLLOWED_MAX` that matter are asked for by themselves, once a second: a class before `other`, and of each those with
the most that waits to be acknowledged. All of it goes in slices, so that no tick waits for a list.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

from broker.daemon.flows import FlowTable
from broker.daemon.log import Log
from broker.daemon.matching import Matching
from broker.daemon.slices import Sliced
from broker.daemon.sock_diag import TcpConnection, tcp_asked, tcp_pages

SHARE = 0.01
"""Of a core, for each of the two: the list, and those that are followed."""
HASTENED_SHARE = 0.02
"""While it is hastened: ten connections may be looked at every ten milliseconds, a thousand every half second."""
INTERVAL_S_MIN = 0.1
FOLLOW_S = 1.0
SLICE_S = 0.003
"""CPU time in one tick. A page is 0.4 ms."""
RETRY_S = 30.0
ALL_MAX = 1_500
"""With 7 µs each, classified and all, 10 ms: about once a second."""
FOLLOWED_MAX = 512
"""With 12 µs each, 6 ms every second: 0.6 % of a core. Delay and loss of 512 say what 10,000 would."""


class TcpWatch:
    """Feeds a flow table. For one thread."""

    def __init__(self, *, log: Log, clock: Callable[[], float]) -> None:
        self._log, self._clock = log, clock
        self._listing = Sliced(self._list, share=SHARE, interval_s_min=INTERVAL_S_MIN, slice_s=SLICE_S)
        self._following = Sliced(self._follow, share=SHARE, interval_s_min=FOLLOW_S, slice_s=SLICE_S)
        self._many = False
        self._chosen: list[TcpConnection] = []

    def hasten(self) -> None:
        """Let the next look come with the next tick, where a look is cheap: it matters now who sends to us."""
        if not self._many:
            self._listing.hasten(share=HASTENED_SHARE)

    def look(self, flows: FlowTable, *, matching: Matching, now_s: float) -> None:
        """Look, when it is time. A kernel that refuses is asked again after `RETRY_S`; delay signals are then fewer."""
        self._flows, self._matching = flows, matching
        try:
            self._listing.go(now_s=now_s)
            if self._many:
                self._following.go(now_s=now_s)
        except OSError as problem:
            self._log.warning("sock_diag", error=str(problem), note="TCP connections are not measured")
            self._listing.wait(now_s + RETRY_S)
            self._following.wait(now_s + RETRY_S)

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
        self._flows.see_tcp(self._chosen, matching=self._matching)

    def _follow(self) -> Iterator[None]:
        found: list[TcpConnection] = []
        for page in tcp_asked(self._chosen, clock=self._clock):
            found.extend(page)
            yield
        self._flows.see_tcp(found, matching=self._matching)

    def _choose(self, connections: list[TcpConnection]) -> list[TcpConnection]:
        def order(one: TcpConnection) -> tuple[bool, int]:
            return (self._matching.class_of(one) == "other", -one.waiting_bytes)

        return sorted(connections, key=order)[:FOLLOWED_MAX]
