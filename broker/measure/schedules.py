"""Which schedules hold now, and until when, by the wall clock and the time zone database.

The local clock of a schedule's own zone counts. An interval belongs to the day on which it begins. RFC 5545, 3.3.5,
says what a local time means where clocks change, and so does `datetime`:

- a local time that comes twice is its first occurrence;
- one that never comes is read with the offset before the jump.

Nothing is remembered between two answers but the last one: a clock that is set back by an hour is an hour earlier.
"""

from __future__ import annotations

import datetime
import time
import zoneinfo
from collections.abc import Callable, Sequence

from broker.model.values import ScheduleInForce, SchedulesNow
from broker.policy.types import SchedulePolicy

DAYS_AHEAD = 7
"""An end is looked for over a week, in which every interval of a schedule comes. One without an end in it has none."""


class Schedules:
    """Answers from the wall clock, anew each second. For one thread.

    Args:
        utc_s: seconds since 1970.
    """

    def __init__(self, utc_s: Callable[[], float] = time.time) -> None:
        self._utc_s = utc_s
        self._asked: tuple[int, Sequence[SchedulePolicy]] = (0, ())
        self._answer = SchedulesNow()

    def now(self, schedules: Sequence[SchedulePolicy]) -> SchedulesNow:
        """Those that hold, in their order, and those whose time zone this host does not know."""
        asked = int(self._utc_s()), schedules
        if asked != self._asked:
            self._asked, self._answer = asked, schedules_at(*asked)
        return self._answer


def schedules_at(utc_s: int, schedules: Sequence[SchedulePolicy]) -> SchedulesNow:
    """What `Schedules.now` answers at a moment, in seconds since 1970."""
    held, unknown = [], []
    for entry in schedules:
        zone = _zone(entry.timezone)
        if zone is None:
            unknown.append(entry.name)
        else:
            found = _in_force(entry, zone, utc_s)
            held += [] if found is None else [found]
    return SchedulesNow(tuple(held), tuple(unknown))


def _zone(name: str) -> datetime.tzinfo | None:
    if name == "UTC":  # needs no database
        return datetime.UTC
    try:
        return zoneinfo.ZoneInfo(name)
    except (ValueError, OSError, zoneinfo.ZoneInfoNotFoundError):
        return None


def _in_force(schedule: SchedulePolicy, zone: datetime.tzinfo, utc_s: int) -> ScheduleInForce | None:
    """The schedule with the end of the last of the intervals that touch; None where it does not hold."""
    today = datetime.datetime.fromtimestamp(utc_s, zone).date()
    until_s: int | None = None
    ahead_of_end = 0
    for ahead in range(-1, DAYS_AHEAD + 1):  # yesterday's may go on; tomorrow's has begun where midnight comes twice
        begins_s, ends_s = _interval(schedule, zone, today + datetime.timedelta(ahead))
        now_or_end_s = utc_s if until_s is None else until_s
        if begins_s <= now_or_end_s < ends_s:
            until_s, ahead_of_end = ends_s, ahead
    if until_s is None:
        return None
    if ahead_of_end == DAYS_AHEAD:
        return ScheduleInForce(schedule.name, schedule.timezone, None, None)
    until = datetime.datetime.fromtimestamp(until_s, zone).isoformat(timespec="minutes")
    return ScheduleInForce(schedule.name, schedule.timezone, until, until_s - utc_s)


def _interval(schedule: SchedulePolicy, zone: datetime.tzinfo, day: datetime.date) -> tuple[int, int]:
    """The interval that begins on a day, in seconds since 1970; an empty one where none does."""
    if day.weekday() not in schedule.days:
        return 0, 0
    midnight = datetime.datetime.combine(day, datetime.time(), zone)
    days = datetime.timedelta(days=schedule.to_s <= schedule.from_s)
    begins = midnight + datetime.timedelta(seconds=schedule.from_s)
    ends = midnight + datetime.timedelta(seconds=schedule.to_s) + days
    return int(begins.timestamp()), int(ends.timestamp())
