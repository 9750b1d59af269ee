"""When the loop decides: one rule says when something is due and whether it is."""

from __future__ import annotations

import itertools
import math
from dataclasses import replace

import pytest

from broker.daemon.tick_scheduler import (
    LINKS_S,
    PEERS_S,
    PUT_OFF_RESTING,
    URGENT_S,
    WAIT,
    WAIT_RESTING,
    Moment,
    Occasions,
    Rhythm,
)

TICK_S = 0.1


def rhythm() -> Rhythm:
    return Rhythm(tick_s=TICK_S, now_s=10.0)


def test_nothing_is_due_before_the_tick_when_nothing_happens() -> None:
    assert rhythm().due_s(Occasions()) == 10.0 + TICK_S
    assert rhythm().moment(Occasions(), now_s=10.0999) is None
    assert rhythm().moment(Occasions(), now_s=10.0 + TICK_S) is Moment.TICK


def test_an_announcement_waits_as_long_as_announcements_share_a_decision_and_an_ask_less() -> None:
    assert rhythm().due_s(Occasions(announced=True)) == 10.0 + URGENT_S
    assert rhythm().due_s(Occasions(asked=True)) == 10.0 + PEERS_S


def test_both_at_once_are_decided_when_the_first_of_them_is_due() -> None:
    both = Occasions(announced=True, asked=True)
    assert rhythm().due_s(both) == 10.0 + PEERS_S
    assert rhythm().moment(both, now_s=10.0 + PEERS_S) is Moment.SOON


def test_a_decision_that_is_to_be_made_again_comes_in_time_but_not_at_once() -> None:
    assert rhythm().due_s(Occasions(again_s=10.05)) == 10.05
    assert rhythm().due_s(Occasions(again_s=10.0)) == 10.0 + URGENT_S
    assert rhythm().due_s(Occasions(again_s=9999.0)) == 10.0 + TICK_S


def test_links_that_changed_are_looked_at_before_a_tick_that_is_due_too() -> None:
    changed = Occasions(links=True)
    assert rhythm().due_s(changed) == 10.0 + LINKS_S
    assert rhythm().moment(changed, now_s=10.5) is Moment.LINKS


@pytest.mark.parametrize("announced", [False, True])
@pytest.mark.parametrize("asked", [False, True])
@pytest.mark.parametrize("links", [False, True])
@pytest.mark.parametrize("again_s", [None, 9.0, 10.003, 10.2])
def test_who_wakes_when_something_is_due_has_something_to_do(
    announced: bool, asked: bool, links: bool, again_s: float | None
) -> None:
    """Else the loop would spin: wake, find nothing to do, wake."""
    occasions = Occasions(announced=announced, asked=asked, links=links, again_s=again_s)
    due_s = rhythm().due_s(occasions)
    assert rhythm().moment(occasions, now_s=due_s) is not None
    assert rhythm().moment(occasions, now_s=math.nextafter(due_s, 0.0)) is None


def test_a_tick_comes_a_whole_interval_after_a_decision_between_two() -> None:
    one = rhythm()
    one.decided(Moment.SOON, began_s=10.04, ended_s=10.05, tick_s=TICK_S)
    assert one.due_s(Occasions()) == 10.04 + TICK_S
    assert one.due_s(Occasions(announced=True)) == 10.04 + URGENT_S


def test_decisions_without_end_put_a_tick_off_by_one_interval_at_most() -> None:
    one = rhythm()
    for number in range(1, 40):
        one.decided(Moment.SOON, began_s=10.0 + number * URGENT_S, ended_s=10.0 + number * URGENT_S, tick_s=TICK_S)
    assert one.due_s(Occasions()) == pytest.approx(10.0 + 2 * TICK_S)
    assert one.moment(Occasions(announced=True), now_s=10.2) is Moment.TICK
    one.decided(Moment.TICK, began_s=10.2, ended_s=10.2, tick_s=TICK_S)
    assert one.due_s(Occasions()) == pytest.approx(10.3)
    assert one.late_ticks == 0


def test_a_decision_just_before_a_late_tick_makes_it_no_earlier() -> None:
    one = rhythm()
    one.decided(Moment.TICK, began_s=10.1, ended_s=10.25, tick_s=TICK_S)
    one.decided(Moment.SOON, began_s=10.26, ended_s=10.26, tick_s=TICK_S)
    assert one.due_s(Occasions()) == pytest.approx(10.3)


def test_ticks_that_were_missed_are_counted_and_not_made_up_for() -> None:
    one = rhythm()
    one.decided(Moment.TICK, began_s=10.1, ended_s=10.45, tick_s=TICK_S)
    assert one.late_ticks == 3
    assert one.due_s(Occasions()) == pytest.approx(10.5)


def test_a_tick_waits_for_a_burst_that_is_expected_and_is_made_with_it() -> None:
    one = rhythm()
    expected = Occasions(expected_s=10.115)
    assert one.due_s(expected) == pytest.approx(10.0 + (1 + WAIT) * TICK_S)
    assert one.moment(expected, now_s=10.11) is None
    assert one.moment(replace(expected, announced=True), now_s=10.117) is Moment.TICK


