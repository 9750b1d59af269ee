"""Whom a step waits for: those whose part comes in time, as the last arrivals let expect. Pure.

A part is late when it comes later after the first one than the median of the last arrivals and five times their median
absolute deviation. Of normal deviations that is 3.4 standard deviations: one part in 1,500 (Leys and others, Journal
of Experimental Social Psychology 49, 2013, for the estimator).
"""

from __future__ import annotations

import math
import statistics
from collections import OrderedDict, deque
from collections.abc import Collection
from dataclasses import dataclass, field

from transport.volatile.protocol.commit import Contributors
from transport.volatile.protocol.messages import Arrived
from transport.volatile.protocol.view import Member, View

ARRIVALS = 20
"""So many are looked back at, and nobody is late before."""
DEVIATIONS = 5.0
ROUND_TRIPS = 4.0
"""At least: the first worker hears of an arrival half a round trip later, and noise of the network is of this order."""
LATE_MAX = 3
"""A worker that is late in so many steps in a row learns from then on, until it has caught up."""
LEARNS_STEPS_MAX = 48
"""It learns for twice as many steps each time, up to so many. One that is always slow would else hold up three steps
of every few, and change the view twice; so it is one step in 17."""
STEPS_KEPT = 16
"""Late parts of that many steps are still measured."""


@dataclass
class _Step:
    """What is known of a step's parts.

    Args:
        here: whose are there.
        made_up: how long those are that were made for the step before, fit or not.
        part_bytes: how long those are that were made for this one; None before the first of them.
        first_s: when the first one was ready that was made for it.
        quorum: how many it needs at least; of one that waits for all 0.
    """

    here: set[Member] = field(default_factory=set)
    made_up: dict[Member, int] = field(default_factory=dict)
    part_bytes: int | None = None
    first_s: float = math.inf
    quorum: int = 0

    def settle(self) -> frozenset[Member]:
        """Take the parts that were made up, once the step is known; whose do not fit."""
        if self.part_bytes is None:
            return frozenset()
        fit = {one for one, length in self.made_up.items() if length == self.part_bytes and self.quorum}
        self.here |= fit
        return frozenset(self.made_up) - fit


@dataclass
class _LearningTime:
    """For how many steps a worker that was always late learns, and up to which one."""

    steps: int
    until: int


class Deadlines:
    """Of the steps whose contributors the first worker of a view has to choose, and those that it has chosen."""

    def __init__(self) -> None:
        self._after_s: deque[float] = deque(maxlen=ARRIVALS)
        self._steps: dict[int, _Step] = {}
        self._chosen: OrderedDict[int, Contributors] = OrderedDict()
        self._late: dict[Member, int] = {}
        self._learning: dict[Member, _LearningTime] = {}
        self._workers: frozenset[Member] = frozenset()

    def entered(self, view: View) -> None:
        """The view changes: steps begin anew. How long arrivals take stays known, and who was always late.

        A worker that learns from now on was: every member sees that, so it is no matter who is the first then.
        """
        self._steps.clear()
        self._chosen.clear()
        self._late.clear()
        self._learning = {one: said for one, said in self._learning.items() if one in view.members}
        for one in self._workers & set(view.joining):
            before = self._learning.get(one)
            steps = LATE_MAX if before is None else min(2 * before.steps, LEARNS_STEPS_MAX)
            self._learning[one] = _LearningTime(steps, until=view.base_step + steps)
        self._workers = frozenset(view.workers)

    def arrived(self, member: Member, message: Arrived, now_s: float) -> frozenset[Member]:
        """The part of `member` for a step is ready.

        One that was made up says nothing of when those for this step may come, nor what the step is.

        Returns:
            Whose made up parts do not fit the step.
        """
        known = self._steps.setdefault(message.step, _Step())
        if message.made_up:
            known.made_up[member] = message.part_bytes
        else:
            known.part_bytes = message.part_bytes
            known.made_up.pop(member, None)
        if not message.made_up and message.quorum and member not in known.here:
            known.here.add(member)
            known.quorum = max(message.quorum, known.quorum)
            known.first_s = min(now_s, known.first_s)
            self._after_s.append(now_s - known.first_s)
        for old in sorted(self._steps)[:-STEPS_KEPT]:
            del self._steps[old]
        return known.settle()

    def wait_s(self, *, rtt_s: float) -> float:
        """How long after the first part of a step the last one may come."""
        if len(self._after_s) < ARRIVALS:
            return math.inf
        median_s = statistics.median(self._after_s)
        deviation_s = statistics.median(abs(one - median_s) for one in self._after_s)
        return max(median_s + DEVIATIONS * deviation_s, ROUND_TRIPS * rtt_s)

    def due_s(self, workers: Collection[Member], committed: int, *, rtt_s: float) -> dict[int, float]:
        """The steps after `committed` that are open, and when the contributors of each are known.

        At once (0) where all are there, and never yet (infinite) where they are fewer than the quorum, or half of all.
        """
        open_steps = {step for step in self._steps if step not in self._chosen and step > committed}
        return {step: self._due_s(self._steps[step], frozenset(workers), rtt_s) for step in sorted(open_steps)}

    def _due_s(self, step: _Step, workers: frozenset[Member], rtt_s: float) -> float:
        if step.here >= workers:
            return 0.0
        least = min(max(step.quorum, len(workers) // 2 + 1), len(workers))
        if len(workers & step.here) < least:
            return math.inf
        return step.first_s + self.wait_s(rtt_s=rtt_s)

    def take(
        self, view: View, step: int, *, learning: frozenset[Member], members_min: int
    ) -> tuple[frozenset[Member], frozenset[Member]]:
        """The contributors of `step`: those who are there. And who is to learn from now on, as it is always late.

        Args:
            learning: who is to learn anyway.
            members_min: so many are to work at least.
        """
        here = self._steps[step].here
        for one in view.workers:
            self._late[one] = 0 if one in here else self._late.get(one, 0) + 1
            said = self._learning.get(one)
            if said is not None and one in here and step >= said.until + said.steps:
                del self._learning[one]  # it was in time for as long as it had to learn
        late = frozenset(one for one, count in self._late.items() if count >= LATE_MAX) - learning
        if len(view.workers) - len(late) < max(self._steps[step].quorum, members_min):
            late = frozenset()
        return frozenset(here) & frozenset(view.workers), late

    def may_work(self, member: Member, step: int) -> bool:
        """Whether one who learns and holds all up to `step` may work again."""
        said = self._learning.get(member)
        return said is None or step >= said.until

    def chose(self, message: Contributors) -> None:
        """That was said of a step."""
        self._chosen[message.step] = message
        while len(self._chosen) > STEPS_KEPT:
            self._chosen.popitem(last=False)

    def chosen(self, step: int) -> Contributors | None:
        """What was said of `step`, where that is still known."""
        return self._chosen.get(step)
