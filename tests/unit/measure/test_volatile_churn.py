"""What random kills and cut links judge members by: one chain of commits, with the same weights after each."""

from __future__ import annotations

from typing import Any

from tools.measure.volatile_churn import History


def step(number: int, digest: str) -> dict[str, Any]:
    return {"step": number, "digest": digest, "at_s": float(number)}


def history_of(*said: tuple[str, dict[str, Any]]) -> History:
    history = History()
    for name, line in said:
        history.add(name, line)
    return history


def test_weights_that_differ_after_a_step_are_named_with_both_members() -> None:
    history = history_of(("m1", step(1, "aa")), ("m2", step(1, "aa")), ("m1", step(2, "bb")), ("m2", step(2, "cc")))
    assert history.wrong == ["step 2: the weights of m2 are cc, those of m1 bb"]


def test_a_member_that_leaves_out_or_repeats_a_step_is_named() -> None:
    left_out = history_of(("m1", step(1, "aa")), ("m1", step(3, "cc")))
    assert left_out.wrong == ["m1 committed step 3 after step 1"]
    assert left_out.left_out() == [2]
    assert history_of(("m1", step(1, "aa")), ("m1", step(1, "aa"))).wrong == ["m1 committed step 1 after step 1"]


def test_who_joins_goes_on_from_the_state_that_it_has_received() -> None:
    history = history_of(("m1", step(1, "aa")), ("m1", {"state": 8}), ("m1", step(7, "gg")), ("m2", step(8, "hh")))
    assert history.wrong == []
    assert history.gap_s(7.5) == 1.0
