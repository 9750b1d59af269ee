"""A step waits as long as the last arrivals let expect, and who is always late learns, for longer each time."""

from __future__ import annotations

import math

import pytest

from transport.volatile.protocol.arrivals import (
    ARRIVALS,
    LATE_MAX,
    LEARNS_STEPS_MAX,
    ROUND_TRIPS,
    STEPS_KEPT,
    Deadlines,
)
from transport.volatile.protocol.messages import Arrived
from transport.volatile.protocol.view import DIGEST_BYTES, Member, View

A, B, C = (Member(name, 1) for name in "abc")
ALL = (A, B, C)
NOBODY: frozenset[Member] = frozenset()


def view_of(*workers: Member, joining: tuple[Member, ...] = (), step: int = 0) -> View:
    return View(1, (*workers, *joining), step, bytes(DIGEST_BYTES), joining)


def arrive(
    deadlines: Deadlines, member: Member, step: int, quorum: int, at_s: float, *, length: int = 8, made_up: bool = False
) -> frozenset[Member]:
    return deadlines.arrived(member, Arrived(1, step, quorum, length, made_up), at_s)


def seen(*after_s: float) -> Deadlines:
    """Steps 1, 2, ... of which the parts of b and c came so long after that of a."""
    deadlines = Deadlines()
    for step, late_s in enumerate(after_s, 1):
        for member, at_s in ((A, 0.0), (B, late_s), (C, late_s)):
            arrive(deadlines, member, step, 2, 100.0 * step + at_s)
    return deadlines


