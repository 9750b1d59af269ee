"""When a session's next burst begins or ends, by what it did before."""

from __future__ import annotations

from broker.sessions.burst_habits import SLACK_S, Habits


def test_nothing_is_expected_of_a_session_that_has_not_said_anything() -> None:
    habits = Habits()
    assert habits.expected_s(now_s=1.0) is None
    habits.began("s-1", step=1, next_s=None, now_s=1.0)
    assert habits.expected_s(now_s=1.0) is None


def test_a_burst_is_expected_to_last_as_long_as_the_last_one_and_the_next_to_begin_as_told() -> None:
    habits = Habits()
    habits.began("s-1", step=1, next_s=0.4, now_s=1.0)
    habits.ended("s-1", step=1, now_s=1.2)
    assert habits.expected_s(now_s=1.2) == 1.4
    habits.began("s-1", step=2, next_s=0.4, now_s=1.5)
    assert habits.expected_s(now_s=1.5) == 1.5 + (1.2 - 1.0)


def test_more_of_a_burst_is_no_new_one() -> None:
    habits = Habits()
    habits.began("s-1", step=1, next_s=None, now_s=1.0)
    habits.began("s-1", step=1, next_s=0.5, now_s=1.1)
    habits.ended("s-1", step=1, now_s=1.3)
    habits.began("s-1", step=2, next_s=None, now_s=2.0)
    assert habits.expected_s(now_s=2.0) == 2.0 + (1.3 - 1.0)


def test_what_is_overdue_is_not_expected_any_more() -> None:
    habits = Habits()
    habits.began("s-1", step=1, next_s=0.4, now_s=1.0)
    habits.ended("s-1", step=1, now_s=1.2)
    assert habits.expected_s(now_s=1.4 + SLACK_S / 2) == 1.4
    assert habits.expected_s(now_s=1.4 + 2 * SLACK_S) is None


def test_the_nearest_of_all_sessions_counts_and_who_is_gone_is_forgotten() -> None:
    habits = Habits()
    for session, next_s in (("s-1", 0.4), ("s-2", 0.3)):
        habits.began(session, step=1, next_s=next_s, now_s=1.0)
        habits.ended(session, step=1, now_s=1.1)
    assert habits.expected_s(now_s=1.1) == 1.3
    habits.forget("s-2")
    assert habits.expected_s(now_s=1.1) == 1.4
