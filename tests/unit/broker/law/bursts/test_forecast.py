"""Which forecasts are believed, how long before a burst storage moves, and that it moves no sooner."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from broker.law.bursts.announced import (
    ERROR_S_MAX,
    GOOD_IN_A_ROW,
    LEAD_S_MAX,
    ROUND_TRIP_S,
    again_s,
    follow,
    lead_s,
    makes_room,
)
from broker.law.state import InterfaceState
from broker.model.values import Burst, FlowSample

CAPACITY = 40_000_000


def train(begins_s: list[float], foretold_s: list[float]) -> tuple[InterfaceState, float]:
    """Bursts of 0.2 s that begin at times and say how long it is to the next; decided on as they begin and end."""
    state, sent = InterfaceState("a"), 0
    events = sorted([(at_s, 0, number) for number, at_s in enumerate(begins_s)]
                    + [(at_s + 0.2, 1, number) for number, at_s in enumerate(begins_s)])  # fmt: skip
    for at_s, ended, number in events:
        burst = Burst("J", number, 1_000_000, 0.0, 1.0, foretold_s[number])
        sent += 1_000_000 if ended else 0
        state, _ = follow(
            state, () if ended else (burst,), sent_bytes=sent, capacity_bits_per_s=CAPACITY, now_s=at_s
        )  # fmt: skip
    return state, events[-1][0]


def moves(state: InterfaceState, at_s: float, *, lead: float = 0.08) -> str:
    """Why storage waits with no burst under way."""
    found = makes_room(state.jobs, (), lead_s=lead, now_s=at_s)
    return found.text if found is not None else ""


def again(state: InterfaceState, at_s: float, *, lead: float) -> float | None:
    return again_s(
        state.jobs, (), throughput_bits_per_s=0.0, capacity_bits_per_s=CAPACITY, lead_s=lead, now_s=at_s
    )  # fmt: skip


def test_a_job_is_followed_after_three_good_forecasts_and_no_more_after_a_bad_one() -> None:
    for count in range(1, 8):
        state, _ = train([float(number) for number in range(count)], [1.0] * count)
        assert bool(moves(state, count - 0.01)) is (count > GOOD_IN_A_ROW)
    late = [0.0, 1.0, 2.0, 3.0, 4.0, 5.0 + 1.5 * ERROR_S_MAX]
    state, _ = train(late, [1.0] * 6)
    assert not moves(state, late[-1] + 0.99)


def test_storage_moves_a_round_trip_and_a_drain_before_a_burst_and_waits_no_longer_than_the_tolerance() -> None:
    state, _ = train([float(number) for number in range(6)], [1.0] * 6)
    moments = [5.3 + 0.005 * number for number in range(200)]
    assert next(at_s for at_s in moments if moves(state, at_s)) == pytest.approx(6.0 - 0.08, abs=0.006)
    assert again(state, 5.5, lead=0.08) == pytest.approx(0.5 - 0.08)
    assert again(state, 5.95, lead=0.08) == pytest.approx(0.05 + ERROR_S_MAX)
    gone, _ = follow(state, (), sent_bytes=0, capacity_bits_per_s=CAPACITY, now_s=6.0 + ERROR_S_MAX + 0.001)
    assert not moves(gone, 6.0)
    assert again(gone, 6.0, lead=0.08) is None


def test_an_expected_burst_says_when_and_how_large() -> None:
    state, _ = train([float(number) for number in range(6)], [1.0] * 6)
    assert "due in 40 ms" in moves(state, 5.96)
    assert "late by 20 ms" in moves(state, 6.02)


def test_the_lead_is_of_the_connections_concerned_and_bounded() -> None:
    def flow(key: str, peer: str, traffic_class: str, rtt_s: float, *, age_s: float = 0.1) -> FlowSample:
        return FlowSample(key, peer, traffic_class, "report", age_s, rtt_s=2 * rtt_s, rtt_s_min=rtt_s)

    def towards(address: str) -> list[Burst]:
        return [Burst("J", 1, 1_000_000, 0.0, 1.0, by_destination=((address, 1_000_000),))]

    flows = [
        flow("1", "10.0.0.2", "compute", 0.03), flow("2", "10.0.0.9", "compute", 0.3),
        flow("3", "10.0.0.4", "storage", 0.04), flow("4", "10.0.0.4", "storage", 0.4, age_s=9.0),
    ]  # fmt: skip
    assert lead_s(flows, towards("10.0.0.2"), excess_s=0.02) == pytest.approx(0.06)
    assert lead_s(flows, towards("10.0.0.9"), excess_s=0.02) == pytest.approx(0.32)
    assert lead_s(flows, [], excess_s=9.0) == LEAD_S_MAX
    assert lead_s([], [], excess_s=0.0) == ROUND_TRIP_S


@settings(max_examples=60, deadline=None)
@given(
    st.lists(st.tuples(st.floats(0.3, 3.0), st.none() | st.floats(0.0, 4.0)), min_size=2, max_size=20),
    st.floats(0.0, 0.5),
)
def test_whatever_is_foretold_storage_moves_for_at_most_the_lead_and_the_tolerance(
    steps: list[tuple[float, float | None]], lead: float
) -> None:
    state, now_s, held_s, sent = InterfaceState("a"), 0.0, 0.0, 0
    for number, (interval_s, next_s) in enumerate(steps):
        begin_s = now_s
        while now_s < begin_s + interval_s:
            running = now_s < begin_s + 0.2
            left_s = None if next_s is None else max(0.0, begin_s + next_s - now_s)
            burst = Burst("J", number, 10**6, now_s - begin_s, 1.0, left_s)
            sent += 50_000 if running else 0
            state, _ = follow(
                state, (burst,) if running else (), sent_bytes=sent, capacity_bits_per_s=CAPACITY, now_s=now_s
            )
            held_s += 0.01 if not running and moves(state, now_s, lead=lead) else 0.0
            now_s += 0.01
        assert held_s <= (number + 1) * (lead + ERROR_S_MAX + 0.03)
