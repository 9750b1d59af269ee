"""The wall clock as a measurement: UTC now, and what the clocks of the named time zones do around now."""

from __future__ import annotations

import datetime
import time
import zoneinfo
from collections.abc import Callable, Iterable

from broker.model.values import WallClock, ZoneClock

DAY_S = 86_400
DAYS_BACK, DAYS_AHEAD = 4, 11
"""What `broker.law.sharing.schedule` looks at: an interval of yesterday, and ends up to nine days ahead, in any
zone."""
LIFE_S = 3600
"""How long a look into the database is good for: far less than what it looks ahead."""
STEP_S = 3 * 3600
"""Two changes of a zone within three hours are not in the database."""


class WallClocks:
    """Reads the wall clock. Remembers what a zone does; for one thread.

    Args:
        utc_s: seconds since 1970.
    """

    def __init__(self, utc_s: Callable[[], float] = time.time) -> None:
        self._utc_s = utc_s
        self._known: dict[str, tuple[ZoneClock | None, int]] = {}

    def read(self, zones: Iterable[str]) -> WallClock | None:
        """Read UTC, and what these zones do, as far as this host knows them; None where none is asked for."""
        names = sorted(set(zones))
        self._known = {name: entry for name, entry in self._known.items() if name in names}
        if not names:
            return None
        now_s = int(self._utc_s())
        clocks = [self._zone(name, now_s) for name in names]
        return WallClock(now_s, tuple(clock for clock in clocks if clock is not None))

    def _zone(self, name: str, now_s: int) -> ZoneClock | None:
        clock, looked_s = self._known.get(name, (None, None))
        if looked_s is None or abs(now_s - looked_s) >= LIFE_S:  # a clock that was set has no age
            clock, looked_s = zone_clock(name, now_s), now_s
            self._known[name] = (clock, looked_s)
        return clock


def zone_clock(name: str, now_s: int) -> ZoneClock | None:
    """Look up what a zone's clock does around a moment; None where this host does not know the zone."""
    if name == "UTC":
        return ZoneClock(name, 0)
    try:
        zone = zoneinfo.ZoneInfo(name)
    except (ValueError, OSError, zoneinfo.ZoneInfoNotFoundError):
        return None
    start_s = now_s - DAYS_BACK * DAY_S
    first = _offset_s(zone, start_s)
    changes: list[tuple[int, int]] = []
    at_s, offset_s = start_s, first
    while at_s < now_s + DAYS_AHEAD * DAY_S:
        next_s = at_s + STEP_S
        next_offset_s = _offset_s(zone, next_s)
        if next_offset_s != offset_s:
            changes.append((_change_s(zone, at_s, next_s), next_offset_s))
        at_s, offset_s = next_s, next_offset_s
    return ZoneClock(name, first, tuple(changes))


def _offset_s(zone: zoneinfo.ZoneInfo, utc_s: int) -> int:
    offset = datetime.datetime.fromtimestamp(utc_s, tz=zone).utcoffset()
    return int(offset.total_seconds()) if offset is not None else 0


def _change_s(zone: zoneinfo.ZoneInfo, before_s: int, after_s: int) -> int:
    """The first second at which the offset is that of `after_s`."""
    offset_s = _offset_s(zone, after_s)
    while after_s - before_s > 1:
        middle_s = (before_s + after_s) // 2
        before_s, after_s = (before_s, middle_s) if _offset_s(zone, middle_s) == offset_s else (middle_s, after_s)
    return after_s
