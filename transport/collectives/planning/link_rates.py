"""What this rank's link carried while it was busy: its part of the table that the group agrees on. Pure.

A rate is nearly the most that went through in WINDOW_SLOTS slots one after another, in each of which something did: an
algorithm leaves links idle while it waits for slow ones, and training does while it computes. Of these windows the last
WINDOWS_KEPT count, without the top OUTLIERS. Idle links say nothing, nor do those that acknowledge what comes the other
way: what was measured stays until there is more.

Nor does a link say anything of itself that waits for another one. While one peer alone is served, its link may be what
is slow; while other sites alone are, what leads there may be. Windows like these do not count: a rank with a fast link
spends most of its time so where one rank is slow, and would be taken for slow itself. Full are windows in which a rank
always had something left to send to several peers: in others it may have waited for others, and what went through says
only that its link may be faster, which is BBR's rule (draft-ietf-ccwg-bbr). So while one rank of a group has such
windows, ranks that never had any are not the slow ones.

Of what crosses between sites all windows count. A site's ranks are added up there, and who leaves that to others must
not seem to carry its former part.

A rank with one peer alone shares one way with it, so that it does not matter whose link is slow. There full windows of
what is sent count, and no others: with small tensors, or while ranks compute in between, any way would look slow. What
comes in is the peer's to measure, for only a sender knows whether it always had something to send.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TypeAlias

from transport.engine.base import ConnectionStatistics

SLOT_S = 0.1
"""As often as the native engine counts; several bursts of acknowledgements at 40 ms of round trip."""
WINDOW_SLOTS = 4
"""A slot may have the bytes of the one before. Longer windows would hold the time in which a fast link waits."""
WINDOWS_KEPT = 40
"""4 s of busy links: a link that got slower is known within these."""
RTT_US_MAX = 10**9
OUTLIERS = 0.05
"""Of the windows: what a full buffer gives back after an idle time is above the link's rate."""
CONTINUOUS = 0.25
"""Of a window's mean, in each of its slots: less is an idle link in between."""
ACKNOWLEDGING = 0.1
"""Of what goes the other way: less may be its acknowledgements alone, which are some hundredths."""
SPREAD = 0.75
"""Of a window's bytes, at most, to or from one peer: half each is two peers."""
NEAR = 0.95
"""Of the bytes of each slot, at least, within this rank's site, for its own link to count: what ranks pass on to each
other goes at the pace of what crosses between sites, and may be nine tenths of their traffic."""


@dataclass(frozen=True)
class LinkReport:
    """What one rank says of its link.

    Args:
        up_bits_per_s, down_bits_per_s: over all peers; 0 where nothing says how much the link carries.
        far_up_bits_per_s, far_down_bits_per_s: to and from ranks of other sites.
        full: its own link was once what bound it.
        full_lately: within its last busy windows, too.
        rtt_us: the shortest round trip to each peer, by rank of the endpoint.
    """

    up_bits_per_s: int
    down_bits_per_s: int
    far_up_bits_per_s: int
    far_down_bits_per_s: int
    rtt_us: Mapping[int, int]
    full: bool = True
    full_lately: bool = True


Carried: TypeAlias = tuple[float, Mapping[int, int]]
"""Seconds, and the bytes to or from each rank in them."""
Window: TypeAlias = tuple[Carried, ...]
"""WINDOW_SLOTS slots, one after another."""


@dataclass(frozen=True)
class _Windows:
    """The last in which something went through all the time; those that say what the link carries, and full ones."""

    continuous: deque[Window] = field(default_factory=lambda: deque(maxlen=WINDOWS_KEPT))
    all: deque[Window] = field(default_factory=lambda: deque(maxlen=WINDOWS_KEPT))
    full: deque[Window] = field(default_factory=lambda: deque(maxlen=WINDOWS_KEPT))

    def near(self, is_near: Callable[[Window], bool]) -> tuple[int, bool, bool]:
        """Bits per second of those that `is_near` lets pass; whether full ones are among them, and late ones."""
        full, all_ = ([one for one in each if is_near(one)] for each in (self.full, self.all))
        rate = max(_nearly_most([_rate(one) for one in each]) for each in (full, all_))
        return rate, bool(full), bool(full) and any(full[-1] is one for one in self.continuous)