def test_nobody_is_late_before_so_many_arrivals_are_known() -> None:
    assert seen(*[0.1] * (ARRIVALS // 3)).wait_s(rtt_s=0.0) == math.inf
    assert seen(*[0.1] * ARRIVALS).wait_s(rtt_s=0.0) < math.inf


def test_the_wait_is_the_median_and_five_deviations_or_four_round_trips() -> None:
    # Of the last 20, 6 are a's at 0, 7 at 0.1 and 7 at 0.3: the median is 0.1, half of all differ from it by 0.1.
    deadlines = seen(*[0.1, 0.3] * 5)
    after_s = sorted(deadlines._after_s)
    median_s = (after_s[9] + after_s[10]) / 2
    deviations_s = sorted(abs(one - median_s) for one in after_s)
    expected_s = median_s + 5 * (deviations_s[9] + deviations_s[10]) / 2
    assert deadlines.wait_s(rtt_s=0.01) == pytest.approx(expected_s)
    assert deadlines.wait_s(rtt_s=expected_s) == pytest.approx(ROUND_TRIPS * expected_s)


def test_a_step_is_due_at_once_with_all_later_with_a_quorum_and_never_without() -> None:
    deadlines = seen(*[0.1] * ARRIVALS)
    step, wait_s = 50, deadlines.wait_s(rtt_s=0.0)
    arrive(deadlines, A, step, 1, 7.0)
    assert deadlines.due_s(ALL, step - 1, rtt_s=0.0) == {step: math.inf}, "fewer than half of them are no quorum"
    arrive(deadlines, B, step, 1, 7.1)
    assert deadlines.due_s(ALL, step - 1, rtt_s=0.0) == {step: pytest.approx(7.0 + wait_s)}
    assert deadlines.due_s((A, B), step - 1, rtt_s=0.0) == {step: 0.0}
    assert deadlines.due_s(ALL, step, rtt_s=0.0) == {}
    arrive(deadlines, C, step, 1, 7.1)
    assert deadlines.due_s(ALL, step - 1, rtt_s=0.0) == {step: 0.0}


def test_a_larger_quorum_is_waited_for() -> None:
    deadlines = seen(*[0.1] * ARRIVALS)
    for member in (A, B):
        arrive(deadlines, member, 50, 3, 7.0)
    assert deadlines.due_s(ALL, 49, rtt_s=0.0) == {50: math.inf}


def late(deadlines: Deadlines, step: int, *here: Member, quorum: int = 1, members_min: int = 1) -> frozenset[Member]:
    """Take a step of a and b with those who are here: who learns from then on."""
    for member in here:
        arrive(deadlines, member, step, quorum, 100.0 * step)
    some, learns = deadlines.take(view_of(A, B), step, learning=NOBODY, members_min=members_min)
    assert some == set(here)
    return learns


def test_who_is_late_so_often_in_a_row_learns_unless_it_is_needed() -> None:
    deadlines = Deadlines()
    for step in range(1, LATE_MAX):
        assert late(deadlines, step, A) == NOBODY
    assert late(deadlines, LATE_MAX, A, B) == NOBODY, "it was in time"
    for step in range(LATE_MAX + 1, 2 * LATE_MAX):
        assert late(deadlines, step, A, quorum=2) == NOBODY
    assert late(deadlines, 2 * LATE_MAX, A, quorum=2) == NOBODY
    assert late(deadlines, 2 * LATE_MAX + 1, A, members_min=2) == NOBODY, "the next step would wait for it"
    assert late(deadlines, 2 * LATE_MAX + 2, A) == {B}


def test_who_is_always_late_learns_for_twice_as_long_each_time_and_as_before_once_it_was_in_time_for_so_long() -> None:
    first, other, step, learnt = Deadlines(), Deadlines(), 0, []
    both = (first, other)  # who is not the first worker sees the views alone
    for _ in range(6):
        for one in both:
            one.entered(view_of(A, B, step=step))
        while B not in late(first, step := step + 1, A):
            pass
        for one in both:
            one.entered(view_of(A, joining=(B,), step=step))
        until = step + 1
        while not first.may_work(B, until):
            until += 1
        assert [one.may_work(B, until) for one in both] == [True, True]
        assert [one.may_work(B, until - 1) for one in both] == [False, False]
        assert first.may_work(A, step)
        learnt.append(until - step)
        step = until
    assert learnt[:3] == [LATE_MAX, 2 * LATE_MAX, 4 * LATE_MAX]
    assert learnt[-1] == LEARNS_STEPS_MAX
    first.entered(view_of(A, B, step=step))
    in_time = range(step + 1, step + learnt[-1] + 2)
    assert [late(first, one, A, B) for one in in_time] == [NOBODY] * len(in_time)
    again = in_time.stop + LATE_MAX - 1
    assert [late(first, one, A) for one in range(in_time.stop, again + 1)][-1] == {B}
    first.entered(view_of(A, joining=(B,), step=again))
    assert first.may_work(B, again + LATE_MAX)
    first.entered(view_of(A, step=again))
    assert first.may_work(B, again), "it has gone, and comes anew"


def test_who_makes_up_for_the_step_before_counts_once_the_step_has_such_parts_and_says_nothing_of_when() -> None:
    deadlines = seen(*[0.1] * ARRIVALS)
    wait_s = deadlines.wait_s(rtt_s=0.0)
    assert arrive(deadlines, C, 50, 2, 3.0, made_up=True) == NOBODY
    assert deadlines.due_s(ALL, 49, rtt_s=0.0) == {50: math.inf}
    assert arrive(deadlines, A, 50, 2, 7.0) == NOBODY
    assert deadlines.due_s(ALL, 49, rtt_s=0.0) == {50: pytest.approx(7.0 + wait_s)}
    some, _ = deadlines.take(view_of(*ALL), 50, learning=NOBODY, members_min=1)
    assert some == {A, C}
    assert deadlines.wait_s(rtt_s=0.0) == pytest.approx(wait_s, rel=0.5)


def test_who_makes_up_is_told_where_the_step_has_other_parts_or_waits_for_all() -> None:
    for other in ({"length": 4}, {"quorum": 0}):
        for before in (True, False):
            deadlines = Deadlines()
            of_it = {"quorum": 2, "length": 8} | other
            if before:
                arrive(deadlines, C, 1, 2, 3.0, made_up=True)
            told = arrive(deadlines, A, 1, of_it["quorum"], 7.0, length=of_it["length"])
            if not before:
                told = arrive(deadlines, C, 1, 2, 8.0, made_up=True)
            assert told == {C}
            arrive(deadlines, C, 1, of_it["quorum"], 9.0, length=of_it["length"])
            assert arrive(deadlines, B, 1, of_it["quorum"], 9.0, length=of_it["length"]) == NOBODY


def test_what_is_kept_of_steps_is_bounded() -> None:
    deadlines = seen(*[0.1] * 100)
    assert list(deadlines.due_s(ALL, 0, rtt_s=0.0)) == list(range(100 - STEPS_KEPT + 1, 101))
    deadlines.entered(view_of(*ALL))
    assert deadlines.due_s(ALL, 0, rtt_s=0.0) == {}
    assert deadlines.wait_s(rtt_s=0.0) < math.inf
