"""The last events in memory: bounded by level, numbered without gaps, and found by number, time and level."""

from __future__ import annotations

import pytest

from broker.api.log import recent_log
from broker.api.questions import LogQuestion, read_query
from broker.events.recent import KEPT, VALUE_MAX, RecentEvents


def test_however_much_happens_as_it_should_a_warning_stays() -> None:
    recent = RecentEvents(wall_clock=lambda: 5.0)
    recent.add("warning", "carrier-lost", {"interface": "eth0"})
    for _ in range(2 * KEPT["info"]):
        recent.add("info", "session-opened", {})
    first, *others = recent.after()
    assert (first.number, first.event) == (1, "carrier-lost")
    assert [one.number for one in others] == list(range(KEPT["info"] + 2, 2 * KEPT["info"] + 2))


def test_a_long_value_is_cut_and_a_number_stays_one() -> None:
    recent = RecentEvents()
    recent.add("error", "x", {"error": "e" * 10_000, "uid": 7, "adopted": True})
    (one,) = recent.after()
    assert one.keys == {"error": "e" * VALUE_MAX, "uid": 7, "adopted": True}


def test_events_are_found_by_number_time_and_level() -> None:
    now_s = [0.0]
    recent = RecentEvents(wall_clock=lambda: now_s[0])
    for level in ("debug", "info", "warning", "error"):
        now_s[0] += 10
        recent.add(level, f"{level}-event", {})
    assert [one.event for one in recent.after(2)] == ["warning-event", "error-event"]
    assert [one.event for one in recent.after(since_s=30.0)] == ["warning-event", "error-event"]
    assert [one.event for one in recent.after(1, level="info")] == ["info-event", "warning-event", "error-event"]
    answer = recent_log(recent, read_query(LogQuestion, "level=info&limit=1"))
    assert [one.event for one in answer.events] == ["error-event"]
    assert (answer.left_out, answer.began_s) == (2, 0.0)


@pytest.mark.parametrize(
    "query",
    [
        "after=x",
        "after=-1",
        "since_s=nan",
        "since_s=inf",
        "level=grave",
        "limit=0",
        "what=1",
        "after",
        "a=1&b=2&c=3&d=4&e=5",
    ],
)
def test_a_question_that_cannot_be_understood_is_refused(query: str) -> None:
    with pytest.raises(ValueError, match=r"\w"):
        read_query(LogQuestion, query)
