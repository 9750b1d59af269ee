"""The sections of `broker.toml` about who shares and when: `[job.NAME]` and `[[schedule]]`."""

from __future__ import annotations

import datetime
import difflib
import re
import zoneinfo
from collections.abc import Callable, Mapping
from typing import Any

from broker.policy.reader import Reader
from broker.policy.types import CLASS_NAMES, ClassOverride, JobPolicy, SchedulePolicy, Share

JOBS_MAX = 64
"""Entries; a pattern stands for as many jobs as it fits."""
JOB_NAME_BYTES_MAX = 128
"""As long as a session may call its job (`broker.client.protocol`)."""
UID_MAX = 2**32 - 2
"""The last one is nobody's: the kernel's word for none."""
SCHEDULES_MAX = 16
"""Every tick looks at each of them."""
SCHEDULE_NAME_LENGTH_MAX = 64
"""It stands in a line of the status, with the time at which it ends."""
DAYS = ("mon", "tue", "wed", "thu", "fri", "sat", "sun")
DAY_MINUTES = 24 * 60  # by the clock: a day on which clocks change has as many

JOB_KEYS = ("weight", "guarantee", "ceiling", "uid")
SCHEDULE_KEYS = ("name", "days", "from", "to", "timezone", "class")
OVERRIDE_KEYS = ("guarantee", "floor", "ceiling", "weight", "priority")


def read_jobs(reader: Reader, raw: Mapping[str, Any], *, share: Callable[[str], Share]) -> tuple[JobPolicy, ...]:
    """Read all `[job.NAME]`, in the order of the file."""
    table = reader.table(raw, "job", prefix="")
    if len(table) > JOBS_MAX:
        reader.problem("job", len(table), f'at most {JOBS_MAX} jobs; one pattern, e.g. [job."nightly-*"], fits many')
        return ()
    return tuple(_job(reader, table, name, share) for name in table)


def read_schedules(
    reader: Reader, raw: Mapping[str, Any], *, share: Callable[[str], Share]
) -> tuple[SchedulePolicy, ...]:
    """Read all `[[schedule]]`, in the order of the file."""
    entries = raw.get("schedule", [])
    if not isinstance(entries, list) or not all(isinstance(entry, dict) for entry in entries):
        reader.problem("schedule", entries, "write each schedule as a section of its own: [[schedule]]")
        return ()
    if len(entries) > SCHEDULES_MAX:
        reader.problem("schedule", len(entries), f"at most {SCHEDULES_MAX} schedules")
        return ()
    found = tuple(_schedule(reader, entry, f"schedule[{i}].", share) for i, entry in enumerate(entries))
    names = [entry.name for entry in found]
    for i, name in enumerate(names):
        if name and name in names[:i]:
            reader.problem(f"schedule[{i}].name", name, "named twice; the name is what the status shows")
    return found


def _job(reader: Reader, table: Mapping[str, Any], name: str, share: Callable[[str], Share]) -> JobPolicy:
    prefix, default = f"job.{name}.", JobPolicy(name)
    if not name or not name.isprintable() or len(name.encode()) > JOB_NAME_BYTES_MAX:
        reason = f"write a job's name or a pattern, printable, at most {JOB_NAME_BYTES_MAX} bytes"
        reader.problem("job", name, reason)
    raw = reader.table(table, name, prefix="job.")
    reader.known(raw, keys=JOB_KEYS, prefix=prefix)
    guarantee = reader.parsed(raw, "guarantee", share, prefix=prefix, default=default.guarantee)
    ceiling = reader.parsed(raw, "ceiling", share, prefix=prefix, default=default.ceiling)
    if ceiling.fraction == 0:
        reader.problem(prefix + "ceiling", "0 %", "the job could never send; write more, or do not start it")
    for low, high in (
        (guarantee.fraction, ceiling.fraction), (guarantee.rate_bits_per_s, ceiling.rate_bits_per_s),
    ):  # fmt: skip
        if low is not None and high is not None and low > high:
            reader.problem(prefix + "guarantee", raw.get("guarantee"), f"above {prefix}ceiling; lower it or raise that")
    uid = reader.integer(raw, "uid", prefix=prefix, high=UID_MAX) if "uid" in raw else None
    return JobPolicy(name, reader.weight(raw, prefix=prefix, default=default.weight), guarantee, ceiling, uid)


