"""What random kills and cut links judge members by: one chain of commits, with the same weights after each."""

from __future__ import annotations

from typing import Any

from tools.measure.volatile_churn import History


def step(number: int, digest: str) -> dict[str, Any]:
    return {"step": number, "digest": digest, "at_s": float(number)}


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


def test_who_joins_goes_on_from_the_state_that_it_has_received() -> None:
    history = history_of(("m1", step(1, "aa")), ("m1", {"state": 8}), ("m1", step(7, "gg")), ("m2", step(8, "hh")))
    assert history.wrong == []
    assert history.gap_s(7.5) == 1.0
