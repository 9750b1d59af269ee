"""When a peer gets one connection more, and when one less: the law over traces of windows."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterable

import pytest

from transport.mesh.lanes import LaneLaw, LaneState, Window, could_not_open, decide_lanes

LAW = LaneLaw()
GBIT = 125e6


def busy(rate: float = GBIT, **but: object) -> Window:
    return Window(**{"delivered_bytes_per_s": rate, "work": True, "idle": False, "busy_share": 0.98, **but})  # type: ignore[arg-type]


IDLE = Window(0.0, work=False, idle=True, busy_share=0.0)


def run(
    windows: Iterable[Window | Callable[[int], Window]], state: LaneState | None = None, law: LaneLaw = LAW
) -> tuple[LaneState, list[tuple[float, int, str]]]:
    """Feed a window a second; the state at the end, and when there were how many lanes, and why."""
    state = LaneState() if state is None else state
    told = []
    for now_s, window in enumerate(windows, start=1):
        decision = decide_lanes(float(now_s), state, window(state.lanes) if callable(window) else window, law)
        if decision.reason:
            told.append((float(now_s), decision.state.lanes, decision.reason))
        state = decision.state
    return state, told


def test_a_sender_whose_thread_limits_gets_lanes_as_long_as_each_gains():
    def gaining(lanes: int) -> Window:
        return busy(GBIT * {1: 1.0, 2: 1.9, 3: 2.6, 4: 3.2}[lanes])

    state, told = run([gaining] * 60)
    assert state.lanes == LAW.lanes_max == 4
    assert [lanes for _, lanes, _ in told] == [2, 2, 3, 3, 4, 4]
    assert [reason.partition(":")[0] for _, _, reason in told[1::2]] == ["worth it"] * 3


def test_a_lane_without_gain_is_closed_and_the_wait_for_the_next_doubles():
    state, told = run([busy()] * 400)
    opened = [at for at, lanes, _ in told if lanes == 2]
    closed = [at for at, lanes, _ in told if lanes == 1]
    assert state.lanes <= 2
    waits = [after - before for before, after in zip(closed, opened[1:], strict=False)]
    assert waits == sorted(waits)
    assert [round(wait / LAW.retry_s_first) for wait in waits] == [1, 2, 4]
    assert all("not worth it" in reason for _, lanes, reason in told if lanes == 1)


@pytest.mark.parametrize(
    "window",
    [
        busy(limited="12 of 1000 packets were lost"),
        busy(limited="a queue of 20.0 ms stands"),
        busy(busy_share=0.85),
        busy(work=False),
        IDLE,
    ],
)
def test_a_sender_that_the_network_or_the_work_limits_never_gets_a_lane(window):
    state, told = run([window] * 500)
    assert (state.lanes, told) == (1, [])


def test_one_limited_window_among_busy_ones_puts_it_off():
    state, told = run([busy(), busy(), busy(limited="loss"), busy(), busy(), busy(busy_share=0.5)] * 20)
    assert (state.lanes, told) == (1, [])


def test_a_trial_ends_at_once_when_the_network_begins_to_limit():
    state, told = run([busy()] * 3 + [busy(3 * GBIT), busy(3 * GBIT, limited="loss")])
    assert state.lanes == 1
    assert told[-1] == (5.0, 1, "not worth it, the network limits: loss")
    assert state.not_before_s == 5.0 + LAW.retry_s_first


def test_a_trial_that_cannot_be_judged_ends():
    state, told = run([busy()] * 3 + [busy(work=False)] * LAW.trial_windows_max)
    assert state.lanes == 1
    assert "not work enough" in told[-1][2]


def test_a_kept_lane_is_given_up_when_somebody_else_wants_the_link():
    def gaining(lanes: int) -> Window:
        return busy(GBIT * lanes)

    kept, _ = run([gaining] * 30)
    assert kept.lanes == 4
    state, told = run([busy(limited="loss")] * (3 * LAW.windows), kept)
    assert [lanes for _, lanes, _ in told] == [3, 2, 1]
    assert state.lanes == 1


def test_lanes_are_closed_when_nothing_is_sent_and_have_to_prove_themselves_anew():
    kept, _ = run([lambda lanes: busy(GBIT * lanes)] * 30)
    state, told = run([IDLE] * 20, kept)
    assert (state.lanes, told[0][:2]) == (1, (10.0, 1))
    again, told = run([busy()] * 2, state)
    assert (again.lanes, told) == (1, [])


def test_a_lane_that_does_not_come_up_waits_as_one_that_does_not_gain():
    state, _ = run([busy()] * 3)
    decision = could_not_open(4.0, state, "the peer has none", LAW)
    assert (decision.state.lanes, decision.reason) == (1, "the peer has none")
    assert decision.state.not_before_s == 4.0 + LAW.retry_s_first
    assert could_not_open(5.0, decision.state, "again", LAW).state.retry_s == 4 * LAW.retry_s_first


def test_one_lane_is_all_where_that_is_the_most():
    state, told = run([busy()] * 500, law=LaneLaw(lanes_max=1))
    assert (state.lanes, told) == (1, [])


@pytest.mark.parametrize("seed", range(20))
def test_whatever_comes_lanes_are_bounded_and_failures_are_few(seed):
    random_ = random.Random(seed)
    state, failures = LaneState(), 0
    for now_s in range(3600):
        limited = "loss" if random_.random() < 0.05 else ""
        window = busy(GBIT * random_.uniform(0.5, 2.0), limited=limited, work=random_.random() < 0.97)
        decision = decide_lanes(float(now_s), state, window, LAW)
        assert 1 <= decision.state.lanes <= LAW.lanes_max, seed
        assert decision.state.lanes - state.lanes in (-1, 0, 1), seed
        assert bool(decision.reason) >= (decision.state.lanes != state.lanes), seed
        failures += decision.state.lanes < state.lanes
        state = decision.state
    assert failures <= 8, seed
