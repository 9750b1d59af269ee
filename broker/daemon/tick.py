"""One decision and its application: measure, decide, ask other brokers, write to the kernel.

    tick, announcement*   look at TCP -> measure -> decide -> ask others -> egress -> answer others -> ingress
    another one asks      measure -> decide -> egress -> ask others -> answer others -> ingress -> look at TCP

TCP_INFO shows the senders to us, and what came before a burst. Reading it takes 0.5 ms with few connections and 3 ms
with many. What another broker's lease gets does not depend on it, so a lease does not wait for it. (*) Where no inbound
direction is shaped, nobody is asked for a hold, and the look at TCP can wait for the next tick.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from broker.daemon.collect import Collector
from broker.daemon.pause import Pause
from broker.daemon.peer_link import PeerLink
from broker.enforce.egress import EgressTrees
from broker.enforce.ingress import IngressTrees
from broker.enforce.interfaces import ShapedInterfaces
from broker.enforce.own_cgroups import OwnCgroups
from broker.enforce.reclassify import Reclassifier
from broker.enforce.shapes import rules_of
from broker.enforce.socket_marks import CLASS_OF_PRIORITY
from broker.law.decide import decide
from broker.law.decision import Decision
from broker.law.state import State
from broker.measure.flow_table import FlowTable
from broker.measure.port_classes import PortClasses
from broker.measure.rate_watch import RateWatch
from broker.measure.sockets import TcpWatch
from broker.model.values import Measurements
from broker.policy.types import Policy

COUNTERS_FRESH_S = 0.02
"""An announcement between two ticks is decided on the counters of the last tick, unless they are older than this."""


@dataclass(frozen=True)
class TickResult:
    """A decision with all that it was made from."""

    now_s: float
    before: State
    measurements: Measurements
    decision: Decision


def looks_first(policy: Policy, *, between: bool, asked: bool) -> bool:
    """Whether a decision, made between two ticks or because of another broker alone, is preceded by a look at TCP."""
    return not asked and (not between or any(entry.ingress for entry in policy.interfaces))


def looks_soon(decision: Decision) -> bool:
    """Whether TCP is to be looked at before each decision: training is protected, also from storage that begins now.

    A look twice a second found a first flood 0.25 s late, and by then training's sender had cut its own rate.
    """
    return any(entry.allowance_bits_per_s for entry in decision.state.ingress)


class TickRunner:
    """For the loop's thread.

    Args:
        earlier: gives sockets that were there before their rule its class; None leaves them.
        pause: while it is active, all is decided and nothing enforced.
    """

    def __init__(
        self,
        *,
        measuring: Collector,
        egress_trees: EgressTrees,
        shaped_interfaces: ShapedInterfaces,
        ingress_trees: IngressTrees,
        peer_link: PeerLink,
        rate_watch: RateWatch,
        tcp_watch: TcpWatch,
        flows: FlowTable,
        earlier: Reclassifier | None,
        own_cgroups: OwnCgroups,
        pause: Pause,
        clock: Callable[[], float],
    ) -> None:
        self._collector, self._egress_trees, self._shaped_interfaces, self._ingress_trees = (
            measuring,
            egress_trees,
            shaped_interfaces,
            ingress_trees,
        )
        self._peer_link, self._rate_watch, self._tcp_watch, self._flows = peer_link, rate_watch, tcp_watch, flows
        self._earlier, self._own_cgroups, self._pause, self._clock = earlier, own_cgroups, pause, clock
        self._state = State()
        self._port_classes: PortClasses | None = None
        self.ticks = 0
        self.again_s: float | None = None
        """When the last decision wants to be made again, whatever happens."""

    def attach_all(self, policy: Policy) -> None:
        """Attach what policy names and is there, and bring what we hold already to it.

        Raises:
            HiveError, OSError, ValueError: as `ShapedInterfaces.attach_all`.
        """
        measurements = self._collector.with_links(policy, fresh_s=COUNTERS_FRESH_S)
        decision = decide(now_s=self._clock(), state=self._state, measurements=measurements, policy=policy)
        self._shaped_interfaces.attach_all(decision.allocation, policy=policy, class_cgroups=self._own_cgroups.paths)

    def decide(self, policy: Policy, *, between: bool, asked: bool) -> TickResult:
        """Decide, and bring it about.

        Args:
            between: between two ticks, where counters of a moment ago will do.
            asked: because of another broker alone.
        """
        if looks_first(policy, between=between, asked=asked):
            self._look_at_tcp(policy)
        fresh_s = COUNTERS_FRESH_S if between else 0.0
        measurements = self._collector.measure(policy, fresh_s=fresh_s)
        now_s, before = self._clock(), self._state
        decision = decide(now_s=now_s, state=before, measurements=measurements, policy=policy)
        self._state = decision.state
        self.ticks += 1
        self.again_s = None if decision.again_s is None else now_s + decision.again_s
        if self._pause.active:
            self._peer_link.hold_nobody(decision)
            self._rate_watch.want(())  # what crosses now has nothing to change
        else:
            self._enforce(decision, policy, asked=asked)
        self._keep_rules(policy, now_s=now_s, urgent=between)
        if asked:
            self._look_at_tcp(policy)
        return TickResult(now_s, before, measurements, decision)

    def _enforce(self, decision: Decision, policy: Policy, *, asked: bool) -> None:
        if asked:
            self._apply_egress(decision, policy)
            self._peer_link.ask(decision.holds)
        else:
            self._peer_link.ask(decision.holds)
            self._apply_egress(decision, policy)
        self._peer_link.answer(decision)
        self._rate_watch.want(decision.watches)
        if looks_soon(decision):
            self._tcp_watch.hasten()
        self._ingress_trees.check()
        self._ingress_trees.apply(
            decision.allocation, policy=policy, passed=self._flows.passed.values(), present=self._egress_trees.names
        )

    def _keep_rules(self, policy: Policy, *, now_s: float, urgent: bool) -> None:
        classified = self._egress_trees.classify()
        if self._earlier is not None:
            self._earlier.look(
                lambda: rules_of(policy, class_cgroups=self._own_cgroups.paths),
                classified=classified,
                now_s=now_s,
                urgent=urgent,
            )

    def _apply_egress(self, decision: Decision, policy: Policy) -> None:
        self._shaped_interfaces.apply(decision.allocation, policy=policy, class_cgroups=self._own_cgroups.paths)

    def _look_at_tcp(self, policy: Policy) -> None:
        if self._port_classes is None or self._port_classes.policy is not policy:
            self._port_classes = PortClasses(policy, CLASS_OF_PRIORITY)
        self._tcp_watch.look(self._flows, matching=self._port_classes, now_s=self._clock())
