"""Two hosts that train with each other over a link whose rate changes both ways, in virtual time, each with the law.

    a ==changes== r === b    a and b all_reduce in bursts; a floods s, too; people at a send echoes to s
                  +==== s

What `fluid_link` cannot show and this can: acknowledgements, answers and echoes wait in the queue of the other
direction, behind the peer's own burst, and come all at once when it has gone; and the peer's broker has to find out
for itself. Steps of 2 ms; chunks of three packets. Nothing here knows the broker's law.
"""

from __future__ import annotations

import heapq
import random
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field

from msgspec.structs import replace

from broker.law.capacity.state import Phase
from broker.law.decide import decide
from broker.law.decision import Decision
from broker.law.recording import header_line, tick_line
from broker.law.state import State
from broker.model.values import Burst, ClassSample, FlowSample, InterfaceSample, Measurements
from broker.policy.types import CLASS_NAMES, Policy

STEP_S, TICK_S, ECHO_S = 0.002, 0.1, 0.02
PACKET_BYTES = 1_514
CHUNK_BYTES = 3 * PACKET_BYTES
ACK_BYTES, SMALL_BYTES = 90, 150
CLOCKS_APART_S = -12_345.0
STALL_S = (0.05, 0.15)
TRIP_S = 0.002
BUFFER_BYTES = 1_250_000


