"""Gathers the measurements of one decision from all who make them: one `Measurements`."""

from __future__ import annotations

from collections.abc import Callable

from msgspec.structs import replace

from broker.daemon.peer_link import PeerLink
from broker.enforce.egress import EgressTrees
from broker.enforce.ingress import IngressTrees
from broker.measure.flow_table import FlowTable
from broker.measure.interfaces import InterfaceCounters, Links
from broker.measure.probes import Probes
from broker.measure.rate_watch import RateWatch
from broker.measure.schedules import Schedules
from broker.model.values import Measurements
from broker.policy.types import Policy
from broker.sessions.burst_table import BurstTable
from broker.sessions.job_table import JobTable
from broker.sessions.need_table import EVERYWHERE, NeedTable


class Collector:
    """For the loop's thread.

    Args:
        interface_of: the shaped interface towards an address.
        traffic: counts inbound bytes; its owner closes it.
    """

    def __init__(
        self,
        *,
        egress_trees: EgressTrees,
        ingress_trees: IngressTrees,
        links: Links,
        traffic: InterfaceCounters,
        rate_watch: RateWatch,
        flows: FlowTable,
        bursts: BurstTable,
        needs: NeedTable,
        jobs: JobTable,
        peer_link: PeerLink,
        probes: Probes,
        interface_of: Callable[[str], str | None],
        clock: Callable[[], float],
    ) -> None:
        self._egress_trees, self._ingress_trees, self._links = egress_trees, ingress_trees, links
        self._traffic, self._rate_watch = traffic, rate_watch
        self._flows, self._bursts, self._needs, self._jobs = flows, bursts, needs, jobs
        self._peer_link, self._probes = peer_link, probes
        self._interface_of, self._clock = interface_of, clock
        self._schedules = Schedules()

    def measure(self, policy: Policy, *, fresh_s: float) -> Measurements:
        """Measure the interfaces that we shape. Counters younger than `fresh_s` are not read again."""
        now_s = self._clock()
        flows = self._flows.samples(interface_of=self._interface_of, now_s=now_s)
        probes = self._probes.samples(now_s=now_s)
        bursts = self._bursts.current(now_s=now_s)
        needs = self._needs.current(now_s=now_s)
        received = self._traffic.received_bytes()
        wanted = any(entry.ingress for entry in policy.interfaces)
        senders = self._peer_link.senders(self._flows, wanted=wanted, interface_of=self._interface_of, now_s=now_s)
        leases = self._peer_link.leases(interface_of=self._interface_of)
        interfaces = []
        for entry in policy.interfaces:
            if entry.name in self._egress_trees.names:
                samples, age_s = self._egress_trees.read(entry.name, fresh_s=fresh_s)
                interfaces.append(
                    replace(
                        self._links.look(entry.name, now_s=now_s),
                        counters_age_s=age_s,
                        classes=samples,
                        flows=(*probes.get(entry.name, ()), *flows.get(entry.name, ())),
                        bursts=bursts.get(entry.name, ()),
                        needs=(*needs.get(entry.name, ()), *needs.get(EVERYWHERE, ())),
                        received_bytes=received.get(entry.name),
                        jobs=self._jobs.samples(entry.name, self._egress_trees.leaves(entry.name), now_s=now_s),
                        senders=senders.get(entry.name, ()),
                        destinations=self._egress_trees.destinations(entry.name),
                        leases=leases.get(entry.name, ()),
                        pace_bits_per_s=self._rate_watch.pace_bits_per_s(entry.name),
                        arriving=self._ingress_trees.read(entry.name),
                    )
                )
        return Measurements(interfaces=tuple(interfaces), schedules=self._schedules.now(policy.schedules))

    def with_links(self, policy: Policy, *, fresh_s: float) -> Measurements:
        """The same, and the links of interfaces that we do not shape yet. Leaves of jobs and leases keep theirs."""
        held, now_s = self.measure(policy, fresh_s=fresh_s), self._clock()
        links = (
            self._links.look(entry.name, now_s=now_s)
            for entry in policy.interfaces
            if entry.name not in self._egress_trees.names
        )
        return replace(held, interfaces=(*held.interfaces, *links))
