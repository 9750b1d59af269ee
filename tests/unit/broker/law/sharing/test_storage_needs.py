"""What storage declares: its demand, its deadlines, and that data at risk goes first, bounded in rate and time."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

from broker.law.decide import decide
from broker.law.decision import Decision
from broker.law.sharing import storage_needs
from broker.law.sharing.storage_needs import RISK_REFILL, RISK_S_AGAIN, RISK_S_MAX
from broker.law.state import RiskState, State
from broker.model.values import ClassAllocation, ClassSample, InterfaceSample, Measurements, Need
from broker.policy.toml import load
from broker.policy.types import CLASS_NAMES

CAPACITY = 38_800_000
POLICY = load('version = 1\n[[interface]]\nname = "a"\negress = "40 Mbit/s"\n')
MB = 1_000_000


def need(backlog: int = 50 * MB, remaining_s: float | None = None, at_risk: int = 0, *, uid: int = 1000) -> Need:
    return Need("s-1", uid, backlog, 0.0, remaining_s, at_risk)


def go(
    declared: tuple[Need, ...], *, ticks: int = 5, storage: float = 1e6, compute: float = 37e6, waiting: int = 50_000,
    state: State | None = None, start_s: float = 0.0, sent: dict[str, float] | None = None,
) -> tuple[Decision, dict[str, float]]:  # fmt: skip
    """Steady traffic with needs declared anew at each tick; the last decision, and where the counters stand."""
    state, sent = state or State(), sent or dict.fromkeys(CLASS_NAMES, 0.0)
    for tick in range(1, ticks + 1):
        sent = {**sent, "storage": sent["storage"] + storage / 80, "compute": sent["compute"] + compute / 80}
        classes = tuple(
            ClassSample(name, int(sent[name]), waiting if name in ("storage", "compute") else 0) for name in CLASS_NAMES
        )
        measured = Measurements((InterfaceSample("a", None, 0.0, classes, needs=declared),))
        decision = decide(now_s=start_s + tick / 10, state=state, measurements=measured, policy=POLICY)
        state = decision.state
    return decision, sent


def storage_of(decision: Decision) -> ClassAllocation:
    return next(entry for entry in decision.allocation.interfaces[0].classes if entry.name == "storage")


def codes(decision: Decision) -> list[str]:
    return [alarm.code for alarm in decision.alarms]


def test_a_declared_backlog_is_its_demand_and_its_queue_says_nothing_more() -> None:
    by_usage, _ = go(())
    assert storage_of(by_usage).demand_bits_per_s == CAPACITY
    declared, _ = go((need(10 * MB, 20.0),))
    assert storage_of(declared).demand_bits_per_s == 4_000_000
    assert codes(declared) == []
    assert storage_of(go((need(10 * MB),))[0]).demand_bits_per_s == CAPACITY, "no deadline: as soon as possible"
    busy, _ = go((need(1000, 20.0),), storage=30e6, compute=1e6)
    assert storage_of(busy).demand_bits_per_s == pytest.approx(33e6, rel=0.05), "others in the class declare nothing"
    assert storage_of(go((need(0, 20.0, 5),))[0]).demand_bits_per_s == CAPACITY, "a backlog of 0 is no need"


def test_needs_of_several_programs_add_up() -> None:
    decision, _ = go((need(10 * MB, 20.0), replace(need(5 * MB, 20.0), session="s-2")))
    assert storage_of(decision).demand_bits_per_s == 6_000_000


def test_a_deadline_that_cannot_be_kept_is_an_alarm_with_its_figures() -> None:
    decision, _ = go((need(100 * MB, 40.0),))
    (alarm,) = decision.alarms
    assert (alarm.code, alarm.subject) == ("deadline-at-risk", "a/storage")
    for figure in ("95.37 MiB", "40 s", "20 Mbit/s"):
        assert figure in alarm.text
    assert codes(go((need(100 * MB, 40.0),), compute=1e6, waiting=0)[0]) == [], "alone it can be"
    late, _ = go((need(100 * MB, -3.0),))
    assert codes(late) == ["deadline-missed"]
    assert storage_of(late).demand_bits_per_s == CAPACITY


def test_data_at_risk_lends_nothing_has_no_more_than_its_guarantee_and_gets_a_reason() -> None:
    calm, _ = go((need(),))
    assert storage_of(calm).rate_bits_per_s == storage_of(calm).floor_bits_per_s
    decision, _ = go((need(at_risk=7),))
    storage = storage_of(decision)
    assert storage.rate_bits_per_s == storage.guarantee_bits_per_s
    assert storage.reason.code == "replicas-at-risk"
    assert "7 objects" in storage.reason.text


def test_data_at_risk_goes_first_for_ten_minutes_and_then_a_fifth_of_the_time() -> None:
    risks: tuple[RiskState, ...] = ()
    raised_s, now_s = 0.0, 0.0
    while now_s < 4 * RISK_S_MAX:
        now_s += 1.0
        risks, declared = storage_needs.follow(risks, (need(at_risk=1),), now_s=now_s)
        raised_s += bool(declared.replicas)
        assert bool(declared.replicas) != bool(declared.refused)
    assert raised_s == pytest.approx(RISK_S_MAX + RISK_REFILL * 3 * RISK_S_MAX, rel=0.15)


def test_when_the_time_is_spent_an_alarm_says_so_and_storage_lends_again() -> None:
    decision, sent = go((need(at_risk=1),))
    interface = replace(decision.state.interfaces[0], risks=(RiskState(1000, 0.05, 0.5),))
    spent, sent = go((need(at_risk=1),), state=State(5, (interface,)), start_s=0.5, sent=sent)
    assert codes(spent) == ["risk-time-spent"]
    assert storage_of(spent).reason.code != "replicas-at-risk"
    assert storage_of(spent).rate_bits_per_s == storage_of(spent).floor_bits_per_s


def test_the_time_of_one_user_is_not_anothers_and_a_spent_one_comes_back_in_one_piece() -> None:
    risks: tuple[RiskState, ...] = (RiskState(1000, 0.0, 10.0, spent=True),)
    risks, declared = storage_needs.follow(risks, (need(at_risk=3), need(at_risk=4, uid=1001)), now_s=11.0)
    assert (declared.replicas, declared.refused) == (4, 3)
    risks = (RiskState(1000, 0.0, 10.0, spent=True),)
    risks, declared = storage_needs.follow(risks, (need(at_risk=3),), now_s=9 + RISK_S_AGAIN / RISK_REFILL)
    assert declared.replicas == 0
    risks, declared = storage_needs.follow(risks, (need(at_risk=3),), now_s=11 + RISK_S_AGAIN / RISK_REFILL)
    assert declared.replicas == 3
    risks, _ = storage_needs.follow(risks, (), now_s=1e9)
    assert risks == (), "who has all of it needs not be remembered"


declared = st.lists(
    st.builds(
        Need,
        session=st.sampled_from(["s-1", "s-2", "s-3"]),
        uid=st.integers(0, 3),
        backlog_bytes=st.integers(0, 2**50),
        age_s=st.floats(0, 60),
        remaining_s=st.none() | st.floats(-60, 3600),
        replicas_at_risk=st.integers(0, 2**53),
    ),
    max_size=5,
).map(tuple)


@settings(max_examples=60, deadline=None)
@given(st.lists(declared, max_size=6), st.integers(0, 40_000_000), st.integers(0, 10**6))
def test_whatever_storage_declares_it_never_gets_more_than_its_guarantee_and_others_keep_their_promises(
    reported: list[tuple[Need, ...]], compute: int, waiting: int
) -> None:
    state, sent, start_s = State(), dict.fromkeys(CLASS_NAMES, 0.0), 0.0
    for part in reported:
        decision, sent = go(part, ticks=1, compute=compute, waiting=waiting, state=state, start_s=start_s, sent=sent)
        state, start_s = decision.state, start_s + 0.1
        classes = {entry.name: entry for entry in decision.allocation.interfaces[0].classes}
        storage, trained = classes["storage"], classes["compute"]
        assert storage.rate_bits_per_s <= storage.guarantee_bits_per_s
        assert sum(entry.rate_bits_per_s for entry in classes.values()) <= CAPACITY
        wanted = min(trained.guarantee_bits_per_s, trained.demand_bits_per_s)
        assert trained.rate_bits_per_s >= wanted - 0.02 * CAPACITY
