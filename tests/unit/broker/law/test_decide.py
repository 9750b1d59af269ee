"""The decision as a whole: promises, order, reasons, alarms, bursts, and what it does with half-known inputs."""

from __future__ import annotations

import random
from collections.abc import Callable

import pytest
from fluid_link import World, quic, tcp
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

from broker.law.decide import decide
from broker.law.decision import Decision
from broker.law.state import State
from broker.model.values import Allocation, Burst, ClassSample, FlowSample, InterfaceSample, Measurements
from broker.policy.toml import load
from broker.policy.types import CLASS_NAMES, Policy

CAPACITY = 38_800_000
POLICY = load('version = 1\n[[interface]]\nname = "a"\negress = "40 Mbit/s"\n')


def sample(
    sent: dict[str, int], backlog: dict[str, int] | None = None, *, bursts: tuple[Burst, ...] = (), age_s: float = 0.0
) -> Measurements:
    classes = tuple(ClassSample(name, sent.get(name, 0), (backlog or {}).get(name, 0)) for name in CLASS_NAMES)
    return Measurements((InterfaceSample("a", None, age_s, classes, (), bursts),))


def drive(
    ticks: int, rates: dict[str, float], *, backlog: dict[str, int] | None = None, policy: Policy = POLICY,
    state: State | None = None, start_s: float = 0.0, sent: dict[str, float] | None = None,
) -> tuple[list[Decision], dict[str, float]]:  # fmt: skip
    """Feed steady counters: rates in bits per second; gives the decisions and where the counters stand."""
    state, decisions, sent = state or State(), [], dict(sent or dict.fromkeys(CLASS_NAMES, 0.0))
    for tick in range(1, ticks + 1):
        for name, rate in rates.items():
            sent[name] += rate / 80
        counters = {name: int(value) for name, value in sent.items()}
        decision = decide(now_s=start_s + tick / 10, state=state, measurements=sample(counters, backlog), policy=policy)
        decisions.append(decision)
        state = decision.state
    return decisions, sent


def classes(allocation: Allocation) -> dict[str, object]:
    return {entry.name: entry for entry in allocation.interfaces[0].classes}


def one(decision: Decision, name: str):  # the tests read many fields of it
    return classes(decision.allocation)[name]


flows = st.builds(
    FlowSample,
    key=st.sampled_from(["f1", "f2", "f3", "f4"]),
    peer=st.sampled_from(["p1", "p2"]),
    traffic_class=st.sampled_from([*CLASS_NAMES, "unknown"]),
    source=st.sampled_from(["report", "tcp-info"]),
    age_s=st.floats(0, 3),
    rtt_s=st.none() | st.floats(0, 2),
    rtt_latest_s=st.none() | st.floats(0, 2),
    rtt_s_min=st.none() | st.floats(0, 2),
    delivered_bytes=st.none() | st.integers(0, 10**12),
    sent_packets=st.none() | st.integers(0, 10**9),
    lost_packets=st.none() | st.integers(0, 10**9),
)
samples = st.builds(
    InterfaceSample,
    name=st.sampled_from(["a", "stranger"]),
    link_bits_per_s=st.none() | st.integers(0, 10**11),
    counters_age_s=st.none() | st.floats(0, 2),
    classes=st.lists(
        st.builds(
            ClassSample,
            name=st.sampled_from(CLASS_NAMES),
            sent_bytes=st.integers(0, 10**12),
            backlog_bytes=st.integers(0, 10**7),
            dropped_packets=st.integers(0, 10**6),
        ),
        max_size=4,
        unique_by=lambda entry: entry.name,
    ).map(tuple),
    flows=st.lists(flows, max_size=4, unique_by=lambda entry: entry.key).map(tuple),
    bursts=st.lists(
        st.builds(
            Burst,
            job=st.sampled_from(["J", "K"]),
            step=st.integers(0, 3),
            announced_bytes=st.integers(0, 10**10),
            age_s=st.floats(0, 5),
            remaining_s=st.floats(-2, 5),
        ),
        max_size=3,
        unique_by=lambda entry: (entry.job, entry.step),
    ).map(tuple),
)
policies = st.sampled_from(
    [
        POLICY,
        load('version = 1\n[[interface]]\nname = "a"\n'),
        load(
            'version = 1\n[[interface]]\nname = "a"\n[class.storage]\nguarantee = "900 Mbit/s"\nfloor = "100 Mbit/s"\n'
            '[class.compute]\nguarantee = "5 Gbit/s"\nceiling = "6 Gbit/s"\n[class.other]\nceiling = "30 %"\n'
        ),
    ]
)


