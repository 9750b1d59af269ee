"""When the loop decides."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from broker.daemon.tick_scheduler import IDLE_TICK_S, LINKS_S, PEERS_S, URGENT_S, Due, Events, TickScheduler

TICK_S = 0.1
NOTHING = Events()


@pytest.fixture
def scheduler() -> TickScheduler:
    return TickScheduler(now_s=10.0, interval_s=TICK_S)


def test_without_an_event_the_next_tick_comes_after_its_interval(scheduler: TickScheduler) -> None:
    assert scheduler.due_s(NOTHING) == 10.0 + TICK_S
    assert scheduler.due(NOTHING, now_s=10.0999) is None
    assert scheduler.due(NOTHING, now_s=10.0 + TICK_S) is Due.TICK


def test_a_burst_is_decided_on_between_two_ticks_and_another_broker_sooner_still(scheduler: TickScheduler) -> None:
    assert scheduler.due_s(Events(announced=True)) == 10.0 + URGENT_S
    assert scheduler.due_s(Events(asked=True)) == 10.0 + PEERS_S
    assert scheduler.due(Events(announced=True), now_s=10.0 + URGENT_S) is Due.BETWEEN


def test_links_are_looked_at_first_and_once_for_a_storm_of_changes(scheduler: TickScheduler) -> None:
    assert scheduler.due_s(Events(links=True)) == 10.0 + LINKS_S
    assert scheduler.due(Events(links=True, announced=True), now_s=10.5) is Due.LINKS


def test_a_decision_that_wants_another_gets_it_no_sooner_than_an_announcement_would(scheduler: TickScheduler) -> None:
    assert scheduler.due_s(Events(again_s=10.05)) == 10.05
    assert scheduler.due_s(Events(again_s=10.0)) == 10.0 + URGENT_S
    assert scheduler.due_s(Events(again_s=99.0)) == 10.0 + TICK_S


def test_announcements_all_the_time_do_not_keep_a_tick_from_coming(scheduler: TickScheduler) -> None:
    for _ in range(30):
        at_s = scheduler.due_s(Events(announced=True))
        due = scheduler.due(Events(announced=True), now_s=at_s)
        assert due is not None
        scheduler.decided(due, began_s=at_s, ended_s=at_s, interval_s=TICK_S)
        if due is Due.TICK:
            assert at_s == pytest.approx(10.0 + TICK_S)
            return
    pytest.fail("no tick")


def test_what_begins_while_nothing_was_active_is_followed_at_the_usual_interval(scheduler: TickScheduler) -> None:
    scheduler.decided(Due.TICK, began_s=10.1, ended_s=10.1, interval_s=IDLE_TICK_S)
    assert scheduler.due_s(NOTHING) == pytest.approx(10.5)
    scheduler.decided(Due.BETWEEN, began_s=10.2, ended_s=10.2, interval_s=TICK_S)
    assert scheduler.due_s(NOTHING) == pytest.approx(10.3)


def test_ticks_that_were_missed_are_counted_and_not_made_up_for(scheduler: TickScheduler) -> None:
    scheduler.decided(Due.TICK, began_s=10.1, ended_s=10.45, interval_s=TICK_S)
    assert scheduler.late_ticks == 3
    assert scheduler.due_s(NOTHING) == pytest.approx(10.5)


@given(st.booleans(), st.booleans(), st.booleans(), st.none() | st.floats(9.0, 12.0))
def test_what_is_due_is_done_at_its_time_whatever_has_happened(
    announced: bool, asked: bool, links: bool, again_s: float | None
) -> None:
    scheduler = TickScheduler(now_s=10.0, interval_s=TICK_S)
    events = Events(announced=announced, asked=asked, links=links, again_s=again_s)
    assert scheduler.due(events, now_s=scheduler.due_s(events)) is not None
    assert scheduler.due_s(events) <= 10.0 + TICK_S
