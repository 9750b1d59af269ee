"""What random kills and cut links judge members by: one chain of commits, with the same weights after each."""

from __future__ import annotations

from typing import Any

from tools.measure.volatile_churn import CUT, JUDGED_MIN, LEAVE, START, History, judged


def step(number: int, digest: str) -> dict[str, Any]:
    return {"step": number, "digest": digest, "members": ["m1", "m2"], "at_s": float(number)}


def history_of(*said: tuple[str, dict[str, Any]], quorum: bool = False) -> History:
    history = History(quorum=quorum)
    for name, line in said:
        history.add(name, line)
    return history


def test_weights_that_differ_after_a_step_are_named_with_both_members() -> None:
    history = history_of(("m1", step(1, "aa")), ("m2", step(1, "aa")), ("m1", step(2, "bb")), ("m2", step(2, "cc")))
    assert history.wrong == ["step 2: the weights are of m1 bb, of m2 cc"]


def test_with_a_quorum_a_step_may_be_lost_with_all_who_made_it_but_then_none_of_them_may_go_on() -> None:
    both = (("m1", step(1, "aa")), ("m2", step(1, "bb")), ("m2", step(2, "cc")))
    lost = history_of(*both, ("m2", {**step(3, "dd"), "at_s": 90.0}), quorum=True)
    assert lost.wrong == []
    assert list(lost.done_again_s) == [1]
    both_go_on = [("m1", {**step(2, "ee"), "at_s": 90.0}), ("m2", {**step(3, "dd"), "at_s": 91.0})]
    assert history_of(*both, *both_go_on, quorum=True).wrong == ["step 1: the weights are of m1 aa, of m2 bb"]


def test_a_member_that_leaves_out_or_repeats_a_step_is_named() -> None:
    left_out = history_of(("m1", step(1, "aa")), ("m1", step(3, "cc")))
    assert left_out.wrong == ["m1 committed step 3 after step 1"]
    assert left_out.left_out() == [2]
    assert history_of(("m1", step(1, "aa")), ("m1", step(1, "aa"))).wrong == ["m1 committed step 1 after step 1"]


def test_who_learns_cannot_be_counted_on_until_it_has_worked() -> None:
    history = history_of(("m1", step(1, "aa")), ("m2", {**step(1, "aa"), "members": []}))
    assert [history.works_since(one, 0.0) for one in ("m1", "m2")] == [True, False]


def test_who_joins_goes_on_from_the_state_that_it_has_received() -> None:
    history = history_of(("m1", step(1, "aa")), ("m1", {"state": 8}), ("m1", step(7, "gg")), ("m2", step(8, "hh")))
    assert history.wrong == []
    assert history.gap_s(7.5) == 1.0


def test_a_fault_is_judged_by_the_median_of_what_it_cost_and_the_longest_is_shown() -> None:
    """Steps of 0.1 s and writes of 10 ms: 2.13 s are allowed after a cut, 1.13 after somebody has left."""
    history, now_s, events = History(), 0.0, []

    def steps(count: int, pause_s: float) -> None:
        nonlocal now_s
        for _ in range(count):
            now_s += pause_s
            history.add("m1", {**step(len(history.commits_s) + 1, "aa"), "at_s": now_s})

    history.add("m1", {"write_s": 0.01})
    for kind, gaps_s in (
        (CUT, [2.0, 2.0, 2.1, 4.0, 4.5]),
        (LEAVE, [1.5] * JUDGED_MIN),
        (START, [4.0] * JUDGED_MIN),
    ):
        for gap_s in gaps_s:
            steps(100, 0.1)
            events.append((kind, now_s, 5.0))
            steps(1, gap_s)
    steps(100, 0.1)
    events.append((CUT, now_s, 1.0))  # is no loss
    steps(1, 0.2)
    shown, wrong = judged(history, events)
    assert [one for one in shown if one.startswith(CUT)] == [
        "cut off          5 times; then without a commit: 2.10 s, 4.50 at most; allowed in the median: 2.13, good"
    ]
    assert wrong == ["leave: 1.50 s without a commit in the median, and 1.13 are allowed"]
    few = [one for one in events if one[0] == LEAVE][1:]
    shown, wrong = judged(history, few)
    assert shown[0].endswith("too few to judge")
    assert wrong == []


def test_a_pause_that_outlasts_what_is_looked_at_counts_as_long_as_that() -> None:
    history = history_of(("m1", step(1, "aa")), ("m1", {**step(2, "bb"), "at_s": 90.0}))
    assert history.gap_s(1.0) == 5.0
