"""The classes as they are treated now: what the file says, then the schedules that hold, then a call under way.

Where several schedules hold, they are taken in the order of the file, key by key: the later one wins.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence

from msgspec import Struct

from broker.law.sharing import call_detector
from broker.law.state import PresenceState
from broker.model.reasons import Because, Reason
from broker.model.values import Alarm, ScheduleInForce
from broker.policy.overrides import with_overrides
from broker.policy.types import ClassPolicy, Policy


class EffectivePolicy(Struct, frozen=True):
    """The classes in force, and why a ceiling is not the file's, by class."""

    classes: tuple[ClassPolicy, ...]
    limits: dict[str, Reason]


def in_force(
    policy: Policy, held: Sequence[ScheduleInForce], state: PresenceState, *, capacity_bits_per_s: int
) -> EffectivePolicy:
    """Put together what holds at one interface.

    Args:
        policy: what the file says.
        held: the schedules that hold.
        state: whether somebody is on a call through this interface.
        capacity_bits_per_s: the interface's, of which shares are.
    """
    classes = policy.classes
    limits: dict[str, Reason] = {}
    holds = {entry.name: entry for entry in held}
    for schedule in policy.schedules:
        if (now := holds.get(schedule.name)) is None:
            continue
        classes = with_overrides(classes, schedule.classes)
        for override in schedule.classes:
            if override.ceiling is not None:
                limits[override.name] = Because.HELD_BY_SCHEDULE(
                    ceiling_bits_per_s=override.ceiling.of(capacity_bits_per_s),
                    schedule=schedule.name,
                    end=f"until {now.until}" if now.until else "always",
                )
    if not (policy.presence.enabled and state.present):
        return EffectivePolicy(classes, limits)
    gentler = tuple(
        call_detector.gentler(entry, policy.presence, capacity_bits_per_s=capacity_bits_per_s) for entry in classes
    )
    for before, after in zip(classes, gentler, strict=True):
        if after.ceiling != before.ceiling:
            limits[after.name] = Because.HELD_BY_PRESENCE(ceiling_bits_per_s=after.ceiling.of(capacity_bits_per_s))
    return EffectivePolicy(gentler, limits)


def unknown_schedules(policy: Policy, unknown: Collection[str]) -> tuple[Alarm, ...]:
    """Alarms for the schedules of which nobody can say whether they hold."""
    text = "this host does not know its time zone any more (is the package tzdata there?); it does not hold meanwhile"
    return tuple(
        Alarm("schedule-unknown", entry.name, f"{entry.timezone}: {text}")
        for entry in policy.schedules
        if entry.name in unknown
    )
