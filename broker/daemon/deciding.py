"""One decision and its application: measure, decide, ask other brokers, write to the kernel.

    tick, announcement*   look at TCP -> measure -> decide -> ask others -> egress -> answer others -> ingress
    another one asks      measure -> decide -> ask others -> egress -> answer others -> ingress -> look at TCP

Who sends to us, and how much came before a burst, is asked of TCP (half a millisecond with few connections, up to three
with many). What another broker's lease gets does not depend on that, so it does not wait for it; and (*) where no way
in is looked after, nobody has to be asked for room, and what TCP says of the way out can wait for the next tick.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from broker.daemon.earlier_sockets import EarlierSockets
from broker.daemon.flows import FlowTable
from broker.daemon.ingress_plant import IngressPlant
from broker.daemon.matching import Matching
from broker.daemon.measuring import Measuring
from broker.daemon.neighbours import Neighbours
from broker.daemon.own_cgroups import OwnCgroups
from broker.daemon.pace_watch import PaceWatch
from broker.daemon.plant import Plant
from broker.daemon.roster import Roster
from broker.daemon.shapes import rules_of
from broker.daemon.tcp_watch import TcpWatch
from broker.decide import decide
from broker.model import Decision, Measurements, Policy, State

COUNTERS_FRESH_S = 0.02
"""An announcement between two ticks is decided on the counters of the last tick, unless they are older than this."""


@dataclass(frozen=True)
class Decided:
    """A decision with all that it was made from."""

    now_s: float
    before: State
    measurements: Measurements
    decision: Decision


def looks_first(policy: Policy, *, between: bool, asked: bool) -> bool:
    """Whether a decision, made between two ticks or because of another broker alone, is preceded by a look at TCP."""
    return not asked and (not between or any(entry.ingress for entry in policy.interfaces))


class Deciding:
    """For the loop's thread.

    Args:
        earlier: gives sockets that were there before their rule its class; None leaves them.
    """

    def __init__(
        self,
        *,
        measuring: Measuring,
        plant: Plant,
        roster: Roster,
        ingress_plant: IngressPlant,
        neighbours: Neighbours,
        paces: PaceWatch,
        tcp_watch: TcpWatch,
        flows: FlowTable,
        earlier: EarlierSockets | None,
        own_cgroups: OwnCgroups,
        clock: Callable[[], float],
    ) -> None:
        self._measuring, self._plant, self._roster, self._ingress_plant = measuring, plant, roster, ingress_plant
        self._neighbours, self._paces, self._tcp_watch, self._flows = neighbours, paces, tcp_watch, flows
        self._earlier, self._own_cgroups, self._clock = earlier, own_cgroups, clock
        self._state = State()
        self._matching: Matching | None = None
        self.ticks = 0
        self.again_s: float | None = None
        """When the last decision wants to be made again, whatever happens."""

    def attach_all(self, policy: Policy) -> None:
        """Attach what policy names and is there, and bring what we hold already to it.

        Raises:
            HiveError, OSError, ValueError: as `Roster.attach_all`.
        """
        measurements = self._measuring.with_links(policy, fresh_s=COUNTERS_FRESH_S)
        decision = decide(now_s=self._clock(), state=self._state, measurements=measurements, policy=policy)
        self._roster.attach_all(decision.allocation, policy=policy, class_cgroups=self._own_cgroups.paths)

    def decide(self, policy: Policy, *, between: bool, asked: bool) -> Decided:
        """Decide, and bring it about.

        Args:
            between: between two ticks, where counters of a moment ago will do.
            asked: because of another broker alone.
        """
        if looks_first(policy, between=between, asked=asked):
            self._look_at_tcp(policy)
        measurements = self._measuring.measure(policy, fresh_s=COUNTERS_FRESH_S if between else 0.0)
        now_s, before = self._clock(), self._state
        decision = decide(now_s=now_s, state=before, measurements=measurements, policy=policy)
        self._state = decision.state
        self.ticks += 1
        self.again_s = None if decision.again_s is None else now_s + decision.again_s
        self._neighbours.ask(decision)
        self._paces.want(decision.watches)
        if decision.holds:
            self._tcp_watch.hasten()  # how much of what comes is storage?
        self._roster.apply(decision.allocation, policy=policy, class_cgroups=self._own_cgroups.paths)
        self._neighbours.answer(decision)
        self._ingress_plant.check()
        self._ingress_plant.apply(
            decision.allocation, policy=policy, passed=self._flows.passed.values(), present=self._plant.names
        )
        classified = self._plant.classify()
        if self._earlier is not None:
            self._earlier.look(
                lambda: rules_of(policy, class_cgroups=self._own_cgroups.paths),
                classified=classified,
                now_s=now_s,
                urgent=between,
            )
        if asked:
            self._look_at_tcp(policy)
        return Decided(now_s, before, measurements, decision)

    def _look_at_tcp(self, policy: Policy) -> None:
        if self._matching is None or self._matching.policy is not policy:
            self._matching = Matching(policy)
        self._tcp_watch.look(self._flows, matching=self._matching, now_s=self._clock())
