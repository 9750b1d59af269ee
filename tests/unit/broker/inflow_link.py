"""A link towards a host in virtual time: a training peer and storage hosts with faster links meet in one FIFO.

A step is a pause and a burst that the host announces; it sends as much as comes. Storage takes what its holds leave
it, and without holds as much as keeps the FIFO full; or, with a window, what that leaves it. Where the decision shapes
what arrives, storage passes a second FIFO, the IFB's. Chunks of a millisecond. Nothing here knows the broker's law.
"""

from __future__ import annotations

import random
from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from broker.law.decide import decide
from broker.law.decision import Decision
from broker.law.state import State
from broker.measure.rate_watch import LOOK_S, REPORTED_LOOKS
from broker.model.values import BrokerThere, Burst, ClassSample, FlowSample, InterfaceSample, Measurements, SenderSample
from broker.policy.types import CLASS_NAMES, Policy

STEP_S = 0.001
WIRE = 1.0456
CLOCKS_APART_S = 1_234.5
QUIET_S = 0.05
QUEUE_S = 0.02
"""How long a program is quiet before it says that its burst is over."""
PACKET_BITS, FLOWS = 1514 * 8, 4
HERE_S, HERE_BITS_MIN = 0.05, 128 * 8 * 1024
"""What storage's leaf of an IFB holds."""


@dataclass
class Storage:
    """One storage host: `wants_bits_per_s` at most. With `window_bits` what it has on its way is bounded: the bound
    grows by `FLOWS` packets a round trip, and falls to 0.7 with a loss."""

    address: str
    wants_bits_per_s: float = 1e9
    from_s: float = 0.0
    broker: BrokerThere = BrokerThere.YES
    held: deque[tuple[float, float]] = field(default_factory=deque)  # (in force from, rate)
    rate_bits_per_s: float | None = None
    arrived_bits: float = 0.0
    window_bits: float | None = None
    lost: bool = False
    blamed_s: float = 0.0

    def breathes(self, now_s: float, trip_s: float) -> float:
        """What its window lets it send now."""
        if self.window_bits is None:
            return 1e12
        if self.lost and now_s >= self.blamed_s + trip_s:
            self.window_bits, self.blamed_s = max(PACKET_BITS, 0.7 * self.window_bits), now_s
        elif not self.lost:
            self.window_bits += FLOWS * PACKET_BITS * STEP_S / trip_s
        self.lost = False
        return self.window_bits / trip_s

    def sends(self, now_s: float) -> float:
        while self.held and self.held[0][0] <= now_s:
            self.rate_bits_per_s = self.held.popleft()[1]
        if now_s < self.from_s:
            return 0.0
        return min(self.wants_bits_per_s, self.rate_bits_per_s or 1e12)


