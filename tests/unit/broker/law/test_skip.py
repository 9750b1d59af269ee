"""When a decision may wait: what is read meanwhile loses nothing, and what a decision would heed brings it at once."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import pytest
from control_loop import Controlled
from fluid_link import World, quic, tcp
from msgspec.structs import replace
from seeds import assert_most, over_seeds

from broker.law import skip
from broker.law.decide import decide
from broker.law.decision import Decision
from broker.law.recording import header_line, replay, tick_line
from broker.law.sharing.plan import DEAD_BAND
from broker.law.skip import REST_S
from broker.law.state import State
from broker.model.leases import Lease
from broker.model.values import (
    Burst,
    ClassSample,
    EarlierSample,
    FlowSample,
    InterfaceSample,
    Measurements,
    Need,
    WallClock,
    ZoneClock,
)
from broker.policy.toml import load
from broker.policy.types import CLASS_NAMES, Policy

TICK_S = 0.1
LINK = 40_000_000
BASE = 'version = 1\n[[interface]]\nname = "a"\negress = "40 Mbit/s"\n'
GUARANTEED = (
    BASE + '[class.storage]\nguarantee = "20 %"\nguarantee_window = "20 s"\n[class.compute]\nguarantee = "60 %"\n'
)


class Resting:
    """The law in a loop with a world as the daemon has it; beside it the same law that decides at every tick, on the
    same measurements, and is not listened to. `heeds`: whether news ends a rest."""

    def __init__(self, policy: Policy, *, heeds: bool = True) -> None:
        self.policy, self._heeds = policy, heeds
        self.state = self.every_state = State()
        self.lines = [header_line(policy=policy, state=self.state)]
        self.every: list[Decision] = []
        self.decided: list[tuple[float, Decision]] = []
        self.remembered: list[tuple[State, State]] = []  # after each decision: the other law's, and this one's
        self.apart: list[float] = []
        self.skipped = 0
        self._resting: skip.Resting | None = None
        self._kept: list[tuple[float, InterfaceSample]] = []
        self._reports: list[tuple[float, FlowSample]] = []
        self._burst_s: float | None = None
        self._read_s = 0.0

    def __call__(self, world: World) -> None:
        now_s, measurements = world.now_s, world.measurements()
        every = decide(now_s=now_s, state=self.every_state, measurements=measurements, policy=self.policy)
        self.every_state = every.state
        self.every.append(every)
        if not self._may_wait(measurements.interfaces[0], world):
            self._decide(measurements, world)
            return
        self.skipped += 1
        in_force = self.decided[-1][1].allocation.interfaces[0]
        wished = every.allocation.interfaces[0]
        assert wished.capacity_bits_per_s == in_force.capacity_bits_per_s
        for one, other in zip(wished.classes, in_force.classes, strict=True):
            promised = max(one.guarantee_bits_per_s, one.rate_bits_per_s)
            self.apart.append(abs(one.rate_bits_per_s - other.rate_bits_per_s) / promised)
            self.apart.append(abs(one.ceil_bits_per_s - other.ceil_bits_per_s) / wished.capacity_bits_per_s)

    def _may_wait(self, sample: InterfaceSample, world: World) -> bool:
        now_s, announced = world.now_s, self._burst_s != world.burst_at_s
        self._burst_s = world.burst_at_s
        if self._resting is None or announced or now_s - self.decided[-1][0] >= REST_S - TICK_S / 2:
            return False
        reports = tuple(one for one in sample.flows if one.source == "report" and now_s - one.age_s > self._read_s)
        self._reports += [(now_s - one.age_s, one) for one in reports]
        self._read_s = now_s
        self._resting, news = skip.follow(self._resting, replace(sample, flows=reports), now_s=now_s)
        waits = not (news and self._heeds)
        if waits:
            self._kept.append((now_s, sample))
        return waits

    def _decide(self, measurements: Measurements, world: World) -> None:
        now_s, (sample,) = world.now_s, measurements.interfaces
        latest = {one.key: now_s - one.age_s for one in sample.flows}
        measurements = Measurements(
            (
                replace(
                    sample,
                    earlier=tuple(
                        EarlierSample(now_s - at_s, one.classes, one.received_bytes) for at_s, one in self._kept
                    ),
                    earlier_flows=tuple(
                        replace(one, age_s=now_s - at_s) for at_s, one in self._reports if at_s < latest[one.key]
                    ),
                ),
            )
        )
        decision = decide(now_s=now_s, state=self.state, measurements=measurements, policy=self.policy)
        self.lines.append(tick_line(now_s=now_s, measurements=measurements, decision=decision))
        self.state = decision.state
        world.apply(decision)
        self.decided.append((now_s, decision))
        self.remembered.append((self.every_state, self.state))
        found = skip.resting(decision, measurements, policy=self.policy, now_s=now_s)
        self._resting, self._read_s = (found or {}).get("a"), now_s
        self._kept, self._reports = [], []


def run(world: World, text: str, *, until_s: float, heeds: bool = True) -> Resting:
    law = Resting(load(text), heeds=heeds)
    law(world)
    world.run(until_s, law)
    return law


WORLDS: dict[str, Callable[[], World]] = {
    "storage alone": lambda: World([quic(), tcp(), tcp(port=874)], lambda at_s: 100e6, training=False),
    "nobody sends": lambda: World([quic(), tcp(greedy=False)], lambda at_s: 100e6, training=False),
    "training and storage": lambda: World(
        [quic(), tcp(), tcp(port=874)], lambda at_s: 100e6, prompt=True, foretell=True, burst_bytes=1_000_000,
        think_s=0.25,
    ),
    "training that fills the link": lambda: World(
        [quic(), tcp(), tcp(port=874)], lambda at_s: 100e6, prompt=True, burst_bytes=4_000_000, think_s=0.1
    ),
    "a busy host": lambda: World(
        [quic(), tcp()], lambda at_s: 100e6, prompt=True, burst_bytes=1_500_000, jitter_s=0.004, spike_s=0.05
    ),
    "storage that stops and goes on": lambda: World(
        [quic(), tcp()], lambda at_s: 100e6, training=False, paused=lambda at_s: at_s % 4 < 1.5
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", WORLDS)
@pytest.mark.parametrize("text", [BASE, GUARANTEED], ids=["", "guaranteed"])
def test_no_decision_is_left_out_that_would_change_the_plan_by_more_than_the_dead_band(name: str, text: str) -> None:
    law = run(WORLDS[name](), text, until_s=25.0)
    assert law.skipped > 20
    assert max(law.apart) <= 2 * DEAD_BAND  # each of the two plans lies within one band of what is wished


def test_a_rest_that_heeds_no_news_would_be_found_out() -> None:
    law = run(WORLDS["training and storage"](), GUARANTEED, until_s=15.0, heeds=False)
    assert max(law.apart) > 4 * DEAD_BAND


@pytest.mark.parametrize("name", WORLDS)
def test_what_is_remembered_is_as_if_every_tick_had_decided(name: str) -> None:
    law = run(WORLDS[name](), GUARANTEED, until_s=12.0)
    every, spared = law.every_state.interfaces[0], law.state.interfaces[0]
    ticks = {round(tick.at_s, 6): tick for tick in every.capacity.signals.ticks} if every.capacity else {}
    assert spared.capacity is not None
    both = [tick for tick in spared.capacity.signals.ticks[1:-1] if round(tick.at_s, 6) in ticks]
    assert len(both) >= 0.9 * len(ticks) - 2
    for tick in both:
        assert tick.sent_bits == pytest.approx(ticks[round(tick.at_s, 6)].sent_bits, rel=1e-6, abs=1.0)
    assert len(spared.capacity.signals.ticks) >= 0.9 * len(ticks)
    assert spared.capacity.signals.wire_ratio == pytest.approx(every.capacity.signals.wire_ratio, rel=0.02)  # type: ignore[union-attr]
    assert law.skipped > 10
    for whole, part in law.remembered[1:]:  # the first had nothing before it
        (mine,), (theirs,) = part.interfaces, whole.interfaces
        assert mine.counters_s == theirs.counters_s
        for entry, twin in zip(mine.classes, theirs.classes, strict=True):
            assert sum(entry.owed_bits) == pytest.approx(sum(twin.owed_bits), rel=1e-6, abs=1e3)
            assert entry.throughput_bits_per_s == pytest.approx(twin.throughput_bits_per_s, rel=1e-6, abs=1e3)


def test_a_reading_that_is_the_decision_s_own_is_booked_once() -> None:
    now_s, decision, _, policy = settled(GUARANTEED)
    sample = InterfaceSample(
        "a", counters_age_s=0.01, classes=classes(now_s + TICK_S, rates=QUIET), received_bytes=0, mtu_bytes=1500
    )
    again = replace(sample, earlier=(EarlierSample(0.010005, sample.classes, 0),))
    once, twice = (
        decide(now_s=now_s + TICK_S + 0.01, state=decision.state, measurements=Measurements((one,)), policy=policy)
        for one in (sample, again)
    )
    assert twice.state == once.state


@pytest.mark.parametrize("name", ["storage alone", "nobody sends"])
def test_where_nothing_happens_few_decisions_are_made(name: str) -> None:
    law = run(WORLDS[name](), BASE, until_s=20.0)
    settled = [at_s for at_s, _ in law.decided if at_s > 10.0]
    assert len(settled) <= 45  # 25, and what the simulated noise brings; at every tick it would be 100


def test_decisions_with_readings_replay_to_the_same_bytes() -> None:
    law = run(WORLDS["training and storage"](), GUARANTEED, until_s=10.0)
    assert law.skipped > 10
    assert replay(law.lines).first_difference is None


def test_a_fall_elsewhere_is_followed_no_later_than_by_every_tick() -> None:
    """The first sample over the threshold brings the decision at its own tick; from then on every tick decides."""

    def fallen_s(law: Callable[[World], None], seed: int) -> float:
        world = World(
            [quic(), tcp(), tcp(port=874)], lambda at_s: 100e6 if at_s < 10.0 else 20e6, prompt=True, foretell=True,
            burst_bytes=1_000_000, jitter_s=0.003, seed=seed,
        )  # fmt: skip
        law(world)
        world.run(16.0, law)
        return next(at_s for at_s, rate in world.rates if at_s > 10.0 and rate < 0.7 * LINK)

    policy = load(BASE)
    later_s = over_seeds(8, lambda seed: fallen_s(Resting(policy), seed) - fallen_s(Controlled(policy), seed))
    assert_most(later_s, 1, at_most=2 * TICK_S)


# --- single kinds of news --------------------------------------------------------------------------------------------


def classes(at_s: float, *, rates: dict[str, float], backlog: dict[str, int] | None = None) -> tuple[ClassSample, ...]:
    """Counters of classes that have sent at a steady rate since 0."""
    waiting = backlog or {}
    return tuple(
        ClassSample(
            name,
            int(rates.get(name, 0.0) * at_s / 8),
            waiting.get(name, 0),
            sent_packets=int(rates.get(name, 0.0) * at_s / 8 / 200),
        )
        for name in CLASS_NAMES
    )


QUIET = {"storage": 30e6, "other": 1e6}
FLOW = FlowSample(
    key="s-1/10.0.0.2:1", peer="10.0.0.2", traffic_class="compute", source="report", age_s=0.01, rtt_s=0.004,
    rtt_latest_s=0.004, rtt_s_min=0.0035, delivered_bytes=0, sent_packets=0, lost_packets=0,
)  # fmt: skip


def settled(
    text: str = BASE, *, flows: Callable[[float], Sequence[FlowSample]] = lambda at_s: (),
    wall: WallClock | None = None, until_s: float = 8.0, rates: dict[str, float] | None = None, **sample: object,
) -> tuple[float, Decision, Measurements, Policy]:  # fmt: skip
    """A daemon after some seconds of the same."""
    policy, state, now_s = load(text), State(), 0.0
    while True:
        now_s += TICK_S
        seen = InterfaceSample(
            "a", counters_age_s=0.0, classes=classes(now_s, rates=rates or QUIET), flows=tuple(flows(now_s)),
            received_bytes=0, mtu_bytes=1500,
        )  # fmt: skip
        last = now_s > until_s
        measurements = Measurements((replace(seen, **sample) if last else seen,), wall)  # type: ignore[arg-type]
        decision = decide(now_s=now_s, state=state, measurements=measurements, policy=policy)
        state = decision.state
        if last:
            return now_s, decision, measurements, policy


def rests(**given: object) -> bool:
    now_s, decision, measurements, policy = settled(**given)  # type: ignore[arg-type]
    return skip.resting(decision, measurements, policy=policy, now_s=now_s) is not None


def news(
    text: str = BASE, *, rates: dict[str, float] | None = None, backlog: dict[str, int] | None = None,
    heard: FlowSample | None = None, flows: Callable[[float], Sequence[FlowSample]] = lambda at_s: (),
) -> bool:  # fmt: skip
    """Whether a reading a tick after steady traffic is news."""
    now_s, decision, measurements, policy = settled(text, flows=flows)
    found = skip.resting(decision, measurements, policy=policy, now_s=now_s)
    assert found is not None
    before, more = classes(now_s, rates=QUIET), rates or QUIET
    after = tuple(
        replace(
            one,
            sent_bytes=one.sent_bytes + int(more.get(one.name, 0.0) * TICK_S / 8),
            backlog_bytes=(backlog or {}).get(one.name, 0),
        )
        for one in before
    )
    sample = InterfaceSample("a", counters_age_s=0.0, classes=after, flows=(heard,) if heard is not None else ())
    return skip.follow(found["a"], sample, now_s=now_s + TICK_S)[1]


def test_steady_traffic_is_no_news() -> None:
    assert not news()
    assert not news(backlog={"storage": 60_000})  # it lends: what it wants more of, nobody has to be told


@pytest.mark.parametrize(
    "given",
    [
        {"rates": {**QUIET, "compute": 20e6}},
        {"rates": {**QUIET, "other": 9e6}},
        {"backlog": {"compute": 9_000}},
        {"backlog": {"other": 9_000}},
    ],
)
def test_who_begins_to_send_or_to_wait_is_decided_on_at_once(given: dict[str, dict[str, float]]) -> None:
    assert news(**given)  # type: ignore[arg-type]


def reports(at_s: float) -> list[FlowSample]:
    return [replace(FLOW, delivered_bytes=int(1e6 * at_s), sent_packets=int(800 * at_s))]


def test_a_report_of_delay_or_of_loss_is_decided_on_at_once() -> None:
    later = reports(8.2)[0]
    assert not news(flows=reports, heard=later)
    assert news(flows=reports, heard=replace(later, rtt_s=0.05, rtt_latest_s=0.05))
    assert not news(flows=reports, heard=replace(later, rtt_s=0.05))  # smoothed: it is over
    assert news(flows=reports, heard=replace(later, lost_packets=9))


def test_the_way_there_counts_alone_where_it_is_measured() -> None:
    def ways(at_s: float) -> list[FlowSample]:
        return [replace(one, one_way_s=5.0, one_way_age_s=0.01) for one in reports(at_s)]

    late = replace(ways(8.2)[0], rtt_s=0.2, rtt_latest_s=0.2)
    assert not news(flows=ways, heard=late)
    assert news(flows=ways, heard=replace(late, one_way_s=5.02))


def test_what_few_packets_of_a_slow_link_take_is_no_news() -> None:
    def ways(at_s: float) -> list[FlowSample]:
        return [replace(one, one_way_s=5.0, one_way_age_s=0.01) for one in reports(at_s)]

    slow = BASE.replace("40 Mbit/s", "5 Mbit/s")
    assert not news(slow, flows=ways, heard=replace(ways(8.2)[0], one_way_s=5.02))
    assert news(slow, flows=ways, heard=replace(ways(8.2)[0], one_way_s=5.03))


def test_a_lender_that_comes_to_be_owed_too_much_is_decided_on_at_once() -> None:
    now_s, decision, measurements, policy = settled(GUARANTEED)
    (entry,) = (skip.resting(decision, measurements, policy=policy, now_s=now_s) or {}).values()
    sample, seen = measurements.interfaces[0], False
    for _ in range(60):  # it waits, and gets nothing; two percent of the window's promise is 0.4 s of it
        now_s += TICK_S
        waiting = tuple(replace(one, backlog_bytes=60_000 * (one.name == "storage")) for one in sample.classes)
        entry, seen = skip.follow(entry, replace(sample, classes=waiting), now_s=now_s)
        if seen:
            break
    owed = next(one for one in entry.state.classes if one.name == "storage")
    assert seen
    assert owed.repaying


def test_a_counter_that_is_not_read_or_goes_back_is_decided_on_at_once() -> None:
    now_s, decision, measurements, policy = settled()
    (entry,) = (skip.resting(decision, measurements, policy=policy, now_s=now_s) or {}).values()
    sample = measurements.interfaces[0]
    assert skip.follow(entry, replace(sample, counters_age_s=TICK_S), now_s=now_s + TICK_S)[1]
    assert skip.follow(entry, replace(sample, counters_age_s=None), now_s=now_s + TICK_S)[1]


def test_a_call_begins_at_the_tick_at_which_its_last_half_second_is_over() -> None:
    text = BASE + "[presence]\nenabled = true\n"
    rates = {"other": 50 * 200 * 8.0}
    now_s, decision, measurements, policy = settled(text, rates=rates, until_s=4.0)
    (entry,) = (skip.resting(decision, measurements, policy=policy, now_s=now_s) or {}).values()
    for _ in range(30):
        now_s += TICK_S
        sample = replace(measurements.interfaces[0], classes=classes(now_s, rates=rates))
        entry, seen = skip.follow(entry, sample, now_s=now_s)
        if seen:
            break
    assert entry.state.presence.present
    assert now_s < 6.2


LEASE = Lease(peer="p", address="10.0.0.3", number=1, traffic_class="storage", rate_bits_per_s=10**6,
              capacity_bits_per_s=10**7, age_s=0.1, remaining_s=0.5)  # fmt: skip


@pytest.mark.parametrize(
    "given",
    [
        {"leases": (LEASE,)},
        {"needs": (Need("s-1", 0, 10_000_000, 0.1),)},
        {"counters_age_s": 0.7},
        {"bursts": (Burst("J", 1, 50_000_000, 0.01, 2.0),)},
    ],
)
def test_what_is_followed_from_tick_to_tick_does_not_rest(given: dict[str, object]) -> None:
    assert rests()
    assert not rests(**given)


@pytest.mark.parametrize("more", ['ingress = "auto"\n', 'ingress = "30 Mbit/s"\n', '[probe]\ntargets = ["10.0.0.9"]\n'])
def test_a_way_in_that_is_looked_after_and_hosts_that_are_probed_do_not_rest(more: str) -> None:
    assert not rests(text=BASE + more)


def test_around_a_full_minute_every_tick_decides_where_there_are_schedules() -> None:
    text = BASE + (
        '[[schedule]]\nname = "n"\nfrom = "22:00"\nto = "06:00"\ntimezone = "UTC"\n'
        '[schedule.class.storage]\nceiling = "50 %"\n'
    )
    zone = (ZoneClock("UTC", 0),)
    at_rest = [rests(text=text, wall=WallClock(600 + second, zone)) for second in range(60)]
    assert [second for second, rested in enumerate(at_rest) if not rested] == [0, 58, 59]


def test_a_link_that_carries_less_than_it_says_does_not_rest() -> None:
    world = World([quic(), tcp(), tcp(port=874)], lambda at_s: 20e6, prompt=True, burst_bytes=1_000_000)
    law = run(world, BASE, until_s=8.0)
    skipped = law.skipped
    assert law.state.interfaces[0].capacity.rate_bits_per_s < 0.9 * LINK  # type: ignore[union-attr]
    world.run(10.0, law)
    assert law.skipped == skipped