def _schedule(
    reader: Reader, raw: Mapping[str, Any], prefix: str, share: Callable[[str], Share]
) -> SchedulePolicy:  # fmt: skip
    reader.known(raw, keys=SCHEDULE_KEYS, prefix=prefix)
    name = raw.get("name")
    if not isinstance(name, str) or not name.isprintable() or not 1 <= len(name) <= SCHEDULE_NAME_LENGTH_MAX:
        reason = f'write a name, e.g. "office hours", of at most {SCHEDULE_NAME_LENGTH_MAX} printable characters'
        reader.problem(prefix + "name", name, reason)
        name = ""
    from_minutes = read_time(reader, raw, "from", prefix)
    to_minutes = read_time(reader, raw, "to", prefix, most=DAY_MINUTES)
    if from_minutes is not None and from_minutes == to_minutes:
        reader.problem(prefix + "to", raw.get("to"), 'the same as `from`; a whole day is "00:00" to "24:00"')
    classes = reader.table(raw, "class", prefix=prefix)
    reader.known(classes, keys=CLASS_NAMES, prefix=prefix + "class.")
    overrides = tuple(
        _override(reader, classes, one, prefix + "class.", share) for one in CLASS_NAMES if one in classes
    )
    if not overrides:
        reason = "it changes nothing; write what is otherwise meanwhile, e.g. [schedule.class.storage]"
        reader.problem(prefix + "class", raw.get("class"), reason)
    return SchedulePolicy(
        name=name,
        days=_days(reader, raw, prefix),
        from_s=60 * (from_minutes or 0),
        to_s=60 * (to_minutes or 0),
        timezone=read_timezone(reader, raw, prefix),
        classes=overrides,
    )


def _override(
    reader: Reader, table: Mapping[str, Any], name: str, prefix: str, share: Callable[[str], Share]
) -> ClassOverride:
    raw, own = reader.table(table, name, prefix=prefix), f"{prefix}{name}."
    reader.known(raw, keys=OVERRIDE_KEYS, prefix=own)
    unset: Share | None = None
    return ClassOverride(
        name=name,
        guarantee=reader.parsed(raw, "guarantee", share, prefix=own, default=unset),
        floor=reader.parsed(raw, "floor", share, prefix=own, default=unset),
        ceiling=reader.parsed(raw, "ceiling", share, prefix=own, default=unset),
        weight=reader.weight(raw, prefix=own, default=1.0) if "weight" in raw else None,
        priority=reader.integer(raw, "priority", prefix=own, high=7) if "priority" in raw else None,
    )


def _days(reader: Reader, raw: Mapping[str, Any], prefix: str) -> tuple[int, ...]:
    days = raw.get("days", list(DAYS))
    if not isinstance(days, list) or not days or not all(isinstance(day, str) and day in DAYS for day in days):
        reader.problem(prefix + "days", days, f'write a list of days, e.g. ["mon", "tue"]; known: {", ".join(DAYS)}')
        return ()
    return tuple(sorted({DAYS.index(day) for day in days}))


def read_time(
    reader: Reader, raw: Mapping[str, Any], key: str, prefix: str, *, most: int = DAY_MINUTES - 1
) -> int | None:
    """Minutes since midnight; None where that is not what stands there."""
    value = raw.get(key)
    if isinstance(value, datetime.time):  # TOML has times of its own: from = 08:00:00
        value = value.isoformat(timespec="minutes") if value.second == value.microsecond == 0 else value
    found = re.fullmatch(r"([0-9]{1,2}):([0-9]{2})", value) if isinstance(value, str) else None
    minutes = 60 * int(found[1]) + int(found[2]) if found is not None and int(found[2]) < 60 else None
    if minutes is None or minutes > most:
        last = "24:00" if most == DAY_MINUTES else "23:59"
        reader.problem(prefix + key, value, f'write hours and minutes, "00:00" to "{last}"')
        return None
    return minutes


def read_timezone(reader: Reader, raw: Mapping[str, Any], prefix: str) -> str:
    """A name of the time zone database; UTC where it is none."""
    name = raw.get("timezone")
    if name == "UTC":
        return "UTC"
    reason = 'write a name of the time zone database, e.g. "Europe/Berlin" or "UTC"'
    if isinstance(name, str) and name and name.isprintable():
        try:
            zoneinfo.ZoneInfo(name)
        except (ValueError, OSError, zoneinfo.ZoneInfoNotFoundError):  # a path outside, a directory, no such name
            known = zoneinfo.available_timezones()
            near = difflib.get_close_matches(name, known, n=1)
            if near:
                reason = f"no such time zone; did you mean `{near[0]}`?"
            elif not known:
                reason = "this host has no time zone database: install the package tzdata (Debian's, or PyPI's)"
        else:
            return name
    reader.problem(prefix + "timezone", name, reason)
    return "UTC"
