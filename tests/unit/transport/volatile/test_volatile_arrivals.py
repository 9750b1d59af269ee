"""A step waits as long as the last arrivals let expect, and names who is always late."""

from __future__ import annotations

import math

import pytest

from transport.volatile.protocol.arrivals import ARRIVALS, LATE_MAX, ROUND_TRIPS, STEPS_KEPT, Arrivals
from transport.volatile.protocol.view import Member

A, B, C = (Member(name, 1) for name in "abc")
ALL = (A, B, C)


def seen(*after_s: float) -> Arrivals:
    """Steps 1, 2, ... of which the parts of b and c came so long after that of a."""
    arrivals = Arrivals()
    for step, late_s in enumerate(after_s, 1):
        for member, at_s in ((A, 0.0), (B, late_s), (C, late_s)):
            arrivals.arrived(member, step, 100.0 * step + at_s)
    return arrivals


def test_nobody_is_late_before_so_many_arrivals_are_known() -> None:
    assert seen(*[0.1] * (ARRIVALS // 3)).wait_s(rtt_s=0.0) == math.inf
    assert seen(*[0.1] * ARRIVALS).wait_s(rtt_s=0.0) < math.inf


def test_the_wait_is_the_median_and_five_deviations_or_four_round_trips() -> None:
    # Of the last 20, 6 are a's at 0, 7 at 0.1 and 7 at 0.3: the median is 0.1, half of all differ from it by 0.1.
    arrivals = seen(*[0.1, 0.3] * 5)
    after_s = sorted(arrivals._after_s)
    median_s = (after_s[9] + after_s[10]) / 2
    deviations_s = sorted(abs(one - median_s) for one in after_s)
    expected_s = median_s + 5 * (deviations_s[9] + deviations_s[10]) / 2
    assert arrivals.wait_s(rtt_s=0.01) == pytest.approx(expected_s)
    assert arrivals.wait_s(rtt_s=expected_s) == pytest.approx(ROUND_TRIPS * expected_s)


def test_a_step_is_due_at_once_with_all_later_with_a_quorum_and_never_without() -> None:
    arrivals = seen(*[0.1] * ARRIVALS)
    step, wait_s = 50, arrivals.wait_s(rtt_s=0.0)
    arrivals.arrived(A, step, 7.0)
    assert arrivals.due_s(step, ALL, 2, rtt_s=0.0) == math.inf
    arrivals.arrived(B, step, 7.1)
    assert arrivals.due_s(step, ALL, 2, rtt_s=0.0) == pytest.approx(7.0 + wait_s)
    assert arrivals.due_s(step, (A, B), 2, rtt_s=0.0) == 0.0
    arrivals.arrived(C, step, 7.1)
    assert arrivals.due_s(step, ALL, 2, rtt_s=0.0) == 0.0


def test_who_is_late_so_often_in_a_row_is_named_until_it_is_in_time() -> None:
    arrivals = Arrivals()
    for step in range(1, LATE_MAX + 1):
        assert arrivals.always_late() == set()
        arrivals.arrived(A, step, 0.0)
        assert arrivals.take(step, (A, B)) == {A}
    assert arrivals.always_late() == {B}
    arrivals.arrived(B, 9, 0.0)
    assert arrivals.take(9, (A, B)) == {B}
    assert arrivals.always_late() == set()


def test_what_is_kept_of_steps_is_bounded() -> None:
    arrivals = seen(*[0.1] * 100)
    assert arrivals.steps() == list(range(100 - STEPS_KEPT + 1, 101))
    arrivals.forget()
    assert arrivals.steps() == []
    assert arrivals.wait_s(rtt_s=0.0) < math.inf
