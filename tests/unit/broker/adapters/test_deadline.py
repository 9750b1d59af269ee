"""By when a backlog has to be done: a time of the day."""

from __future__ import annotations

import datetime

import pytest

from broker.adapters.deadline import Deadline
from broker.policy.types import StorageProgram

SIX = 6 * 3600
HOUR = 3600.0


def deadline(at_s: int | None = SIX, zone: str = "Europe/Berlin") -> Deadline:
    return Deadline(StorageProgram("p", "rclone", "http://127.0.0.1:5572", deadline_s=at_s, timezone=zone))


def at(text: str) -> datetime.datetime:
    return datetime.datetime.fromisoformat(text).replace(tzinfo=datetime.UTC)


def test_a_backlog_of_the_evening_is_due_next_morning_by_the_clock_of_the_zone() -> None:
    assert deadline().remaining_s(1, now=at("2026-01-10 21:00")) == 8 * HOUR  # 22:00 in Berlin
    assert deadline(zone="UTC").remaining_s(1, now=at("2026-01-10 21:00")) == 9 * HOUR


@pytest.mark.parametrize(("night", "hours"), [("2026-03-28 21:00", 7), ("2026-10-24 20:00", 9)])
def test_a_night_in_which_the_clocks_change_is_an_hour_shorter_or_longer(night: str, hours: int) -> None:
    assert deadline().remaining_s(1, now=at(night)) == hours * HOUR  # 22:00 in Berlin, both times


def test_what_is_not_done_in_time_is_overdue_and_not_due_tomorrow_until_half_a_day_later() -> None:
    mine = deadline(zone="UTC")
    assert mine.remaining_s(5, now=at("2026-01-10 05:00")) == HOUR
    assert mine.remaining_s(5, now=at("2026-01-10 06:00")) == 0
    assert mine.remaining_s(5, now=at("2026-01-10 17:59")) == 0
    assert mine.remaining_s(5, now=at("2026-01-10 18:01")) == 12 * HOUR - 60


def test_what_is_done_binds_the_next_backlog_to_the_next_deadline() -> None:
    mine = deadline(zone="UTC")
    mine.remaining_s(5, now=at("2026-01-10 05:00"))
    assert mine.remaining_s(0, now=at("2026-01-10 05:30")) is None
    assert mine.remaining_s(5, now=at("2026-01-10 07:00")) == 23 * HOUR


def test_what_begins_minutes_before_the_deadline_is_the_next_days() -> None:
    assert deadline(zone="UTC").remaining_s(5, now=at("2026-01-10 05:55")) == 24 * HOUR + 300


def test_without_a_deadline_nothing_is_due() -> None:
    assert deadline(None).remaining_s(5, now=at("2026-01-10 05:55")) is None


def test_without_a_zone_this_hosts_counts() -> None:
    now = at("2026-01-10 12:00")
    due = now + datetime.timedelta(seconds=deadline_of_this_host().remaining_s(5, now=now) or 0)
    assert (due.astimezone().hour, due.astimezone().minute) == (6, 0)


def deadline_of_this_host() -> Deadline:
    return Deadline(StorageProgram("p", "rclone", "http://127.0.0.1:5572", deadline_s=SIX))
