"""By when a program's backlog has to be done: a time of the day, each day. Pure: the time comes in."""

from __future__ import annotations

import datetime
import zoneinfo

from broker.policy.types import StorageProgram

YOUNG_S = 600.0
"""What begins so shortly before the deadline is the next day's: a file that changes at 05:59 is no missed deadline."""
OVERDUE_S_MAX = 12 * 3600.0
"""Half a day later it is more use to look at the next deadline than back at this one."""


class Deadline:
    """One program's deadline, bound to a backlog from its begin until it is done."""

    def __init__(self, program: StorageProgram) -> None:
        self._at_s, self._zone = program.deadline_s, program.timezone
        self._due: datetime.datetime | None = None

    def remaining_s(self, backlog_bytes: int, *, now: datetime.datetime) -> float | None:
        """Seconds that are left, 0 where it is overdue; None without a deadline, or with nothing to do.

        Args:
            now: with a time zone.
        """
        if self._at_s is None or backlog_bytes <= 0:
            self._due = None
            return None
        if self._due is None or (now - self._due).total_seconds() > OVERDUE_S_MAX:
            self._due = self._next(now + datetime.timedelta(seconds=YOUNG_S))
        return max(0.0, (self._due - now).total_seconds())

    def _next(self, now: datetime.datetime) -> datetime.datetime:
        """The first deadline after a time."""
        assert self._at_s is not None
        zone = zoneinfo.ZoneInfo(self._zone) if self._zone is not None else None
        local = now.astimezone(zone)
        midnight = local.replace(hour=0, minute=0, second=0, microsecond=0, tzinfo=None)
        for days in range(3):
            clock = midnight + datetime.timedelta(days=days, seconds=self._at_s)
            due = clock.astimezone() if zone is None else clock.replace(tzinfo=zone)
            if due > now:
                return due
        raise AssertionError("no deadline in three days")
