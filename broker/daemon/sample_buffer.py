"""Ticks that read and do not decide: the counters are kept for the next decision, and asked whether it may wait.

What the daemon alone knows ends the rest as well: somebody announced, declared, came or went; the policy is another
one, or the wall clock was set; what the kernel has is not what we wrote; a session follows the rates that it is told.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass

from broker.enforce.egress import EgressTrees
from broker.law import skip
from broker.law.decision import Decision
from broker.law.skip import REST_S, Resting
from broker.measure.flow_table import FlowTable
from broker.measure.interfaces import InterfaceCounters
from broker.model.values import ClassSample, EarlierSample, InterfaceSample, Measurements
from broker.policy.types import Policy

KEPT_MAX = 24
"""Readings of an interface: twenty in a rest at the shortest ticks, 20 ms, and no list that grows."""

CLOCK_SET_S = 1.0
"""A wall clock that went so much further, or less far, than ours was set: another schedule may hold."""


@dataclass(frozen=True)
class _Read:
    at_s: float
    classes: tuple[ClassSample, ...]
    received_bytes: int | None


class Readings:
    """For the loop's thread.

    Args:
        interface_of: the shaped interface towards an address.
        clock: monotonic seconds.
        utc_s: the wall clock, seconds since 1970.
    """

    def __init__(
        self,
        *,
        egress_trees: EgressTrees,
        traffic: InterfaceCounters,
        flows: FlowTable,
        interface_of: Callable[[str], str | None],
        clock: Callable[[], float],
        utc_s: Callable[[], float] = time.time,
    ) -> None:
        self._plant, self._traffic, self._flows = egress_trees, traffic, flows
        self._interface_of, self._clock, self._utc_s = interface_of, clock, utc_s
        self._wall_s = 0.0
        self._policy: Policy | None = None
        self._resting: dict[str, Resting] = {}
        self._kept: dict[str, list[_Read]] = {}
        self._until_s = self._read_s = float("-inf")
        self.news = False
        """Counters were read for this very tick, and said that it has to decide."""

    def decided(self, decision: Decision, measurements: Measurements, *, policy: Policy, now_s: float) -> None:
        """A decision was made, on all that was kept: see whether the next may wait."""
        self._kept.clear()
        self._flows.taken(now_s=now_s)
        found = skip.resting(decision, measurements, policy=policy, now_s=now_s)
        self._policy, self._resting = policy, dict(found or {})
        self._until_s = now_s + REST_S if found else float("-inf")
        self._read_s, self.news = now_s, False
        self._wall_s = self._utc_s() - self._clock()

    @property
    def rests(self) -> bool:
        """The last decision follows nothing from tick to tick, and no reading since has said that it has to."""
        return self._until_s > float("-inf")

    def suffices(self, policy: Policy, *, tick_s: float) -> bool:
        """At a tick: read the counters; whether that is all there is to do, and the decision may wait.

        Args:
            policy: the one in force.
            tick_s: from this tick to the next, by which the decision has to come.
        """
        now_s = self._clock()
        if policy is not self._policy or now_s + tick_s / 2 >= self._until_s or not self._plant.stands:
            return False
        if self._resting.keys() != self._plant.names:
            return False
        if policy.schedules and abs(self._utc_s() - now_s - self._wall_s) > CLOCK_SET_S:
            return False
        received = self._traffic.received_bytes()
        reported = self._flows.reported_since(self._read_s, interface_of=self._interface_of, now_s=now_s)
        self._read_s = now_s
        for name, entry in self._resting.items():
            classes, age_s = self._plant.read(name, fresh_s=0.0)
            sample = InterfaceSample(name, counters_age_s=age_s, classes=classes, flows=reported.get(name, ()))
            read_s = self._clock()
            self._resting[name], news = skip.follow(entry, sample, now_s=read_s)
            if news or age_s is None:
                self._until_s, self.news = float("-inf"), True
                return False
            kept = self._kept.setdefault(name, [])
            kept.append(_Read(read_s - age_s, classes, received.get(name)))
            del kept[:-KEPT_MAX]
        return True

    def earlier(self, interface: str, *, now_s: float) -> tuple[EarlierSample, ...]:
        """What was read of an interface since the last decision, oldest first."""
        kept = self._kept.get(interface, ())
        return tuple(EarlierSample(now_s - one.at_s, one.classes, one.received_bytes) for one in kept)