@dataclass
class Inflow:
    """The host, the way to it, and the loop that closes over both."""

    policy: Policy
    senders: list[Storage]
    link_bits_per_s: float = 100e6
    buffer_s: float = 0.1
    pause_s: float = 0.2
    burst_bytes: int = 4_000_000
    comes: Callable[[int], float] = lambda step: 1.0  # the part of an announced burst that comes
    pace_bits_per_s: float = 100e6
    grows_per_s: float = 0.0  # training's window, and so its pace, while it sends and no queue stands; halved by one
    one_way_s: float = 0.002
    holds_take_s: float = 0.008
    controlled: bool = True
    deadline_s: float = 1.0
    announces: bool = True
    beside: Callable[[float], tuple[Burst, ...]] = lambda now_s: ()  # what others announce, who send nothing
    changes: tuple[tuple[float, float], ...] = ()  # (when, what the link carries from then on)
    reported_bits_per_s: float | None = None  # what the driver says of the link
    clocks: bool = True  # whether the transport says how long packets take towards us
    seed: int = 1
    now_s: float = 0.0
    decisions: list[Decision] = field(default_factory=list)
    steps: list[float] = field(default_factory=list)
    begun: list[float] = field(default_factory=list)
    storage_bits: float = 0.0
    training_bits: float = 0.0
    delay_s: float = 0.0  # of the FIFO, now
    delays: list[tuple[float, float]] = field(default_factory=list)
    here_s: float = 0.0  # how long storage waits in the IFB, now
    _here: deque[tuple[Storage, float]] = field(default_factory=deque)
    _passed_bits: float = 0.0
    _rate_watch: list[tuple[float, float]] = field(
        default_factory=list
    )  # (when, bits that had left), as the daemon looks
    _looks: tuple[bool, int] = (True, 0)  # rising or falling, and how many looks in a row found it so

    def run(self, until_s: float) -> Inflow:
        noise = random.Random(self.seed)
        changes = deque(self.changes)
        state = State()
        fifo: deque[tuple[float, list[float]]] = deque()
        queued = came = 0.0
        left = 0.0
        step, pause_until_s, step_at_s = 0, self.pause_s, 0.0
        burst_s: float | None = None
        quiet_from_s: float | None = None
        due_s = next_tick_s = 0.0
        while self.now_s < until_s:
            self.now_s += STEP_S
            now_s = self.now_s
            if changes and now_s >= changes[0][0]:
                self.link_bits_per_s = changes.popleft()[1]
            urgent = False
            if burst_s is None and now_s >= pause_until_s:
                if quiet_from_s is not None:  # the last burst's end is found out late
                    quiet_from_s = None
                step, burst_s = step + 1, now_s
                left = self.burst_bytes * 8 * WIRE * self.comes(step)
                self.begun.append(now_s)
                urgent = self.announces
            if quiet_from_s is not None and now_s >= quiet_from_s + QUIET_S:
                quiet_from_s, urgent = None, self.announces
            # what arrives at the FIFO in this millisecond
            offered = [min(left, self.pace_bits_per_s * STEP_S)] if burst_s is not None else [0.0]
            trip_s = 2 * self.one_way_s + self.delay_s + self.here_s
            offered += [min(sender.sends(now_s), sender.breathes(now_s, trip_s)) * STEP_S for sender in self.senders]
            room = self.buffer_s * self.link_bits_per_s - queued + self.link_bits_per_s * STEP_S
            part = min(1.0, room / max(1.0, sum(offered)))
            chunk = [bits * part for bits in offered]
            for sender in self.senders if part < 1.0 else ():
                sender.lost = True
            if sum(chunk):
                fifo.append((sum(chunk), chunk))
                queued += sum(chunk)
            left -= chunk[0]
            # what leaves it
            budget = self.link_bits_per_s * STEP_S
            while fifo and budget > 1e-9:
                total, parts = fifo[0]
                share = min(1.0, budget / total)
                gone = [bits * share for bits in parts]
                budget -= total * share
                queued -= total * share
                came += total * share
                self.training_bits += gone[0]
                for sender, bits in zip(self.senders, gone[1:], strict=True):
                    self._here.append((sender, bits))
                if share >= 1.0:
                    fifo.popleft()
                else:
                    fifo[0] = (total * (1 - share), [bits * (1 - share) for bits in parts])
            self._pass_on()
            self.delay_s = queued / self.link_bits_per_s
            self.delays.append((now_s, self.delay_s))
            if self.grows_per_s and burst_s is not None and left > 1:
                self._follow_the_queue()
            if burst_s is not None and left <= 1 and not any(parts[0] > 0.5 for _, parts in fifo):
                self.steps.append(now_s - step_at_s)
                step_at_s = now_s
                burst_s, pause_until_s, quiet_from_s = None, now_s + self.pause_s, now_s
            crossed = self._look()
            if not self.controlled or not (urgent or crossed or now_s >= min(next_tick_s, due_s)):
                continue
            if now_s >= next_tick_s:
                next_tick_s = now_s + 0.1
            announced = self.announces and (burst_s is not None or quiet_from_s is not None)
            decision = decide(
                now_s=now_s, state=state, policy=self.policy,
                measurements=self._measured(came, step if announced else None, noise.uniform(0, 0.002)),
            )  # fmt: skip
            state = decision.state
            self.decisions.append(decision)
            due_s = now_s + decision.again_s if decision.again_s is not None else 1e9
            self._ask(decision, now_s)
        return self

    def _pass_on(self) -> None:
        """What storage brought waits in the IFB for its class' rate; where there is none, it is there."""
        shaped = [entry for entry in self.decisions[-1].allocation.ingress if entry.in_kernel] if self.decisions else []
        rate = 1e12
        if shaped:
            rate = next(entry.ceil_bits_per_s for entry in shaped[0].classes if entry.name == "storage")
            waiting, most = sum(bits for _, bits in self._here), max(HERE_BITS_MIN, HERE_S * rate)
            while waiting > most:
                sender, bits = self._here.pop()
                waiting, sender.lost = waiting - bits, True
        budget = rate * STEP_S
        while self._here and budget > 0:
            sender, bits = self._here.popleft()
            gone = min(bits, budget)
            budget -= gone
            self._passed_bits += gone
            sender.arrived_bits += gone
            self.storage_bits += gone
            if gone < bits:
                self._here.appendleft((sender, bits - gone))
        self.here_s = sum(bits for _, bits in self._here) / rate

    def _follow_the_queue(self) -> None:
        """Training's congestion window: up while nothing is in its way, down by a half in 0.1 s of a queue."""
        change = self.grows_per_s if self.delay_s < QUEUE_S else -5.0
        self.pace_bits_per_s = min(self.link_bits_per_s, max(1e6, self.pace_bits_per_s * (1 + change * STEP_S)))

    def _look(self) -> bool:
        """Whether what leaves crosses what the last decision watches for, as `RateWatch` tells it."""
        watch = next((watch for decision in self.decisions[-1:] for watch in decision.watches), None)
        if watch is None:
            self._rate_watch.clear()
            self._looks = (True, 0)
        elif not self._rate_watch or self.now_s >= self._rate_watch[-1][0] + LOOK_S:
            self._rate_watch = [*self._rate_watch[-1:], (self.now_s, self.training_bits)]
            pace = self._pace_bits_per_s()
            if pace is not None:
                crosses = (pace >= watch.bits_per_s) is watch.rising
                looks = self._looks[1] if self._looks[0] is watch.rising else 0
                self._looks = (watch.rising, looks + 1 if crosses else 0)
                return 1 <= self._looks[1] <= REPORTED_LOOKS
        return False

    def _pace_bits_per_s(self) -> int | None:
        if len(self._rate_watch) < 2:
            return None
        (begun_s, before), (end_s, after) = self._rate_watch
        return int((after - before) / (end_s - begun_s))

    def _measured(self, came: float, step: int | None, noise_s: float) -> Measurements:
        bursts: tuple[Burst, ...] = ()
        if step is not None:
            age_s = self.now_s - self.begun[-1]
            period_s = self.begun[-1] - self.begun[-2] if len(self.begun) > 1 else None
            next_s = None if period_s is None else max(0.0, period_s - age_s)
            bursts = (Burst("job", step, self.burst_bytes, age_s, self.deadline_s - age_s, next_s),)
        bursts += self.beside(self.now_s)
        trip_s = 2 * self.one_way_s + self.delay_s + noise_s
        brokers_s = trip_s if int(self.now_s * 10) % 4 == 0 else None  # as often as a message goes
        senders = tuple(
            SenderSample(
                sender.address,
                "storage",
                int(sender.arrived_bits / 8 / WIRE),
                0.0,
                2 * self.one_way_s,
                sender.broker,
                broker_rtt_s=brokers_s if sender.broker is BrokerThere.YES else None,
                receive_rtt_s=trip_s + self.here_s + (0.3 if (sender.rate_bits_per_s or 1e12) < 1e12 else 0.0),
            )
            for sender in self.senders
            if self.now_s >= sender.from_s
        )
        sent_bytes = int(self.training_bits / 8)
        classes = tuple(ClassSample(name, sent_bytes if name == "compute" else 0) for name in CLASS_NAMES)
        inbound_s = self.one_way_s + self.delay_s + noise_s + CLOCKS_APART_S if self.clocks else None
        flows = (
            FlowSample("s-1/10.0.0.2:9", "10.0.0.2", "compute", "report", 0.0, inbound_s=inbound_s, inbound_age_s=0.0),
        )
        sample = InterfaceSample(
            "a", int(self.reported_bits_per_s or 0) or None, 0.0, classes, flows, bursts=bursts,
            received_bytes=int(came / 8), senders=senders,
            pace_bits_per_s=self._pace_bits_per_s(),
            arriving=self._arriving(),
        )  # fmt: skip
        return Measurements((sample,))

    def _arriving(self) -> tuple[ClassSample, ...]:
        if not self.decisions or not self.decisions[-1].allocation.ingress[0].in_kernel:
            return ()
        waiting = int(sum(bits for _, bits in self._here) / 8)
        return (ClassSample("storage", int(self._passed_bits / 8), waiting),)

    def _ask(self, decision: Decision, now_s: float) -> None:
        held: Mapping[str, int] = {hold.address: hold.rate_bits_per_s for hold in decision.holds}
        at_s = now_s + self.one_way_s + self.holds_take_s
        for sender in self.senders:
            if sender.broker is BrokerThere.YES:
                sender.held.append((at_s + self.one_way_s, held.get(sender.address, 1e12)))

    @property
    def step_s(self) -> float:
        """The median of the steps after the first four."""
        return sorted(self.steps[4:])[len(self.steps[4:]) // 2]

    @property
    def of_leftover(self) -> float:
        """What storage got of what it could have had."""
        return self.storage_bits / (0.95 * self.link_bits_per_s * self.now_s - self.training_bits)
