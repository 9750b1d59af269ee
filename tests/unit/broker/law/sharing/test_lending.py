"""What storage lends and gets back, with the law in a loop; that announcements win where the bottleneck is elsewhere
and cost nothing where it is here; and what becomes of promises that do not fit."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import pytest
from control_loop import Controlled
from fluid_link import World, quic, tcp
from hypothesis import given, settings
from hypothesis import strategies as st
from seeds import assert_most, over_seeds

from broker.law.decide import decide
from broker.law.decision import Decision
from broker.law.recording import replay
from broker.law.sharing.promises import promises
from broker.law.state import State
from broker.model.values import ClassAllocation, ClassSample, InterfaceSample, Measurements
from broker.policy.toml import load
from broker.policy.types import CLASS_NAMES, ClassPolicy, InterfacePolicy, Policy, Share

REMOTE, FULL = 20e6, 100e6


def policy(*, storage: int, window_s: int) -> Policy:
    return load(
        'version = 1\n[[interface]]\nname = "a"\negress = "40 Mbit/s"\n'
        f'[class.storage]\nguarantee = "{storage} %"\nguarantee_window = "{window_s} s"\n'
        f'[class.compute]\nguarantee = "{88 - storage} %"\n'
    )


def world(rate: float | Callable[[float], float] = REMOTE, *, storage: bool = True, **changes: object) -> World:
    """One rank, two greedy flows of storage, and a link of 40 Mbit/s with another one behind."""
    senders = [quic(), tcp(), tcp(port=874)] if storage else [quic()]
    given = {"jitter_s": 0.003, "spike_s": 0.05, "burst_bytes": 1_000_000, "prompt": True, "foretell": True,
             "exact": True, **changes}  # fmt: skip
    carries = rate if callable(rate) else lambda at_s: rate
    return World(senders, carries, **given)  # type: ignore[arg-type]


@dataclass
class Watched(Controlled):
    """The law, and what storage was promised and got at each decision."""

    policy: Policy
    at_s: list[float] = field(default_factory=list)
    promised_bits: list[float] = field(default_factory=lambda: [0.0])
    sent_bits: list[float] = field(default_factory=list)
    shown: list[ClassAllocation] = field(default_factory=list)

    def __post_init__(self) -> None:
        Controlled.__init__(self, self.policy)

    def __call__(self, world: World) -> None:
        super().__call__(world)
        if self.shown:
            elapsed_s = world.now_s - self.at_s[-1]
            self.promised_bits.append(self.promised_bits[-1] + self.shown[-1].guarantee_bits_per_s * elapsed_s)
        self.shown.append(one(world.decisions[-1], "storage"))
        self.at_s.append(world.now_s)
        self.sent_bits.append(world.sent["storage"] * 8)

    def least_of_any_window(self, window_s: float, *, from_s: float) -> float:
        """Received over promised, in the worst window that ends at a decision."""
        parts, first = [], 0
        for last, end_s in enumerate(self.at_s):
            while self.at_s[first] < end_s - window_s:
                first += 1
            if end_s > from_s + window_s:
                promised = self.promised_bits[last] - self.promised_bits[first]
                parts.append((self.sent_bits[last] - self.sent_bits[first]) / promised)
        return min(parts)


class Priority(Controlled):
    """HTB with priorities and the configured rate, whatever is measured or announced."""

    def __call__(self, world: World) -> None:
        if not world.decisions:
            super().__call__(world)
        else:
            world.apply(world.decisions[0])


def run(world: World, until_s: float, law: Controlled) -> World:
    law(world)
    world.run(until_s, law)
    return world


def one(decision: Decision, name: str) -> ClassAllocation:
    return next(entry for entry in decision.allocation.interfaces[0].classes if entry.name == name)


def codes(world: World) -> list[str]:
    return [one(decision, "storage").reason.code for decision in world.decisions]


def steps_s(world: World, *, from_s: float = 15.0) -> list[float]:
    return sorted(duration_s for at_s, duration_s in world.steps if at_s > from_s)


@pytest.mark.parametrize(
    ("guarantee", "burst_bytes", "think_s"), [(45, 1_000_000, 0.3), (45, 2_000_000, 0.4), (60, 1_000_000, 0.5)]
)
def test_storage_gets_its_guarantee_over_any_window_under_bursts_for_55_to_74_percent_of_the_time(
    guarantee: int, burst_bytes: int, think_s: float
) -> None:
    """The guarantee is more than the bursts leave, so that it has to be paid back during them."""
    law = Watched(policy(storage=guarantee, window_s=60))
    made = run(world(burst_bytes=burst_bytes, think_s=think_s), 150, law)
    busy = sum(duration_s for _, duration_s in made.steps) / made.now_s
    assert 0.5 < busy < 0.8
    assert {"yields-to-burst", "guarantee-repaid"} <= set(codes(made))
    assert law.least_of_any_window(60, from_s=15) >= 0.98
    assert all(entry.rate_bits_per_s >= entry.floor_bits_per_s for entry in law.shown)


def test_a_shorter_window_is_kept_as_well_as_its_bursts_allow() -> None:
    law = Watched(policy(storage=45, window_s=20))
    run(world(think_s=0.3), 120, law)
    assert law.least_of_any_window(20, from_s=15) >= 0.96


@pytest.mark.long
def test_where_the_bottleneck_is_elsewhere_announcing_beats_priority_alone() -> None:
    plain = policy(storage=20, window_s=60)

    def one(seed: int) -> tuple[float, float, float]:
        idle = statistics.median(steps_s(run(world(storage=False, seed=seed), 60, Controlled(plain))))
        alone = statistics.median(steps_s(run(world(seed=seed), 60, Priority(plain))))
        law = Controlled(plain)
        ours = run(world(seed=seed), 60, law)
        left = REMOTE - ours.sent["compute"] * 8 / ours.now_s
        assert "expects-burst" in codes(ours)
        assert replay(law.lines).first_difference is None
        return alone / idle, statistics.median(steps_s(ours)) / idle, ours.sent["storage"] * 8 / ours.now_s / left

    alone, ours, of_left = zip(*over_seeds(4, one), strict=True)
    assert_most(alone, 1, at_least=2)
    assert_most(ours, 1, at_most=1.1)
    assert_most(of_left, 1, at_least=0.85)


@pytest.mark.long
def test_where_the_bottleneck_elsewhere_jumps_announcing_beats_measuring_alone() -> None:
    """The 95th percentile of steps: a queue that a fall leaves elsewhere is not fed while training waits in it. Of
    20 seeds 7 gain less than a tenth: where measuring alone is lucky with the place of the jumps, it is as good."""

    def jumps(at_s: float) -> float:
        return REMOTE if int(at_s / 3) % 2 else 13e6

    def late_s(seed: int, **changes: Any) -> float:
        steps = steps_s(run(world(seed=seed, rate=jumps, **changes), 70, Controlled(policy(storage=20, window_s=60))))
        return steps[int(0.95 * len(steps))]

    parts = over_seeds(12, lambda seed: late_s(seed) / late_s(seed, announce=False))
    assert_most(parts, 0.5, at_most=0.85)
    assert_most(parts, 1, at_most=1.2)


@pytest.mark.long
def test_where_the_bottleneck_is_here_announcing_equals_priority_alone() -> None:
    plain = policy(storage=20, window_s=60)

    def one(seed: int) -> tuple[float, float]:
        alone = run(world(FULL, seed=seed, burst_bytes=2_000_000), 60, Priority(plain))
        ours = run(world(FULL, seed=seed, burst_bytes=2_000_000), 60, Controlled(plain))
        assert not {"yields-to-burst", "expects-burst"} & set(codes(ours)), "HTB's priority is enough here"
        longer = statistics.median(steps_s(ours)) / statistics.median(steps_s(alone))
        return longer, ours.sent["storage"] / alone.sent["storage"]

    longer, stored = zip(*over_seeds(4, one), strict=True)
    assert_most(longer, 1, at_most=1.02)
    assert_most(stored, 1, at_least=0.98)


def test_storage_is_let_back_at_the_decision_that_hears_of_a_bursts_end() -> None:
    made = run(world(), 40, Controlled(policy(storage=20, window_s=60)))
    ends_s = [at_s + duration_s for at_s, duration_s in made.steps if at_s > 15]
    ceils = [one(decision, "storage").ceil_bits_per_s for decision in made.decisions]
    assert ends_s
    assert min(ceils) < 1_000_000
    for end_s in ends_s:
        index = next(number for number, at_s in enumerate(made.decided_s) if at_s >= end_s - 1e-9)
        assert made.decided_s[index] <= end_s + 0.015
        assert ceils[index] > 5_000_000


RATES = st.integers(0, 10**10)


def share(draw: st.DrawFn) -> Share:
    if draw(st.booleans()):
        return Share(fraction=draw(st.floats(0, 1)))
    return Share(rate_bits_per_s=draw(RATES))


@st.composite
def policies(draw: st.DrawFn) -> Policy:
    """Any figures whatsoever, sums beyond 100 % included: what fits one capacity need not fit the next."""
    classes = tuple(
        ClassPolicy(
            name=name, guarantee=share(draw), guarantee_window_s=draw(st.floats(1, 3600)), floor=share(draw),
            ceiling=share(draw), weight=draw(st.floats(0.01, 1000)), priority=draw(st.integers(0, 7)),
        )
        for name in CLASS_NAMES
    )  # fmt: skip
    return Policy(interfaces=(InterfacePolicy("a", draw(st.integers(10**5, 10**10))),), classes=classes)


traffic = st.lists(
    st.tuples(*[st.tuples(st.integers(0, 10**9), st.integers(0, 10**6)) for _ in CLASS_NAMES]), min_size=1, max_size=6
)


@settings(max_examples=150, deadline=None)
@given(policies(), traffic)
def test_promises_that_do_not_fit_degrade_by_the_rule_and_are_an_alarm(
    policy: Policy, ticks: Sequence[tuple[tuple[int, int], ...]]
) -> None:
    """Rates fit; floors hold where they fit and are scaled by one factor where not; an alarm says which."""
    state, sent = State(), [0] * len(CLASS_NAMES)
    for number, counters in enumerate(ticks):
        sent = [before + more for before, (more, _) in zip(sent, counters, strict=True)]
        classes = tuple(
            ClassSample(name, total, waiting)
            for name, total, (_, waiting) in zip(CLASS_NAMES, sent, counters, strict=True)
        )
        measured = Measurements((InterfaceSample("a", None, 0.0, classes),))
        decision = decide(now_s=number / 10, state=state, measurements=measured, policy=policy)
        state, (interface,) = decision.state, decision.allocation.interfaces
        capacity = interface.capacity_bits_per_s
        own = [promises(entry, capacity) for entry in policy.classes]
        rates = [entry.rate_bits_per_s for entry in interface.classes]
        floors, committed = sum(entry.floor for entry in own), sum(entry.guarantee for entry in own)
        found = [alarm.code for alarm in decision.alarms]
        assert sum(rates) <= capacity
        assert ("floors-scaled" in found) is (floors > capacity)
        assert ("guarantees-scaled" in found) is (committed > capacity >= floors)
        for rate, entry in zip(rates, own, strict=True):
            if floors <= capacity:
                assert rate >= entry.floor
            else:
                assert rate == pytest.approx(entry.floor * capacity / floors, abs=0.02 * capacity + 1)


def test_a_floor_that_a_reload_raises_a_little_is_in_force_at_once() -> None:
    classes = tuple(ClassSample(name, 0) for name in CLASS_NAMES)
    measured = Measurements((InterfaceSample("a", None, 0.0, classes),))
    text = 'version = 1\n[[interface]]\nname = "a"\negress = "40 Mbit/s"\n[class.storage]\nfloor = "{}"\n'
    before = decide(now_s=0.0, state=State(), measurements=measured, policy=load(text.format("0 %")))
    after = decide(now_s=0.1, state=before.state, measurements=Measurements(), policy=load(text.format("1.5 %")))
    assert one(before, "storage").rate_bits_per_s == 0
    assert one(after, "storage").rate_bits_per_s == one(after, "storage").floor_bits_per_s > 0