@settings(max_examples=80, deadline=None)
@given(st.lists(st.lists(samples, max_size=2, unique_by=lambda entry: entry.name).map(tuple), max_size=8), policies)
def test_whatever_is_measured_rates_fit_into_the_capacity_and_floors_hold(
    ticks: list[tuple[InterfaceSample, ...]], policy: Policy
) -> None:
    state = State()
    for number, interfaces in enumerate(ticks):
        decision = decide(now_s=number / 10, state=state, measurements=Measurements(interfaces), policy=policy)
        state = decision.state
        (interface,) = decision.allocation.interfaces
        capacity = interface.capacity_bits_per_s
        assert sum(entry.rate_bits_per_s for entry in interface.classes) <= capacity
        floors = [entry.floor_bits_per_s for entry in interface.classes]
        for entry in interface.classes:
            assert entry.rate_bits_per_s <= entry.ceil_bits_per_s <= capacity
            assert entry.ceil_bits_per_s <= max(entry.ceiling_bits_per_s, entry.rate_bits_per_s)
            if sum(floors) <= capacity:
                assert entry.rate_bits_per_s >= entry.floor_bits_per_s
            assert entry.reason.code
            assert entry.reason.text


@settings(max_examples=60, deadline=None)
@given(st.lists(samples, min_size=1, max_size=6), st.integers(0, 2**32))
def test_the_order_of_inputs_does_not_matter(ticks: list[InterfaceSample], seed: int) -> None:
    mixer = random.Random(seed)
    state, mixed = State(), State()
    for number, entry in enumerate(ticks):
        entry = replace(entry, name="a")
        other = replace(
            entry, classes=_mixed(mixer, entry.classes), flows=_mixed(mixer, entry.flows),
            bursts=_mixed(mixer, entry.bursts),
        )  # fmt: skip
        first = decide(now_s=number / 10, state=state, measurements=Measurements((entry,)), policy=POLICY)
        second = decide(now_s=number / 10, state=mixed, measurements=Measurements((other,)), policy=POLICY)
        assert first == second
        state, mixed = first.state, second.state


def _mixed(mixer: random.Random, items: tuple) -> tuple:  # type: ignore[type-arg]  # of anything
    return tuple(mixer.sample(items, len(items)))


def test_steady_input_settles_within_a_second_and_then_nothing_is_written() -> None:
    decisions, _ = drive(100, {"compute": 20e6, "storage": 15e6}, backlog={"storage": 50_000})
    settled = [[(e.rate_bits_per_s, e.ceil_bits_per_s) for e in d.allocation.interfaces[0].classes] for d in decisions]
    assert all(plan == settled[10] for plan in settled[10:])


def test_training_is_promised_its_guarantee_while_it_sends_and_storage_keeps_its_floor() -> None:
    decisions, _ = drive(10, {"compute": 30e6, "storage": 5e6}, backlog={"compute": 50_000, "storage": 50_000})
    assert one(decisions[-1], "compute").rate_bits_per_s == pytest.approx(0.6 * CAPACITY, abs=1)
    assert one(decisions[-1], "storage").rate_bits_per_s == pytest.approx(0.02 * CAPACITY, abs=1)
    assert one(decisions[-1], "storage").ceil_bits_per_s == CAPACITY


def test_starved_storage_is_repaid_within_its_window_and_then_lends_again() -> None:
    backlog = {"compute": 50_000, "storage": 50_000}
    decisions, sent = drive(60, {"compute": 38e6, "storage": 0.776e6}, backlog=backlog)
    raised = one(decisions[-1], "storage")
    assert raised.reason.code == "guarantee-repaid"
    assert raised.rate_bits_per_s > raised.guarantee_bits_per_s
    later, _ = drive(
        100, {"compute": 20e6, "storage": 18e6}, backlog=backlog, state=decisions[-1].state, start_s=6.0, sent=sent
    )
    assert one(later[-1], "storage").rate_bits_per_s == one(later[-1], "storage").floor_bits_per_s