class LinkRates:
    """The slots of one rank. In the transport's thread."""

    def __init__(self) -> None:
        self._sent: deque[Carried] = deque(maxlen=WINDOW_SLOTS)
        self._received: deque[Carried] = deque(maxlen=WINDOW_SLOTS)
        self._full: deque[bool] = deque(maxlen=WINDOW_SLOTS)
        self._up, self._down = _Windows(), _Windows()
        self._counters: dict[int, tuple[int, int]] = {}
        self._shared: dict[int, int] = {}
        self._rtt_us: dict[int, int] = {}
        self._since_s = 0.0

    def next_s(self) -> float:
        """When the next slot ends."""
        return self._since_s + SLOT_S

    def sample(self, now_s: float, connections: Mapping[int, ConnectionStatistics]) -> None:
        """End a slot. To be called every SLOT_S while collectives run; a longer pause begins anew.

        Args:
            connections: to each peer, by rank of the endpoint; those for bulk left out.
        """
        counters = {
            rank: (one.delivered_bytes + one.shared_sent_bytes, one.received_bytes + one.shared_received_bytes)
            for rank, one in connections.items()
        }
        took_s = now_s - self._since_s
        known = [rank for rank in counters if rank in self._counters]
        shared = {rank: one.shared_sent_bytes for rank, one in connections.items()}
        sends = [
            rank
            for rank, one in connections.items()
            if not one.application_limited or shared[rank] > self._shared.get(rank, shared[rank])
        ]
        alone = len(connections) == 1
        self._full.append(bool(sends) if alone else len(sends) > 1)
        for slots, which in ((self._sent, 0), (self._received, 1)):
            if took_s > 2 * SLOT_S:
                slots.clear()
                continue
            slots.append(
                (took_s, {rank: max(counters[rank][which] - self._counters[rank][which], 0) for rank in known})
            )
        sent, received, full = tuple(self._sent), tuple(self._received), all(self._full)
        for window, opposite, windows in ((sent, received, self._up), (received, sent, self._down)):
            if len(window) < WINDOW_SLOTS or _rate(window) < ACKNOWLEDGING * _rate(opposite):
                continue
            if not _is_continuous(window) or (alone and not (full and window is sent)):
                continue
            windows.continuous.append(window)
            if alone or _is_spread(window):
                windows.all.append(window)
                if full:
                    windows.full.append(window)
        self.see_round_trips(connections)
        self._counters, self._shared, self._since_s = counters, shared, now_s

    def see_round_trips(self, connections: Mapping[int, ConnectionStatistics]) -> None:
        """Keep the shortest ever: under load, an engine's own minimum of the last seconds has queues in it."""
        for rank, one in connections.items():
            if one.rtt_s_min > 0:
                self._rtt_us[rank] = min(round(one.rtt_s_min * 1e6), self._rtt_us.get(rank, RTT_US_MAX))

    def forget(self, rank: int | None = None) -> None:
        """That rank is elsewhere now, or (None) this one: what was measured is of other ways."""
        for one in [*self._rtt_us] if rank is None else [rank]:
            self._rtt_us.pop(one, None)
        self._up, self._down = _Windows(), _Windows()
        for slots in (self._sent, self._received):
            slots.clear()

    def report(self, far: frozenset[int]) -> LinkReport:
        """What was measured.

        Args:
            far: ranks of the endpoint that are at other sites.
        """
        (up, up_full, up_lately), (down, down_full, down_lately) = (
            each.near(lambda window: self._is_near(window, far)) for each in (self._up, self._down)
        )
        return LinkReport(
            up_bits_per_s=up,
            down_bits_per_s=down,
            far_up_bits_per_s=_nearly_most([_rate(window, far) for window in self._up.continuous]),
            far_down_bits_per_s=_nearly_most([_rate(window, far) for window in self._down.continuous]),
            rtt_us=dict(self._rtt_us),
            full=up_full or down_full,
            full_lately=up_lately or down_lately,
        )

    def _is_near(self, window: Window, far: frozenset[int]) -> bool:
        """Whether nearly all was within this rank's own site all the time, or there is nobody else at it."""
        return self._rtt_us.keys() <= far or all(_rate([slot], far) <= (1 - NEAR) * _rate([slot]) for slot in window)


def together(one: ConnectionStatistics, other: ConnectionStatistics) -> ConnectionStatistics:
    """Two connections to one rank as one, as far as `LinkRates` looks at them."""
    added = ("delivered_bytes", "received_bytes", "shared_sent_bytes", "shared_received_bytes")
    sums = {name: getattr(one, name) + getattr(other, name) for name in added}
    limited = one.application_limited and other.application_limited
    return replace(one, **sums, rtt_s_min=min(one.rtt_s_min, other.rtt_s_min), application_limited=limited)


def _is_continuous(window: Window) -> bool:
    """Whether something went through all the time."""
    mean = _rate(window)
    return mean > 0 and all(_rate([slot]) >= CONTINUOUS * mean for slot in window)


def _is_spread(window: Window) -> bool:
    """Whether several peers had a part in it."""
    rates = [_rate(window, frozenset([rank])) for rank in window[-1][1]]
    return max(rates) <= SPREAD * _rate(window)


def _nearly_most(rates: Sequence[int]) -> int:
    return sorted(rates)[-1 - int(OUTLIERS * len(rates))] if rates else 0


def _rate(slots: Collection[Carried], among: frozenset[int] | None = None) -> int:
    """Bits per second over some slots, to or from some ranks; None for all."""
    nbytes = sum(count for _, each in slots for rank, count in each.items() if among is None or rank in among)
    return int(8 * nbytes / sum(took_s for took_s, _ in slots))
