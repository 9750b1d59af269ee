"""Which schedules hold at a moment, until when, and what they make of the classes. No clock and no file is read here.

What counts is the local clock of the schedule's own zone. An interval is counted to the day on which it begins, and
lasts from its beginning to its end on the time line:

- a local time that comes twice (clocks go back) is its first occurrence;
- one that never comes (clocks go forward) is the moment of the jump.

So every interval comes once on each of its days, two that touch go on touching, and one inside the hour that is left
out is empty. What the wall clock said before does not matter: set back by an hour, it is an hour earlier. Where several
schedules hold, they are taken in the order of the file, key by key: the later one wins.
"""

from __future__ import annotations

import datetime
from collections.abc import Sequence

from msgspec import Struct

from broker.model.reasons import Because, Reason
from broker.model.values import Alarm, ScheduleInForce, WallClock, ZoneClock
from broker.policy.overrides import with_overrides
from broker.policy.types import ClassPolicy, SchedulePolicy

DAY_S = 86_400
MONDAY = 3
"""The first of January 1970 was a Thursday: days since then, plus 3, by 7."""
DAYS_AHEAD = 8
"""How far ahead an end is looked for: a week, in which every interval of a schedule comes, and a day. One that has no
end within it has none."""


class ActiveSchedule(Struct, frozen=True):
    """A schedule that holds, and the UTC second at which it ends; None where it never does."""

    schedule: SchedulePolicy
    until_s: int | None
    shown: ScheduleInForce


def holding(schedules: Sequence[SchedulePolicy], wall: WallClock | None) -> tuple[ActiveSchedule, ...]:
    """Find those that hold now, in their order. Without a wall clock, or its zone in it, none does."""
    if wall is None:
        return ()
    zones = {zone.name: zone for zone in wall.zones}
    found = []
    for entry in schedules:
        zone = zones.get(entry.timezone)
        if zone is not None:
            holds, until_s = _interval(entry, zone, wall.utc_s)
            if holds:
                found.append(ActiveSchedule(entry, until_s, _shown(entry, zone, wall.utc_s, until_s)))
    return tuple(found)


def overlaid(classes: Sequence[ClassPolicy], held: Sequence[ActiveSchedule]) -> tuple[ClassPolicy, ...]:
    """The classes as the schedules that hold want them."""
    for entry in held:
        classes = with_overrides(classes, entry.schedule.classes)
    return classes if isinstance(classes, tuple) else tuple(classes)


def ceiling_reasons(held: Sequence[ActiveSchedule], capacity_bits_per_s: int) -> dict[str, Reason]:
    """Why a class may use less than all: by class, of the schedules that set its ceiling the one that wins."""
    found: dict[str, Reason] = {}
    for entry in held:
        for override in entry.schedule.classes:
            if override.ceiling is not None:
                rate = override.ceiling.of(capacity_bits_per_s)
                end = f"until {entry.shown.until}" if entry.shown.until else "always"
                found[override.name] = Because.HELD_BY_SCHEDULE(
                    ceiling_bits_per_s=rate, schedule=entry.schedule.name, end=end
                )
    return found


def alarms(schedules: Sequence[SchedulePolicy], wall: WallClock | None) -> tuple[Alarm, ...]:
    """Schedules of which nobody can say whether they hold."""
    known = {zone.name for zone in wall.zones} if wall is not None else set()
    text = "this host does not know its time zone any more (is the package tzdata there?); it does not hold meanwhile"
    return tuple(
        Alarm("schedule-unknown", entry.name, f"{entry.timezone}: {text}")
        for entry in schedules
        if wall is not None and entry.timezone not in known
    )


def utc_of(local_s: int, zone: ZoneClock) -> int:
    """The first moment at which a zone's clock shows a local time or, where it jumps over it, a later one.

    Args:
        local_s: seconds since 1970 on the local clock.
        zone: what that clock does around then.
    """
    begins: int | None = None
    offset_s = zone.offset_s
    for ends, next_offset_s in zone.changes:
        at_s = _not_before(begins, local_s - offset_s)
        if at_s < ends:
            return at_s
        begins, offset_s = ends, next_offset_s
    return _not_before(begins, local_s - offset_s)


def offset_at(utc_s: int, zone: ZoneClock) -> int:
    """What a zone's clock shows beyond UTC at a moment."""
    return next((after for at_s, after in reversed(zone.changes) if at_s <= utc_s), zone.offset_s)


def _not_before(begins_s: int | None, at_s: int) -> int:
    return at_s if begins_s is None else max(begins_s, at_s)


def _interval(schedule: SchedulePolicy, zone: ZoneClock, utc_s: int) -> tuple[bool, int | None]:
    """Whether a schedule holds, and until when: to the end of the last of the intervals that touch."""
    today = (utc_s + offset_at(utc_s, zone)) // DAY_S
    for day in (today - 1, today, today + 1):  # tomorrow: clocks may have gone back over midnight
        begins, ends = _of_day(schedule, zone, day)
        if begins <= utc_s < ends:
            for later in range(day + 1, today + DAYS_AHEAD + 1):
                next_begins, next_ends = _of_day(schedule, zone, later)
                if next_begins <= ends < next_ends:
                    ends = next_ends
                elif next_begins > ends:
                    return True, ends
            return True, None
    return False, None


def _of_day(schedule: SchedulePolicy, zone: ZoneClock, day: int) -> tuple[int, int]:
    """The interval that begins on a local day (days since 1970); an empty one later than any other where none does."""
    if (day + MONDAY) % 7 not in schedule.days:
        return utc_of((day + 2) * DAY_S, zone), 0
    over_midnight = DAY_S if schedule.to_s <= schedule.from_s else 0
    return (
        utc_of(day * DAY_S + schedule.from_s, zone),
        utc_of(day * DAY_S + schedule.to_s + over_midnight, zone),
    )


def _shown(schedule: SchedulePolicy, zone: ZoneClock, utc_s: int, until_s: int | None) -> ScheduleInForce:
    if until_s is None:
        return ScheduleInForce(schedule.name, schedule.timezone, None, None)
    local = datetime.timezone(datetime.timedelta(seconds=offset_at(until_s, zone)))
    until = datetime.datetime.fromtimestamp(until_s, tz=local).isoformat(timespec="minutes")
    return ScheduleInForce(schedule.name, schedule.timezone, until, until_s - utc_s)
