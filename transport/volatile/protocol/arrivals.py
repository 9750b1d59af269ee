"""Whom a step waits for: those whose part comes in time, as the last arrivals let expect. Pure.

A part is late when it comes later after the first one than the median of the last arrivals and five times their median
absolute deviation. Of normal deviations that is 3.4 standard deviations: one part in 1,500 (Leys and others, Journal
of Experimental Social Psychology 49, 2013, for the estimator).
"""

from __future__ import annotations

import math
import statistics
from collections import OrderedDict, deque
from collections.abc import Iterable

from transport.volatile.protocol.commit import Contributors
from transport.volatile.protocol.view import Member, View

ARRIVALS = 20
"""So many are looked back at, and nobody is late before."""
DEVIATIONS = 5.0
ROUND_TRIPS = 4.0
"""At least: the first worker hears of an arrival half a round trip later, and noise of the network is of this order."""
LATE_MAX = 3
"""A worker that is late in so many steps in a row learns from then on, until it has caught up."""
STEPS_KEPT = 16
"""Late parts of that many steps are still measured."""


class Arrivals:
    """What the first worker knows of its view's arrivals."""

    def __init__(self) -> None:
        self._after_s: deque[float] = deque(maxlen=ARRIVALS)
        self._here: dict[int, dict[Member, float]] = {}
        self._late: dict[Member, int] = {}

    def forget(self) -> None:
        """The view changes: steps begin anew. How long arrivals take stays known."""
        self._here.clear()
        self._late.clear()

    def arrived(self, member: Member, step: int, now_s: float) -> None:
        """The part of `member` for `step` is ready."""
        here = self._here.setdefault(step, {})
        if member not in here:
            here[member] = now_s
            self._after_s.append(now_s - min(here.values()))
        for old in sorted(self._here)[:-STEPS_KEPT]:
            del self._here[old]

    def steps(self) -> list[int]:
        """Of which anybody's part is there."""
        return sorted(self._here)

    def wait_s(self, *, rtt_s: float) -> float:
        """How long after the first part of a step the last one may come."""
        if len(self._after_s) < ARRIVALS:
            return math.inf
        median_s = statistics.median(self._after_s)
        deviation_s = statistics.median(abs(one - median_s) for one in self._after_s)
        return max(median_s + DEVIATIONS * deviation_s, ROUND_TRIPS * rtt_s)

    def due_s(self, step: int, workers: Iterable[Member], quorum: int, *, rtt_s: float) -> float:
        """When the contributors of `step` are known: at once (0) if all are there, never yet if fewer than `quorum`."""
        here, expected = self._here.get(step, {}), set(workers)
        if here.keys() >= expected:
            return 0.0
        if len(expected & here.keys()) < quorum:
            return math.inf
        return min(here.values()) + self.wait_s(rtt_s=rtt_s)

    def take(self, step: int, workers: Iterable[Member]) -> frozenset[Member]:
        """The contributors of `step`: those who are there. The others are late."""
        here = self._here.get(step, {})
        for one in workers:
            self._late[one] = 0 if one in here else self._late.get(one, 0) + 1
        return frozenset(here) & frozenset(workers)

    def always_late(self) -> frozenset[Member]:
        """Who was late in the last steps, without exception."""
        return frozenset(one for one, count in self._late.items() if count >= LATE_MAX)


class Deadlines:
    """Of the steps whose contributors the first worker of a view has to choose, and those that it has chosen."""

    def __init__(self) -> None:
        self._arrivals = Arrivals()
        self._chosen: OrderedDict[int, Contributors] = OrderedDict()
        self._quorum: dict[int, int] = {}

    def forget(self) -> None:
        """The view changes."""
        self._arrivals.forget()
        self._chosen.clear()
        self._quorum.clear()

    def arrived(self, member: Member, step: int, quorum: int, now_s: float) -> None:
        """The part of `member` for `step` is ready, which needs `quorum` contributors at least."""
        self._arrivals.arrived(member, step, now_s)
        self._quorum[step] = max(quorum, self._quorum.get(step, 0))
        self._quorum = {one: self._quorum[one] for one in self._arrivals.steps() if one in self._quorum}

    def chosen(self, step: int) -> Contributors | None:
        """What was said of `step`, where that is still known."""
        return self._chosen.get(step)

    def due_s(self, view: View, committed: int, *, rtt_s: float) -> dict[int, float]:
        """The steps after `committed` that are open, and when the contributors of each are known."""
        workers = view.workers

        def least(step: int) -> int:
            return min(max(self._quorum[step], len(workers) // 2 + 1), len(workers))

        return {
            step: self._arrivals.due_s(step, workers, least(step), rtt_s=rtt_s)
            for step in self._arrivals.steps()
            if step not in self._chosen and step > committed
        }

    def take(self, view: View, step: int, learning: frozenset[Member]) -> tuple[frozenset[Member], frozenset[Member]]:
        """The contributors of `step`, and who is to learn from now on: workers that are always late.

        Args:
            learning: who is to learn anyway.
        """
        some = self._arrivals.take(step, view.workers)
        late = self._arrivals.always_late() - learning
        return some, late if len(view.workers) - len(late) >= self._quorum[step] else frozenset()

    def chose(self, message: Contributors) -> None:
        """That was said of a step."""
        self._chosen[message.step] = message
        while len(self._chosen) > STEPS_KEPT:
            self._chosen.popitem(last=False)
