"""The broker of every simulated host: measures its own flows and classes, decides, and sets its shaper."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import TextIO

import numpy as np

from broker.decide import decide
from broker.model import Burst, ClassSample, Decision, FlowSample, InterfaceSample, Measurements
from broker.policy import CLASS_NAMES, Policy
from broker.record import header_line, tick_line
from broker.state import State
from tools.simulate.fluid import PACKET_BITS, Network

INTERFACE = "eth0"
CLOCKS_APART_S = -12_345.0
"""Two hosts' clocks: a one-way time is right but for a constant that nobody knows."""


class HostBroker:
    """One host's.

    Args:
        host: its number.
        policy: what the operator wants; its interface is put in the place of the policy's own.
        link_bits_per_s: what the file says of the host's link.
        addresses: of all hosts, by number.
        record: where each decision is written for `hive-qos replay`; None writes none.
    """

    def __init__(
        self, host: int, *, network: Network, policy: Policy, link_bits_per_s: int, addresses: Sequence[str],
        record: TextIO | None = None,
    ) -> None:  # fmt: skip
        self.host, self._network, self._addresses = host, network, addresses
        entry = replace(policy.interfaces[0], name=INTERFACE, egress_bits_per_s=link_bits_per_s)
        self.policy = replace(policy, interfaces=(entry,))
        self.flows = np.flatnonzero(network.flows.host == host)
        self._state = State()
        self._record = record
        if record is not None:
            record.write(header_line(policy=self.policy, state=self._state) + "\n")
        self.decision: Decision | None = None

    def tick(self, bursts: Sequence[Burst]) -> None:
        """Measure, decide, apply."""
        now_s = self._network.now_s
        measurements = self._measure(bursts)
        decision = decide(now_s=now_s, state=self._state, measurements=measurements, policy=self.policy)
        if self._record is not None:
            self._record.write(tick_line(now_s=now_s, measurements=measurements, decision=decision) + "\n")
        self._state, self.decision = decision.state, decision
        (allocation,) = (entry for entry in decision.allocation.interfaces if entry.direction == "egress")
        shapers = self._network.shapers
        shapers.capacity[self.host] = allocation.capacity_bits_per_s
        for number, entry in enumerate(allocation.classes):
            shapers.rate[self.host, number] = entry.rate_bits_per_s
            shapers.ceil[self.host, number] = entry.ceil_bits_per_s

    def _measure(self, bursts: Sequence[Burst]) -> Measurements:
        network = self._network
        sent, backlog = network.shapers.sent[self.host], network.shapers.backlog[self.host]
        classes = tuple(
            ClassSample(name, int(sent[number] / 8), int(backlog[number] / 8))
            for number, name in enumerate(CLASS_NAMES)
        )
        received = int(network.received[self.host] / 8)
        flows = tuple(self._flow(int(number)) for number in self.flows)
        return Measurements((InterfaceSample(INTERFACE, None, 0.0, classes, flows, tuple(bursts), received),))

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


def by_priority(policy: Policy) -> tuple[int, ...]:
    """The classes' numbers, the first served first."""
    order: Mapping[str, int] = {entry.name: entry.priority for entry in policy.classes}
    return tuple(sorted(range(len(CLASS_NAMES)), key=lambda number: (order[CLASS_NAMES[number]], number)))
