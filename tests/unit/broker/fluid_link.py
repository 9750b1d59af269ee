"""A host in virtual time: senders with congestion windows, a priority shaper, and a slower link with a FIFO behind it.

Good enough to close the loop of the capacity estimator: queues grow and drain, losses halve windows, round trips lag,
reports come late, noisy or not at all. Steps of 5 ms; chunks of at most two packets. Nothing here knows the broker's
law.
"""

from __future__ import annotations

import random
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from msgspec.structs import replace

from broker.law.decision import Decision
from broker.model.values import Burst, ClassSample, FlowSample, InterfaceSample, Measurements
from broker.policy.types import CLASS_NAMES

STEP_S = 0.005
PACKET_BYTES = 1_514
CLOCKS_APART_S = -12_345.0
CHUNK_BYTES = 2 * PACKET_BYTES


@dataclass
class Sender:
    """One connection. Greedy with `left_bytes` None; else it sends what is left, and counts acknowledged wire bytes."""

    key: str
    peer: str
    traffic_class: str
    round_trip_s: float
    beta: float
    growth: float
    local_bytes_max: int
    header: float
    left_bytes: int | None = 0
    window_bytes: float = 15_140.0
    threshold_bytes: float = 1e12
    inflight_bytes: int = 0
    local_bytes: int = 0
    delivered_bytes: int = 0
    sent_packets: int = 0
    lost_packets: int = 0
    latest_s: float | None = None
    smooth_s: float | None = None
    least_s: float | None = None
    way_s: float | None = None
    way_sent_s: float = 0.0
    recover_s: float = 0.0
    events: deque[tuple[float, int, float, bool]] = field(default_factory=deque)  # due, bytes, sent at, lost

    def acknowledge(self, now_s: float) -> None:
        while self.events and self.events[0][0] <= now_s:
            due_s, size, sent_s, lost = self.events.popleft()
            self.inflight_bytes -= size
            if lost:
                self.lost_packets += max(1, size // PACKET_BYTES)
                if self.left_bytes is not None:
                    self.left_bytes += size
                if now_s >= self.recover_s:
                    self.window_bytes = max(2 * PACKET_BYTES, self.window_bytes * self.beta)
                    self.threshold_bytes = self.window_bytes
                    self.recover_s = now_s + (self.smooth_s or self.round_trip_s)
                continue
            self.delivered_bytes += int(size / self.header)
            sample_s = due_s - sent_s
            self.latest_s = sample_s
            self.smooth_s = sample_s if self.smooth_s is None else self.smooth_s + (sample_s - self.smooth_s) / 8
            self.least_s = sample_s if self.least_s is None else min(self.least_s, sample_s)
            if self.inflight_bytes + size < 0.5 * self.window_bytes:
                continue  # a window that is not used does not grow
            grown = (
                size
                if self.window_bytes < self.threshold_bytes
                else self.growth * PACKET_BYTES * size / self.window_bytes
            )
            self.window_bytes += grown

    def offer(self) -> int:
        room = min(int(self.window_bytes) - self.inflight_bytes, self.local_bytes_max - self.local_bytes, CHUNK_BYTES)
        if self.left_bytes is not None:
            room = min(room, self.left_bytes)
        return room if room >= PACKET_BYTES or (self.left_bytes is not None and 0 < room == self.left_bytes) else 0


def quic(peer: str = "10.0.0.2", **changes: Any) -> Sender:
    return Sender(f"s-1/{peer}:4242", peer, "compute", 0.009, 0.5, 1.0, 212_992, 1.035, 0, **changes)


def tcp(peer: str = "10.0.0.3", *, port: int = 873, greedy: bool = True) -> Sender:
    return Sender(f"tcp/{port}/{peer}", peer, "storage", 0.010, 0.7, 3.0, 24_000, 1.0456, None if greedy else 0)


@dataclass
class World:
    """The host, its shaper and the link behind. `rate` gives the link's rate at a time; `buffer_bytes` its FIFO.

    `foretell`: announcements say when the next burst is due, by the last period, as the transport does. `prompt`: who
    decides is called within 10 ms of a burst's begin or end, and when the last decision asked for it, as the daemon is.
    `exact`: a class gets its rate and ceil to the byte, by token buckets; else up to a chunk more each step, which is
    much at low rates.
    """

    senders: list[Sender]
    rate: Callable[[float], float]
    buffer_bytes: int = 500_000
    burst_bytes: int = 4_000_000
    think_s: float = 0.55
    training: bool = True
    announce: bool = True
    foretell: bool = False
    prompt: bool = False
    exact: bool = False
    ask: bool = True
    tcp_every_s: float = 0.1
    report_lost: float = 0.05
    jitter_s: float = 0.0
    spike_s: float = 0.0
    peer_queue_s: float = 0.0
    reverse_queue_s: float = 0.0
    silent_from_s: float = 1e9
    paused: Callable[[float], bool] = lambda at_s: False
    seed: int = 1
    now_s: float = 0.0
    step_number: int = 0
    steps: list[tuple[float, float]] = field(default_factory=list)  # start of burst, duration
    rates: list[tuple[float, int]] = field(default_factory=list)
    queues: list[tuple[float, float]] = field(default_factory=list)
    decisions: list[Decision] = field(default_factory=list)
    decided_s: list[float] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.random = random.Random(self.seed)
        self.leaves: dict[str, deque[tuple[Sender, int, float]]] = {name: deque() for name in CLASS_NAMES}
        self.fifo: deque[tuple[Sender, int, float]] = deque()
        self.fifo_bytes = 0
        self.sent = dict.fromkeys(CLASS_NAMES, 0)
        self.plan = dict.fromkeys(CLASS_NAMES, (0.0, 1000000000000.0))
        self.capacity = 1e12
        self.credit_link = 0.0
        self.credit_root = 0.0
        self.burst_at_s: float | None = None
        self.think_until_s = self.think_s
        self.again_at_s = 1e9
        self.tokens = {name: [0.0, 0.0] for name in CLASS_NAMES}
        self.samples: dict[str, tuple[float, FlowSample]] = {}
        self.received = 0.0
        self.reverse_s = 0.0

    def run(self, until_s: float, tick: Callable[[World], None], *, tick_s: float = 0.1) -> None:
        next_tick_s = self.now_s + tick_s
        under_way = self.burst_at_s
        while self.now_s < until_s:
            self.now_s += STEP_S
            self._train()
            self._reverse()
            for sender in self.senders:
                sender.acknowledge(self.now_s)
                while not self.paused(self.now_s) and (size := sender.offer()):
                    sender.inflight_bytes += size
                    sender.local_bytes += size
                    sender.sent_packets += max(1, size // PACKET_BYTES)
                    if sender.left_bytes is not None:
                        sender.left_bytes -= size
                    self.leaves[sender.traffic_class].append((sender, size, self.now_s))
            self._shape()
            self._carry()
            if self.now_s >= next_tick_s:
                next_tick_s += tick_s
                self._sample()
                tick(self)
                self.rates.append((self.now_s, int(self.capacity)))
                self.queues.append((self.now_s, self.fifo_bytes * 8 / self.rate(self.now_s)))
            elif self.prompt and (under_way != self.burst_at_s or self.now_s >= self.again_at_s):
                tick(self)
            under_way = self.burst_at_s

    def apply(self, decision: Decision) -> None:
        (interface,) = decision.allocation.interfaces
        self.capacity = interface.capacity_bits_per_s
        self.plan = {entry.name: (entry.rate_bits_per_s, entry.ceil_bits_per_s) for entry in interface.classes}
        self.again_at_s = 1e9 if decision.again_s is None else self.now_s + decision.again_s
        self.decisions.append(decision)
        self.decided_s.append(self.now_s)

    def measurements(self) -> Measurements:
        classes = tuple(
            ClassSample(name, self.sent[name], sum(size for _, size, _ in self.leaves[name])) for name in CLASS_NAMES
        )
        flows = tuple(replace(sample, age_s=self.now_s - at_s) for at_s, sample in self.samples.values())
        return Measurements((InterfaceSample("a", None, 0.0, classes, flows, self._bursts(), int(self.received)),))

    def _bursts(self) -> tuple[Burst, ...]:
        if self.burst_at_s is None or not self.announce:
            return ()
        age_s = self.now_s - self.burst_at_s
        next_s = None
        if self.foretell and len(self.steps) > 1:
            next_s = self.burst_at_s + self.burst_at_s - self.steps[-1][0] - self.now_s
        return (Burst("J", self.step_number, self.burst_bytes, age_s, 1.0 - age_s, next_s),)

    def _train(self) -> None:
        if not self.training:
            return
        worker = self.senders[0]
        if self.burst_at_s is None and self.now_s >= self.think_until_s and not self.paused(self.now_s):
            worker.left_bytes = self.burst_bytes
            self.burst_at_s = self.now_s
            self.step_number += 1
        elif self.burst_at_s is not None and worker.left_bytes == 0 and worker.inflight_bytes <= 0:
            self.steps.append((self.burst_at_s, self.now_s - self.burst_at_s))
            self.burst_at_s = None
            self.think_until_s = self.now_s + self.think_s

    def _reverse(self) -> None:
        """The peer sends as long as we do; a queue of `reverse_queue_s` towards us comes and goes within 0.2 s."""
        sending = self.burst_at_s is not None
        self.received += (self.rate(self.now_s) * 0.9 if sending else 300_000) * STEP_S / 8
        change_s = self.reverse_queue_s * STEP_S / 0.2
        self.reverse_s = min(self.reverse_queue_s, max(0.0, self.reverse_s + (change_s if sending else -change_s)))

    def _shape(self) -> None:
        """HTB in small: each class its rate, then the rest by priority up to the ceil."""
        self.credit_root += self.capacity * STEP_S / 8
        for name, tokens in self.tokens.items():
            for part in (0, 1):
                fresh = self.plan[name][part] * STEP_S / 8
                tokens[part] = max(-4.0 * CHUNK_BYTES, min(tokens[part] + fresh, fresh + CHUNK_BYTES))
        order = [name for name in ("control", "compute", "other", "storage") if self.leaves[name]]
        for part in (0, 1):
            for name in order:
                allowed = self._allowed(name, part)
                while self.leaves[name] and allowed > 0 and self.credit_root > 0:
                    sender, size, sent_s = self.leaves[name].popleft()
                    allowed -= size
                    self.credit_root -= size
                    self.tokens[name][0] -= size
                    self.tokens[name][1] -= size
                    self.sent[name] += size
                    sender.local_bytes -= size
                    self._enqueue(sender, size, sent_s)
        self.credit_root = min(self.credit_root, 2 * PACKET_BYTES)

    def _allowed(self, name: str, part: int) -> float:
        """Bytes that a class may send now by its rate (0) or its ceil (1); what it owes by either counts for both."""
        fresh = self.plan[name][part] * STEP_S / 8
        if not self.exact:
            return fresh + PACKET_BYTES * self.random.random()
        return min(self.tokens[name][part], self.tokens[name][1])

    def _enqueue(self, sender: Sender, size: int, sent_s: float) -> None:
        if self.fifo_bytes + size > self.buffer_bytes:
            queue_s = self.fifo_bytes * 8 / self.rate(self.now_s)
            sender.events.append((self.now_s + sender.round_trip_s + queue_s, size, sent_s, True))
            return
        self.fifo.append((sender, size, sent_s))
        self.fifo_bytes += size

    def _carry(self) -> None:
        self.credit_link += self.rate(self.now_s) * STEP_S / 8
        while self.fifo and self.credit_link >= self.fifo[0][1]:
            sender, size, sent_s = self.fifo.popleft()
            self.credit_link -= size
            self.fifo_bytes -= size
            behind_s = self.peer_queue_s * self.random.random() if sender.traffic_class == "compute" else 0.0
            noise_s = self.jitter_s * self.random.random()
            due_s = self.now_s + sender.round_trip_s + behind_s + noise_s + self.reverse_s
            if sender.events:
                due_s = max(due_s, sender.events[-1][0])
            sender.way_s = self.now_s + sender.round_trip_s / 2 + noise_s - sent_s + CLOCKS_APART_S
            sender.way_sent_s = sent_s
            sender.events.append((due_s, size, sent_s, False))
        if not self.fifo:
            self.credit_link = 0.0

    def _sample(self) -> None:
        spike_s = self.spike_s if self.random.random() < 0.03 else 0.0
        for sender in self.senders:
            due = sender.traffic_class == "compute" or (
                self.now_s - self.samples.get(sender.key, (-9.0, None))[0] >= self.tcp_every_s - 0.01
            )
            if not due or sender.smooth_s is None or self.now_s > self.silent_from_s:
                continue
            if self.random.random() < self.report_lost:
                continue
            report = sender.traffic_class == "compute"
            sample = FlowSample(
                key=sender.key,
                peer=sender.peer,
                traffic_class=sender.traffic_class,
                source="report" if report else "tcp-info",
                age_s=0.0,
                rtt_s=sender.smooth_s + (spike_s / 8 if report else spike_s),
                rtt_latest_s=(sender.latest_s or 0.0) + spike_s if report else None,
                rtt_s_min=sender.least_s,
                delivered_bytes=sender.delivered_bytes,
                sent_packets=sender.sent_packets,
                lost_packets=sender.lost_packets,
                one_way_s=(sender.way_s or 0.0) + spike_s if report and self.ask and sender.way_s is not None else None,
                one_way_age_s=self.now_s - sender.way_sent_s if report and self.ask else None,
            )
            self.samples[sender.key] = (self.now_s - 0.02 * self.random.random(), sample)