@dataclass
class Sender:
    """One connection: a window, what waits in its host, and what has been acknowledged.

    TCP counts a loss when it sends again, which while training goes first may be late; our transport when it finds it.
    Where `socket_bytes` are given, so much is handed to the kernel at once, and more when all of it has left: what is
    asked meanwhile waits for that, where no counter shows it, `asking`.
    """

    key: str
    peer: str
    traffic_class: str
    window_bytes: float
    local_bytes_max: int
    left_bytes: float
    socket_bytes: int = 0
    threshold_bytes: float = 1e12
    inflight_bytes: int = 0
    local_bytes: int = 0
    delivered_bytes: int = 0
    sent_packets: int = 0
    lost_packets: int = 0
    repeat_packets: int = 0
    latest_s: float = 0.0
    smooth_s: float | None = None
    least_s: float = 9.0
    recover_s: float = 0.0
    way: tuple[float, float] | None = None
    report: tuple[float, FlowSample] | None = None
    handed_bytes: int = 0
    asking: list[Item] = field(default_factory=list)

    def offer(self) -> int:
        if self.socket_bytes and self.handed_bytes >= self.socket_bytes:
            return 0
        room = min(self.window_bytes - self.inflight_bytes, self.local_bytes_max - self.local_bytes, CHUNK_BYTES)
        room = min(room, self.left_bytes)
        return int(room) if room >= PACKET_BYTES or 0 < room == self.left_bytes else 0

    def sent(self, size: int) -> None:
        count = max(1, size // PACKET_BYTES)
        again = min(count, self.repeat_packets)
        self.inflight_bytes += size
        self.local_bytes += size
        self.handed_bytes += size
        self.left_bytes -= size
        self.sent_packets += count
        self.lost_packets += again
        self.repeat_packets -= again

    def gone(self, size: int) -> None:
        self.local_bytes -= size
        if not self.local_bytes:
            self.handed_bytes = 0

    def acknowledged(self, size: int, sent_s: float, now_s: float) -> None:
        used = self.inflight_bytes >= 0.5 * self.window_bytes
        self.inflight_bytes -= size
        self.delivered_bytes += int(size / 1.035)
        self.latest_s = now_s - sent_s
        self.smooth_s = self.latest_s if self.smooth_s is None else self.smooth_s + (self.latest_s - self.smooth_s) / 8
        self.least_s = min(self.least_s, self.latest_s)
        if used:
            starting = self.window_bytes < self.threshold_bytes
            self.window_bytes += size if starting else 2 * PACKET_BYTES * size / self.window_bytes

    def lost(self, size: int, now_s: float) -> None:
        self.inflight_bytes -= size
        self.left_bytes += size
        if self.traffic_class == "storage":
            self.repeat_packets += max(1, size // PACKET_BYTES)
        else:
            self.lost_packets += max(1, size // PACKET_BYTES)
        if now_s >= self.recover_s:
            self.window_bytes = max(2.0 * PACKET_BYTES, 0.7 * self.window_bytes)
            self.threshold_bytes = self.window_bytes
            self.recover_s = now_s + (self.smooth_s or TRIP_S)


@dataclass
class Item:
    """Something in a queue: `arrive` is called where it comes out, `drop` where it found no room."""

    size: int
    arrive: Callable[[float], None]
    drop: Callable[[float], None] = lambda now_s: None
    sender: Sender | None = None


class Direction:
    """One direction of the link: a FIFO in front of a rate, then a delay."""

    def __init__(self) -> None:
        self.buffer_bytes = BUFFER_BYTES
        self.queue: deque[Item] = deque()
        self.bytes = 0
        self.credit = 0.0
        self.carried_bytes = 0
        self.coming: deque[tuple[float, Item]] = deque()

    def push(self, item: Item, now_s: float) -> None:
        if self.bytes + item.size > self.buffer_bytes:
            item.drop(now_s)
            return
        self.queue.append(item)
        self.bytes += item.size

    def step(self, rate: float, now_s: float) -> None:
        self.credit = min(self.credit, CHUNK_BYTES) + rate * STEP_S / 8
        while self.queue and self.credit >= self.queue[0].size:
            item = self.queue.popleft()
            self.credit -= item.size
            self.bytes -= item.size
            self.carried_bytes += item.size
            self.coming.append((now_s + TRIP_S / 2, item))
        while self.coming and self.coming[0][0] <= now_s:
            self.coming.popleft()[1].arrive(now_s)


class Host:
    """A host with its connections, its shaper in small, and the law."""

    def __init__(self, name: str, senders: list[Sender], *, policy: Policy, seed: int) -> None:
        self.name, self.senders = name, senders
        self.random = random.Random(seed)
        self.leaves: dict[str, deque[Item]] = {entry: deque() for entry in CLASS_NAMES}
        self.backlog = dict.fromkeys(CLASS_NAMES, 0)
        self.sent = dict.fromkeys(CLASS_NAMES, 0)
        self.tokens = {entry: [0.0, 0.0] for entry in CLASS_NAMES}
        self.root = 0.0
        self.received_bytes = 0
        self.policy, self.state = policy, State()
        self.lines = [header_line(policy=policy, state=self.state)]
        self.next_tick_s = TICK_S * self.random.random()
        self.next_report_s = TICK_S * self.random.random()
        self.again_s = 1e9
        self.decision: Decision | None = None
        self.rates: list[tuple[float, int]] = []
        self.reasons: list[tuple[float, str]] = []
        self.plan: dict[str, tuple[float, float]] = {}
        self.capacity = 0.0
        self.raised_s = 0.0
        self.reason = ""
        self.out = Direction()
        self.stalls = random.Random(seed + 77)
        self.stalled = (-1.0, -1.0)

    def reads_at(self, now_s: float, every_s: float) -> float:
        """When a program here gets to what arrives now: at once, unless the host is busy, for 50 to 150 ms a time."""
        while every_s and self.stalled[1] <= now_s:
            start_s = max(0.0, self.stalled[1]) + self.stalls.expovariate(1 / every_s)
            self.stalled = (start_s, start_s + self.stalls.uniform(*STALL_S))
            if start_s > now_s:
                break
        return self.stalled[1] if self.stalled[0] <= now_s < self.stalled[1] else now_s

    def stall(self, now_s: float) -> None:
        """Hold up what arrives from now on."""
        self.stalled = (now_s, now_s + self.stalls.uniform(*STALL_S))

    def enqueue(self, traffic_class: str, item: Item) -> None:
        self.leaves[traffic_class].append(item)
        self.backlog[traffic_class] += item.size

    def shape(self, now_s: float) -> None:
        """HTB in small: each class its rate, then the rest by priority up to the ceil."""
        self.root = min(self.root, CHUNK_BYTES) + self.capacity * STEP_S / 8
        for name, tokens in self.tokens.items():
            for part in (0, 1):
                fresh = self.plan[name][part] * STEP_S / 8
                tokens[part] = max(-4.0 * CHUNK_BYTES, min(tokens[part] + fresh, fresh + CHUNK_BYTES))
        for part in (0, 1):
            for name in ("control", "compute", "other", "storage"):
                tokens, leaf = self.tokens[name], self.leaves[name]
                while leaf and self.root > 0 and min(tokens[part], tokens[1]) > 0:
                    item = leaf.popleft()
                    self.root -= item.size
                    tokens[0] -= item.size
                    tokens[1] -= item.size
                    self.backlog[name] -= item.size
                    self.sent[name] += item.size
                    if item.sender is not None:
                        item.sender.gone(item.size)
                    self.out.push(item, now_s)

    def decide(self, bursts: tuple[Burst, ...], now_s: float) -> None:
        classes = tuple(ClassSample(name, self.sent[name], self.backlog[name]) for name in CLASS_NAMES)
        flows = tuple(
            replace(sender.report[1], age_s=now_s - sender.report[0]) for sender in self.senders if sender.report
        )
        name = self.policy.interfaces[0].name
        measured = Measurements((InterfaceSample(name, None, 0.0, classes, flows, bursts, self.received_bytes),))
        decision = decide(now_s=now_s, state=self.state, measurements=measured, policy=self.policy)
        self.lines.append(tick_line(now_s=now_s, measurements=measured, decision=decision))
        self.state, self.decision = decision.state, decision
        (interface,) = decision.allocation.interfaces
        self.capacity, self.reason = interface.capacity_bits_per_s, interface.capacity_reason.code
        self.plan = {entry.name: (entry.rate_bits_per_s, entry.ceil_bits_per_s) for entry in interface.classes}
        self.again_s = 1e9 if decision.again_s is None else now_s + decision.again_s
        self.rates.append((now_s, interface.capacity_bits_per_s))
        self.reasons.append((now_s, self.reason))
        capacity = self.state.interfaces[0].capacity
        if capacity and capacity.estimate.phase in (Phase.PROBING, Phase.FORGETTING):
            self.raised_s = capacity.estimate.changed_s


@dataclass
class Changing:
    """The whole of it.

    `rate` gives the link's rate at a time, both ways; `buffer_bytes` what fits in front of it; `window_bytes` what
    training may have on its way; `burst_bytes` of an all_reduce, in two parts of which the second waits for the peer's
    first; `noise_s` on what clocks say; `stall_every_s` how long it is from one time to the next, on average, that a
    busy host holds up what arrives, for 50 to 150 ms; `stalls_after_probe_s` how long after either host tries more both
    do, too, from `stalls_from_s` on; `socket_bytes` what training's sockets take at once, as much as it likes if 0.
    """

    policy: Policy
    rate: Callable[[float], float]
    buffer_bytes: int = BUFFER_BYTES
    window_bytes: float = 1_200_000.0
    burst_bytes: int = 2_600_000
    parts: int = 1
    think_s: float = 0.14
    flows: int = 4
    announce: bool = True
    noise_s: float = 0.01
    stall_every_s: float = 0.0
    stalls_after_probe_s: tuple[float, ...] = ()
    stalls_from_s: float = 0.0
    socket_bytes: int = 0
    shift_s: float = 0.0
    seed: int = 1
    now_s: float = 0.0
    echoes: list[tuple[float, float]] = field(default_factory=list)
    queues: list[tuple[float, float, float]] = field(default_factory=list)
    carried: list[tuple[float, int]] = field(default_factory=list)
    steps: list[tuple[float, float]] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.random = random.Random(self.seed)
        quic = ("10.0.0.2", "10.0.0.1")
        ranks = [
            Sender(f"s-1/{peer}:4242", peer, "compute", self.window_bytes, 47_000, 0.0, self.socket_bytes)
            for peer in quic
        ]
        flood = [
            Sender(f"tcp/{port}/10.0.0.3", "10.0.0.3", "storage", 15_140.0, 12_000, 1e15)
            for port in range(873, 873 + self.flows)
        ]
        self.a = Host("a", [ranks[0], *flood], policy=self.policy, seed=self.seed)
        self.b = Host("b", [ranks[1]], policy=self.policy, seed=self.seed + 1000)
        for host in (self.a, self.b):
            host.out.buffer_bytes = self.buffer_bytes
        self.step_number = 0
        self.part = 0  # 0: computes; 1, 2: parts of the all_reduce
        self.wake_s = 1.0
        self.began_s = 0.0
        self.periods: list[float] = []
        self.later: list[tuple[float, int, Callable[[float], None]]] = []
        self.held_up = 0

    def run(self, until_s: float) -> Changing:
        for host in (self.a, self.b):
            host.decide((), self.now_s)
        steps = 0
        while self.now_s < until_s:
            self.now_s += STEP_S
            steps += 1
            while self.later and self.later[0][0] <= self.now_s:
                heapq.heappop(self.later)[2](self.now_s)
            changed = self._train()
            for host, other in ((self.a, self.b), (self.b, self.a)):
                self._offer(host, other)
                host.shape(self.now_s)
                host.out.step(self.rate(self.now_s), self.now_s)
            if steps % int(ECHO_S / STEP_S) == 0:
                self._echo()
            for host, other in ((self.a, self.b), (self.b, self.a)):
                if self.now_s >= host.next_report_s:
                    host.next_report_s += TICK_S
                    self._report(host, other)
                if self.now_s >= host.next_tick_s:
                    host.next_tick_s += TICK_S
                    self._decide(host)
                elif changed or self.now_s >= host.again_s:
                    self._decide(host)
            if steps % 10 == 0:
                rate = self.rate(self.now_s) / 8
                self.queues.append((self.now_s, self.a.out.bytes / rate, self.b.out.bytes / rate))
                self.carried.append((self.now_s, self.a.out.carried_bytes))
        return self

    def _decide(self, host: Host) -> None:
        self._tcp_info(host)
        raised_s = host.raised_s
        host.decide(self._bursts(host), self.now_s)
        if self.now_s >= self.stalls_from_s and host.raised_s != raised_s:
            for entry in (self.a, self.b):
                for after_s in self.stalls_after_probe_s:
                    self._later(self.now_s + after_s, entry.stall)

    def _train(self) -> bool:
        ranks = [self.a.senders[0], self.b.senders[0]]
        if self.part == 0:
            if self.now_s < self.wake_s:
                return False
            if self.began_s:
                self.periods.append(self.now_s - self.began_s)
            self.began_s, self.part = self.now_s, 1
            self.step_number += 1
        elif all(rank.left_bytes <= 0 and rank.inflight_bytes <= 0 for rank in ranks):
            self.part += 1
            if self.part > self.parts:
                self.steps.append((self.began_s, self.now_s - self.began_s + self.think_s))
                self.part, self.wake_s = 0, self.now_s + self.think_s * self.random.uniform(0.97, 1.03)
                return True
        else:
            return False
        for rank in ranks:
            rank.left_bytes = self.burst_bytes / self.parts
        return self.part == 1

    def _bursts(self, host: Host) -> tuple[Burst, ...]:
        if not self.part or not self.announce:
            return ()
        age_s = self.now_s - self.began_s
        next_s = self.periods[-1] - age_s if self.periods else None
        peer = host.senders[0].peer
        return (
            Burst("J", self.step_number, self.burst_bytes, age_s, 5.0 - age_s, next_s, 0, ((peer, self.burst_bytes),)),
        )

    def _offer(self, host: Host, other: Host) -> None:
        for sender in host.senders:
            while size := sender.offer():
                sender.sent(size)
                host.enqueue(sender.traffic_class, self._data(host, other, sender, size, self.now_s))
                if sender.handed_bytes == size:  # behind what had been tried when there was no room
                    self._ask(host, sender)
            if not sender.handed_bytes:
                self._ask(host, sender)

    def _ask(self, host: Host, sender: Sender) -> None:
        for question in sender.asking:
            host.enqueue("compute", question)
        sender.asking.clear()

    def _data(self, host: Host, other: Host, sender: Sender, size: int, sent_s: float) -> Item:
        def acknowledged(now_s: float) -> None:
            host.received_bytes += ACK_BYTES
            sender.acknowledged(size, sent_s, now_s)

        def arrive(now_s: float) -> None:
            if sender.traffic_class != "compute":
                other.out.push(Item(ACK_BYTES, acknowledged), now_s)
                return
            other.received_bytes += size
            self._read(other, lambda at_s: other.out.push(Item(ACK_BYTES, acknowledged), at_s), now_s)

        def drop(now_s: float) -> None:
            other.out.push(Item(ACK_BYTES, lambda at_s: sender.lost(size, at_s)), now_s)

        return Item(size, arrive, drop, sender)

    def _echo(self) -> None:
        asked_s = self.now_s
        back = Item(SMALL_BYTES, lambda now_s: self.echoes.append((asked_s, now_s - asked_s - TRIP_S)))
        self.a.out.push(Item(SMALL_BYTES, lambda now_s: self.b.out.push(back, now_s)), self.now_s)

    def _read(self, host: Host, then: Callable[[float], None], now_s: float) -> None:
        at_s = host.reads_at(now_s, self.stall_every_s)
        if at_s <= now_s:
            then(now_s)
        else:
            self._later(at_s, then)

    def _later(self, at_s: float, then: Callable[[float], None]) -> None:
        self.held_up += 1
        heapq.heappush(self.later, (at_s, self.held_up, then))

    def _report(self, host: Host, other: Host) -> None:
        """What a session reports, and its question to the peer's clock, which waits in the host's own queue, too."""
        rank = host.senders[0]
        way_asked_s, way_s = rank.way or (None, None)
        if rank.smooth_s is not None:
            sample = FlowSample(
                key=rank.key, peer=rank.peer, traffic_class="compute", source="report", age_s=0.0,
                rtt_s=rank.smooth_s, rtt_latest_s=rank.latest_s, rtt_s_min=rank.least_s,
                delivered_bytes=rank.delivered_bytes, sent_packets=rank.sent_packets, lost_packets=rank.lost_packets,
                application_limited=rank.left_bytes <= 0, one_way_s=way_s,
                one_way_age_s=None if way_asked_s is None else self.now_s - way_asked_s,
            )  # fmt: skip
            rank.report = (self.now_s, sample)
        asked_s, late_s = self.now_s, self.noise_s * self.random.random() ** 2

        def answered(way: tuple[float, float]) -> Callable[[float], None]:
            def take(now_s: float) -> None:
                if rank.way is None or way[0] > rank.way[0]:
                    rank.way = way

            return take

        def read(now_s: float) -> None:
            way = (asked_s, now_s + late_s - asked_s + CLOCKS_APART_S)
            other.out.push(Item(SMALL_BYTES, answered(way)), now_s)

        def arrive(now_s: float) -> None:
            self._read(other, read, now_s)

        rank.asking.append(Item(SMALL_BYTES, arrive))
        if not rank.socket_bytes:
            self._ask(host, rank)

    def _tcp_info(self, host: Host) -> None:
        for sender in host.senders[1:]:
            if sender.smooth_s is None:
                continue
            sample = FlowSample(
                key=sender.key, peer=sender.peer, traffic_class="storage", source="tcp-info", age_s=0.0,
                rtt_s=sender.smooth_s, rtt_s_min=sender.least_s, delivered_bytes=sender.delivered_bytes,
                sent_packets=sender.sent_packets, lost_packets=sender.lost_packets,
            )  # fmt: skip
            sender.report = (self.now_s, sample)