@pytest.mark.parametrize("waiting_bytes", [50_000, 2 * 1420])
def test_storage_gets_its_guarantee_over_every_window_although_training_never_pauses(waiting_bytes: int) -> None:
    """The kernel gives storage what its rate says, training takes the rest: after a minute the promise is kept."""
    state, sent, history = State(), dict.fromkeys(CLASS_NAMES, 0.0), []
    rate = 0.02 * CAPACITY
    for tick in range(1, 1801):
        sent["storage"] += rate / 80
        sent["compute"] += (CAPACITY - rate) / 80
        counters = {name: int(value) for name, value in sent.items()}
        decision = decide(
            now_s=tick / 10, state=state, policy=POLICY,
            measurements=sample(counters, {"storage": waiting_bytes, "compute": 50_000}),
        )  # fmt: skip
        state, rate = decision.state, one(decision, "storage").rate_bits_per_s
        history.append(sent["storage"])
    guarantee = 0.2 * CAPACITY
    windows = [(history[end] - history[end - 600]) * 8 / 60 for end in range(600, 1800, 10)]
    assert min(windows) >= 0.97 * guarantee
    assert sum(windows) / len(windows) >= guarantee


def test_who_does_not_ask_is_owed_nothing() -> None:
    decisions, _ = drive(600, {"compute": 38e6})
    assert one(decisions[-1], "storage").reason.code == "idle"
    assert one(decisions[-1], "storage").rate_bits_per_s == pytest.approx(0.02 * CAPACITY, abs=1)


def test_a_class_may_use_all_that_others_leave() -> None:
    decisions, _ = drive(10, {"storage": 38e6})
    storage = one(decisions[-1], "storage")
    assert (storage.ceil_bits_per_s, storage.reason.code) == (CAPACITY, "link-is-free")


