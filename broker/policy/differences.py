"""What differs between two policies, setting by setting, as an operator writes them. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import msgspec
from msgspec import Struct

from broker.policy.people import DAYS
from broker.policy.rules import describe, show
from broker.policy.types import ClassOverride, InterfacePolicy, MatchRule, Policy, SchedulePolicy, Share
from hive_qos.units import format_rate


class Difference(Struct, frozen=True):
    """One setting that is otherwise. `before` or `after` is "" where a policy has no such section."""

    key: str
    before: str
    after: str


def differences(before: Policy, after: Policy) -> tuple[Difference, ...]:
    """Every setting that differs, in the order of the file; defaults count as written."""
    old, new = settings(before), settings(after)
    return tuple(
        Difference(key, old.get(key, ""), new.get(key, ""))
        for key in dict.fromkeys((*old, *new))
        if old.get(key, "") != new.get(key, "")
    )


def settings(policy: Policy) -> Mapping[str, str]:
    """All settings of a policy by their keys: `class.storage.guarantee` is "20 %"."""
    found: dict[str, str] = {}
    for interface in policy.interfaces:
        found |= _keys(f"interface.{interface.name}", _interface(interface))
    for entry in policy.classes:
        found |= _keys(f"class.{entry.name}", _fields(entry, leave=("name",)))
    for job in policy.jobs:
        own = job.name if job.uid is None else f"{job.name} of uid {job.uid}"
        found |= _keys(f"job.{own}", _fields(job, leave=("name", "uid")))
    for schedule in policy.schedules:
        found |= _keys(f"schedule.{schedule.name}", _schedule(schedule))
    for program in policy.storage_programs:
        found |= _keys(f"storage_program.{program.name}", _fields(program, leave=("name",)))
    for section in ("daemon", "peers", "probe", "page"):
        value = getattr(policy, section)
        found |= _keys(section, _fields(value)) if value is not None else {}
    return found


def _keys(prefix: str, values: Mapping[str, str]) -> dict[str, str]:
    return {f"{prefix}.{key}": value for key, value in values.items()}


def _interface(entry: InterfacePolicy) -> dict[str, str]:
    inbound = _rate(entry.ingress_bits_per_s) if entry.ingress else "off"
    return {
        "egress": _rate(entry.egress_bits_per_s),
        "ingress": inbound,
        "gso_max_segs": "auto" if entry.limit_segments else "off",
    }


def _schedule(entry: SchedulePolicy) -> dict[str, str]:
    days = ", ".join(DAYS[day] for day in entry.days)
    hours = f"{days} {_clock(entry.from_s)} to {_clock(entry.to_s)} {entry.timezone}"
    return {"hours": hours} | {f"class.{one.name}": _override(one) for one in entry.classes}


def _override(entry: ClassOverride) -> str:
    changed = {
        key: value for key, value in msgspec.structs.asdict(entry).items() if value is not None and key != "name"
    }
    return ", ".join(f"{key} {_shown(value)}" for key, value in changed.items())


def _fields(entry: Struct, *, leave: Iterable[str] = ()) -> dict[str, str]:
    names = {"guarantee_window_s": "guarantee_window", "tick_s": "tick", "interval_s": "interval"}
    values = msgspec.structs.asdict(entry)
    return {names.get(key, key): _shown(value, key) for key, value in values.items() if key not in leave}


def _shown(value: Any, key: str = "") -> str:
    match value:
        case Share():
            return show(value)
        case MatchRule():
            return describe(value)
        case tuple():
            return ", ".join(_shown(one) for one in value) or "none"
        case None:
            return "off"
    return f"{value:g} s" if key.endswith("_s") else f"{value:g}" if isinstance(value, float) else str(value)


def _rate(bits_per_s: int | None) -> str:
    return "auto" if bits_per_s is None else format_rate(bits_per_s)


def _clock(seconds: int) -> str:
    return f"{seconds // 3600:02}:{seconds // 60 % 60:02}"
