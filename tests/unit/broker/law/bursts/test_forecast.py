"""Which forecasts are believed, how long before a burst storage moves, and that it moves no sooner."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from broker.law.bursts import forecast
from broker.law.bursts.announced import follow
from broker.law.bursts.forecast import ERROR_S_MAX, GOOD_IN_A_ROW, LEAD_S_MAX, ROUND_TRIP_S
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


def test_a_job_is_followed_after_three_good_forecasts_and_no_more_after_a_bad_one() -> None:
    for count in range(1, 8):
        state, now_s = train([float(number) for number in range(count)], [1.0] * count)
        assert forecast.is_followed(state.jobs[0], now_s=now_s) is (count > GOOD_IN_A_ROW)
    late = [0.0, 1.0, 2.0, 3.0, 4.0, 5.0 + 1.5 * ERROR_S_MAX]
    state, now_s = train(late, [1.0] * 6)
    assert not forecast.is_followed(state.jobs[0], now_s=now_s)
    assert state.jobs[0].error_s == pytest.approx(1.5 * ERROR_S_MAX)


def test_storage_moves_a_round_trip_and_a_drain_before_a_burst_and_waits_no_longer_than_the_tolerance() -> None:
    state, _ = train([float(number) for number in range(6)], [1.0] * 6)
    lead_s = 0.08
    moments = [5.3 + 0.005 * number for number in range(200)]
    moved = [at_s for at_s in moments if forecast.due(state.jobs, lead_s=lead_s, now_s=at_s)]
    assert moved[0] == pytest.approx(6.0 - lead_s, abs=0.006)
    job = forecast.missed(state.jobs[0], now_s=6.0 + ERROR_S_MAX + 0.001)
    assert (job.expected_s, job.foretold) == (None, 0)
    again_s = forecast.again_s(state.jobs, lead_s=lead_s, now_s=5.5)
    assert again_s == pytest.approx(0.5 - lead_s)
    assert forecast.again_s(state.jobs, lead_s=lead_s, now_s=5.95) == pytest.approx(0.05 + ERROR_S_MAX)


def test_an_expected_burst_says_when_and_how_large() -> None:
    state, _ = train([float(number) for number in range(6)], [1.0] * 6)
    (due,) = forecast.due(state.jobs, lead_s=0.1, now_s=5.96)
    assert due.reason().code == "expects-burst"
    assert "due in 40 ms" in due.reason().text
    (late,) = forecast.due(state.jobs, lead_s=0.1, now_s=6.02)
    assert "late by 20 ms" in late.reason().text


def test_the_lead_is_of_the_connections_concerned_and_bounded() -> None:
    def flow(key: str, peer: str, traffic_class: str, rtt_s: float, *, age_s: float = 0.1) -> FlowSample:
        return FlowSample(key, peer, traffic_class, "report", age_s, rtt_s=2 * rtt_s, rtt_s_min=rtt_s)

    flows = [
        flow("1", "10.0.0.2", "compute", 0.03), flow("2", "10.0.0.9", "compute", 0.3),
        flow("3", "10.0.0.4", "storage", 0.04), flow("4", "10.0.0.4", "storage", 0.4, age_s=9.0),
    ]  # fmt: skip
    assert forecast.lead_s(flows, destinations=["10.0.0.2"], excess_s=0.02) == pytest.approx(0.06)
    assert forecast.lead_s(flows, destinations=["10.0.0.9"], excess_s=0.02) == pytest.approx(0.32)
    assert forecast.lead_s(flows, destinations=[], excess_s=9.0) == LEAD_S_MAX
    assert forecast.lead_s([], destinations=[], excess_s=0.0) == ROUND_TRIP_S


@settings(max_examples=60, deadline=None)
@given(
    st.lists(st.tuples(st.floats(0.3, 3.0), st.none() | st.floats(0.0, 4.0)), min_size=2, max_size=20),
    st.floats(0.0, 0.5),
)
def test_whatever_is_foretold_storage_moves_for_at_most_the_lead_and_the_tolerance(
    steps: list[tuple[float, float | None]], lead_s: float
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
            held_s += 0.01 if not running and forecast.due(state.jobs, lead_s=lead_s, now_s=now_s) else 0.0
            now_s += 0.01
        assert held_s <= (number + 1) * (lead_s + ERROR_S_MAX + 0.03)