def test_a_ceiling_is_never_exceeded_and_is_given_as_the_reason() -> None:
    policy = load('version = 1\n[[interface]]\nname = "a"\negress = "40 Mbit/s"\n[class.storage]\nceiling = "50 %"\n')
    decisions, _ = drive(10, {"storage": 19.4e6}, backlog={"storage": 50_000}, policy=policy)
    storage = one(decisions[-1], "storage")
    assert (storage.ceil_bits_per_s, storage.reason.code) == (CAPACITY // 2, "held-by-ceiling")


def test_an_announcement_is_credited_with_at_most_twice_the_last_measured_burst() -> None:
    state, sent = State(), 0
    claimed = (1_000_000, 1_000_000, 50_000_000)
    credited = []
    now_s = 0.0
    for step, size in enumerate(claimed):
        for phase in range(4):
            now_s += 0.1
            sent += 250_000
            bursts = (Burst("J", step, size, phase / 10, 1.0),) if phase < 3 else ()
            decision = decide(
                now_s=now_s, state=state, measurements=sample({"compute": sent}, bursts=bursts), policy=POLICY
            )
            state = decision.state
            if phase == 0:
                credited.append(decision.credits[0].credited_bytes)
    assert credited[:2] == [1_000_000, 1_000_000]
    assert credited[2] == 2 * 750_000  # three ticks of 250 kB passed while the bursts before lasted


def test_a_first_announcement_is_credited_with_what_the_link_carries_in_two_seconds() -> None:
    burst = Burst("J", 1, 10**12, 0.0, 60.0)
    decision = decide(now_s=1.0, state=State(), measurements=sample({}, bursts=(burst,)), policy=POLICY)
    assert decision.credits[0].credited_bytes == CAPACITY * 2 // 8


def _storage_ceils(world: World, start_s: float, *, active: bool) -> list[int]:
    return [
        one(decision, "storage").ceil_bits_per_s
        for (at_s, _), decision in zip(world.rates, world.decisions[1:], strict=True)
        if at_s > start_s and (one(decision, "storage").reason.code == "yields-to-burst") is active
    ]


def test_storage_yields_to_announced_bursts_while_a_queue_may_stand_elsewhere_and_only_then(
    run: Callable[[World, float], World],
) -> None:
    world = run(World([quic(), tcp()], lambda at_s: 40e6 if at_s < 12 else 20e6), 40)
    early = [one(decision, "storage").reason.code for decision in world.decisions[1:115]]
    assert "yields-to-burst" not in early
    held, free = _storage_ceils(world, 12, active=True), _storage_ceils(world, 15, active=False)
    assert len(held) > 10
    assert max(held) < 2_000_000
    assert len(free) > 100
    assert min(free) > 8_000_000


def test_missing_and_stale_counters_keep_the_last_plan_and_raise_an_alarm() -> None:
    decisions, sent = drive(20, {"compute": 20e6, "storage": 15e6}, backlog={"storage": 50_000})
    last = decisions[-1]
    counters = {name: int(value) for name, value in sent.items()}
    for measured, code in (
        (Measurements(), "interface-missing"),
        (sample(counters, age_s=3.0), "counters-stale"),
        (Measurements((InterfaceSample("a"),)), "counters-stale"),
    ):
        decision = decide(now_s=5.0, state=last.state, measurements=measured, policy=POLICY)
        assert [alarm.code for alarm in decision.alarms] == [code]
        assert decision.allocation.interfaces[0].capacity_bits_per_s == CAPACITY
        assert one(decision, "storage").throughput_bits_per_s is None
        for name in CLASS_NAMES:
            assert one(decision, name).rate_bits_per_s == one(last, name).rate_bits_per_s


def test_a_rebuilt_tree_whose_counters_start_anew_does_no_harm() -> None:
    decisions, _ = drive(20, {"compute": 20e6, "storage": 15e6})
    after = decide(now_s=2.1, state=decisions[-1].state, measurements=sample({"compute": 5}), policy=POLICY)
    assert one(after, "compute").throughput_bits_per_s == one(decisions[-1], "compute").throughput_bits_per_s


def test_an_unknown_link_speed_falls_back_with_an_alarm_and_a_known_one_is_used() -> None:
    policy = load('version = 1\n[[interface]]\nname = "a"\n')
    unknown = decide(
        now_s=1.0, state=State(), measurements=Measurements((InterfaceSample("a", None, 0.0),)), policy=policy
    )
    assert "capacity-unknown" in [alarm.code for alarm in unknown.alarms]
    known = decide(
        now_s=1.0, state=State(), measurements=Measurements((InterfaceSample("a", 10**8, 0.0),)), policy=policy
    )
    assert known.alarms == ()
    assert known.allocation.interfaces[0].capacity_bits_per_s == 97_000_000
    assert known.allocation.interfaces[0].capacity_source == "link"


def test_a_link_without_a_carrier_is_an_alarm_that_says_why_and_one_that_is_not_asked_is_none() -> None:
    policy = load('version = 1\n[[interface]]\nname = "eth0"\n')

    def texts(carrier: bool | None) -> list[str]:
        sample = InterfaceSample("eth0", 10**9, 0.0, carrier=carrier, carrier_changes=5)
        decision = decide(now_s=0.0, state=State(), measurements=Measurements((sample,)), policy=policy)
        return [alarm.text for alarm in decision.alarms if (alarm.code, alarm.subject) == ("link-down", "eth0")]

    assert [len(texts(carrier)) for carrier in (False, True, None)] == [1, 0, 0]
    assert "no carrier (5 changes of it so far)" in texts(False)[0]


def test_guarantees_that_do_not_fit_raise_an_alarm() -> None:
    policy = load('version = 1\n[[interface]]\nname = "a"\n[class.compute]\nguarantee = "2 Gbit/s"\n')
    decision = decide(
        now_s=1.0, state=State(), measurements=Measurements((InterfaceSample("a", 10**9, 0.0),)), policy=policy
    )
    assert "guarantees-scaled" in [alarm.code for alarm in decision.alarms]


def test_a_policy_that_names_another_interface_takes_effect_at_once() -> None:
    decisions, _ = drive(5, {"compute": 20e6})
    other = load('version = 1\n[[interface]]\nname = "b"\negress = "10 Mbit/s"\n')
    decision = decide(now_s=1.0, state=decisions[-1].state, measurements=Measurements(), policy=other)
    assert [entry.name for entry in decision.allocation.interfaces] == ["b"]
