"""The broker of every simulated host: measures its own flows and classes, decides, and sets its shaper."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TextIO

import numpy as np
from msgspec.structs import replace
from numpy.typing import NDArray

from broker.law.decide import decide
from broker.law.recording import header_line, tick_line
from broker.law.state import State
from broker.model.leases import HELD_CLASS
from broker.model.values import (
    BrokerThere,
    Burst,
    ClassSample,
    DestinationSample,
    FlowSample,
    InterfaceSample,
    Measurements,
    SenderSample,
)
from broker.policy.types import CLASS_NAMES, Policy
from tools.simulate.fluid import PACKET_BITS, Ints, Network
from tools.simulate.leases import Leases

INTERFACE = "eth0"
CLOCKS_APART_S = -12_345.0
"""Two hosts' clocks: a one-way time is right but for a constant that nobody knows."""


class HostBroker:
    """One host's.

    Args:
        host: its number.
        policy: what the operator wants; its interface is put in the place of the policy's own. With `egress = "auto"`
            the operator names no rate, and the driver says `link_bits_per_s`.
        link_bits_per_s: what the file says of the host's link.
        addresses: of all hosts, by number.
        leases: what brokers ask of each other; None where they do not: then the way in is left alone.
        record: where each decision is written for `hive-qos replay`; None writes none.
    """

    def __init__(
        self, host: int, *, network: Network, policy: Policy, link_bits_per_s: int, addresses: Sequence[str],
        leases: Leases | None = None, record: TextIO | None = None,
    ) -> None:  # fmt: skip
        self.host, self._network, self._addresses, self._leases = host, network, addresses, leases
        named = policy.interfaces[0].egress_bits_per_s is not None
        entry = replace(policy.interfaces[0], name=INTERFACE, egress_bits_per_s=link_bits_per_s if named else None)
        entry = replace(entry, ingress=leases is not None, ingress_bits_per_s=link_bits_per_s if leases else None)
        self.policy, self._link_bits_per_s = replace(policy, interfaces=(entry,)), link_bits_per_s
        self.flows = np.flatnonzero(network.flows.host == host)
        stored = network.flows.traffic_class == CLASS_NAMES.index(HELD_CLASS)
        self._to = _grouped(network.flows.target, (network.flows.host == host) & stored)
        self._from = _grouped(network.flows.host, (network.flows.target == host) & stored)
        self._state = State()
        self._record = record
        if record is not None:
            record.write(header_line(policy=self.policy, state=self._state) + "\n")

    def tick(self, bursts: Sequence[Burst]) -> float | None:
        """Measure, decide, apply; in how many seconds it wants to decide again, where the next tick would be late."""
        now_s = self._network.now_s
        measurements = self._measure(bursts)
        decision = decide(now_s=now_s, state=self._state, measurements=measurements, policy=self.policy)
        if self._record is not None:
            self._record.write(tick_line(now_s=now_s, measurements=measurements, decision=decision) + "\n")
        self._state = decision.state
        (allocation,) = (entry for entry in decision.allocation.interfaces if entry.direction == "egress")
        shapers = self._network.shapers
        shapers.capacity[self.host] = allocation.capacity_bits_per_s
        for number, entry in enumerate(allocation.classes):
            shapers.rate[self.host, number] = entry.rate_bits_per_s
            shapers.ceil[self.host, number] = entry.ceil_bits_per_s
        if self._leases is not None:
            self._hold({entry.address: entry.ceil_bits_per_s for entry in allocation.destinations})
            self._leases.answer(self.host, decision.verdicts, now_s=now_s)
            self._leases.ask(self.host, decision.holds, now_s=now_s)
        return decision.again_s

    def _hold(self, ceils: Mapping[str, int]) -> None:
        """Let no more than its ceil leave towards an address, each connection its part; freely to all others."""
        for target, numbers in self._to.items():
            ceil = ceils.get(self._addresses[target])
            self._network.flows.held[numbers] = np.inf if ceil is None else ceil / len(numbers)

    def _measure(self, bursts: Sequence[Burst]) -> Measurements:
        network = self._network
        sent, backlog = network.shapers.sent[self.host], network.shapers.backlog[self.host]
        classes = tuple(
            ClassSample(name, int(sent[number] / 8), int(backlog[number] / 8))
            for number, name in enumerate(CLASS_NAMES)
        )
        received = int(network.received[self.host] / 8)
        flows = tuple(self._flow(int(number)) for number in self.flows)
        sample = InterfaceSample(INTERFACE, self._link_bits_per_s, 0.0, classes, flows, tuple(bursts), received)
        if self._leases is not None:
            leases = self._leases.of(self.host, now_s=network.now_s)
            sample = replace(sample, senders=self._senders(), destinations=self._destinations(), leases=leases)
        return Measurements((sample,))

    def _senders(self) -> tuple[SenderSample, ...]:
        """Who has sent storage to this host, by what arrived."""
        assert self._leases is not None
        network, found = self._network, []
        for source, numbers in self._from.items():
            bits = float(network.arrived[numbers].sum())
            if bits:
                address = self._addresses[source]
                verdict = self._leases.verdict(self.host, address)
                found.append(
                    SenderSample(
                        address,
                        HELD_CLASS,
                        received_bytes=int(bits / 8),
                        age_s=0.0,
                        rtt_s=float(network.flows.least_s[numbers].min()),
                        broker=BrokerThere.YES,
                        granted_bits_per_s=verdict.rate_bits_per_s if verdict is not None and verdict.granted else None,
                        refused=verdict is not None and not verdict.granted,
                    )
                )
        return tuple(found)

    def _destinations(self) -> tuple[DestinationSample, ...]:
        """The counters of the destinations that had a leaf of their own until now."""
        flows, found = self._network.flows, []
        for target, numbers in self._to.items():
            if np.isfinite(flows.held[numbers]).any():
                left = float((flows.sent[numbers] - flows.waiting[numbers]).sum())
                waits = float(flows.waiting[numbers].sum())
                found.append(DestinationSample(self._addresses[target], HELD_CLASS, int(left / 8), int(waits / 8)))
        return tuple(found)

    def _flow(self, number: int) -> FlowSample:
        flows = self._network.flows
        peer = self._addresses[int(flows.target[number])]
        traffic_class = CLASS_NAMES[int(flows.traffic_class[number])]
        report = traffic_class == "compute"
        return FlowSample(
            key=f"{traffic_class}-{number}/{peer}",
            peer=peer,
            traffic_class=traffic_class,
            source="report" if report else "tcp-info",
            age_s=0.0,
            rtt_s=float(flows.smooth_s[number]),
            rtt_latest_s=float(flows.latest_s[number]) if report else None,
            rtt_s_min=float(flows.least_s[number]),
            one_way_s=float(flows.way_s[number]) + CLOCKS_APART_S if report else None,
            one_way_age_s=float(flows.smooth_s[number]) / 2 if report else None,
            delivered_bytes=int(flows.delivered[number] / 8),
            sent_packets=int(flows.sent[number] / PACKET_BITS),
            lost_packets=int(np.ceil(flows.lost[number] / PACKET_BITS)),
        )


def _grouped(hosts: Ints, chosen: NDArray[np.bool_]) -> dict[int, Ints]:
    """The numbers of the chosen connections, by the host at an end of them."""
    numbers = np.flatnonzero(chosen)
    return {int(host): numbers[hosts[numbers] == host] for host in np.unique(hosts[numbers])}


def by_priority(policy: Policy) -> tuple[int, ...]:
    """The classes' numbers, the first served first."""
    order: Mapping[str, int] = {entry.name: entry.priority for entry in policy.classes}
    return tuple(sorted(range(len(CLASS_NAMES)), key=lambda number: (order[CLASS_NAMES[number]], number)))