def test_a_tick_does_not_wait_for_what_is_too_far_ahead_or_over() -> None:
    for expected_s in (10.1 + WAIT * TICK_S, 10.05):
        assert rhythm().due_s(Occasions(expected_s=expected_s)) == 10.0 + TICK_S


def test_a_tick_that_waited_in_vain_waits_again_only_after_something_was_announced() -> None:
    one = rhythm()
    late_s = 10.0 + (1 + WAIT) * TICK_S
    assert one.moment(Occasions(expected_s=10.12), now_s=late_s) is Moment.TICK
    one.decided(Moment.TICK, began_s=late_s, ended_s=late_s, tick_s=TICK_S)
    assert one.due_s(Occasions(expected_s=10.21)) == pytest.approx(10.2)
    assert one.late_ticks == 0
    one.decided(Moment.SOON, began_s=10.15, ended_s=10.15, tick_s=TICK_S)
    assert one.due_s(Occasions(expected_s=10.26)) == pytest.approx(10.25 + WAIT * TICK_S)


def test_a_tick_that_only_reads_is_a_tick_and_no_decision() -> None:
    one = rhythm()
    one.decided(Moment.READ, began_s=10.1, ended_s=10.101, tick_s=TICK_S)
    assert one.due_s(Occasions()) == pytest.approx(10.2)
    assert one.due_s(Occasions(announced=True)) == 10.0 + URGENT_S, "the last decision was before it: at once"
    assert one.moment(Occasions(asked=True), now_s=10.102) is Moment.SOON
    one.decided(Moment.SOON, began_s=10.102, ended_s=10.103, tick_s=TICK_S)
    assert one.due_s(Occasions()) == pytest.approx(10.202)


def test_reads_that_were_missed_are_counted_and_not_made_up_for() -> None:
    one = rhythm()
    one.decided(Moment.READ, began_s=10.1, ended_s=10.45, tick_s=TICK_S)
    assert one.late_ticks == 3
    assert one.due_s(Occasions()) == pytest.approx(10.5)


def test_a_read_that_waited_for_a_burst_in_vain_waits_again_only_after_something_was_announced() -> None:
    one = rhythm()
    late_s = 10.0 + (1 + WAIT) * TICK_S
    one.decided(Moment.READ, began_s=late_s, ended_s=late_s, tick_s=TICK_S)
    assert one.due_s(Occasions(expected_s=10.21)) == pytest.approx(10.2)


def test_where_the_decision_rests_a_tick_waits_longer_for_a_burst() -> None:
    expected = Occasions(expected_s=10.14)
    assert rhythm().due_s(expected) == pytest.approx(10.1)
    assert rhythm().due_s(replace(expected, rests=True)) == pytest.approx(10.0 + (1 + WAIT_RESTING) * TICK_S)
    assert rhythm().moment(replace(expected, rests=True), now_s=10.13) is None


def test_the_next_tick_comes_a_whole_interval_after_one_that_was_made_with_its_burst() -> None:
    one = rhythm()
    one.decided(Moment.TICK, began_s=10.14, ended_s=10.141, tick_s=TICK_S, rested=True)
    assert one.due_s(Occasions()) == pytest.approx(10.24)
    assert one.due_s(Occasions(expected_s=10.25)) == pytest.approx(10.24 + WAIT * TICK_S), "it did not wait in vain"
    assert one.late_ticks == 0


def test_where_the_decision_rests_others_between_ticks_put_one_off_for_longer() -> None:
    one = rhythm()
    for number in range(1, 60):
        at_s = 10.0 + number * URGENT_S
        one.decided(Moment.SOON, began_s=at_s, ended_s=at_s, tick_s=TICK_S, rested=True)
    assert one.due_s(Occasions()) == pytest.approx(10.0 + PUT_OFF_RESTING * TICK_S)


@pytest.mark.parametrize(("burst_s", "reads"), [(0.06, 2), (0.14, 1), (0.22, 1), (0.27, 2), (0.33, 2)])
def test_a_step_with_one_burst_costs_few_ticks_besides_its_two_decisions(burst_s: float, reads: int) -> None:
    """As the loop does it, with steps of 0.36 s that are foreseen to some milliseconds; nothing is left unread."""
    one, now_s, done, times_s = rhythm(), 10.0, [], [10.0]
    for place, event_s in enumerate(10.36 + 0.36 * step + part for step in range(100) for part in (0.0, burst_s)):
        expected = Occasions(expected_s=event_s, rests=True)
        comes_s = event_s + 0.004 * (place % 3)
        while one.due_s(expected) < comes_s:
            now_s = max(now_s, one.due_s(expected))
            one.decided(Moment.READ, began_s=now_s, ended_s=now_s + 0.001, tick_s=TICK_S, rested=True)
            done.append(Moment.READ)
            times_s.append(now_s)
        announced = replace(expected, announced=True)
        now_s = max(comes_s, one.due_s(announced))
        moment = one.moment(announced, now_s=now_s)
        assert moment in (Moment.SOON, Moment.TICK)
        one.decided(moment, began_s=now_s, ended_s=now_s + 0.003, tick_s=TICK_S, rested=True)
        times_s.append(now_s)
    assert len(done) <= 100 * reads + 5
    assert max(after - before for before, after in itertools.pairwise(times_s)) <= (1 + WAIT_RESTING) * TICK_S + 1e-6
    assert one.late_ticks == 0
