"""The classes as they are treated now: what the file says, then the schedules that hold, then a call under way."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from msgspec import Struct

from broker.law.sharing import call_detector, schedule
from broker.law.sharing.schedule import ActiveSchedule
from broker.law.state import PresenceState
from broker.model.reasons import Because, Reason
from broker.policy.types import ClassPolicy, Policy


class Promised(Struct, frozen=True):
    """The classes in force, and why a ceiling is not the file's, by class."""

    classes: tuple[ClassPolicy, ...]
    limits: Mapping[str, Reason]


def in_force(
    policy: Policy, held: Sequence[ActiveSchedule], state: PresenceState, *, capacity_bits_per_s: int
) -> Promised:
    """Put together what holds at one interface.

    Args:
        policy: what the file says.
        held: the schedules that hold.
        state: whether somebody is on a call through this interface.
        capacity_bits_per_s: the interface's, of which shares are.
    """
    classes = schedule.overlaid(policy.classes, held)
    limits = schedule.ceiling_reasons(held, capacity_bits_per_s)
    if not (policy.presence.enabled and state.present):
        return Promised(classes, limits)
    gentler = tuple(
        call_detector.gentler(entry, policy.presence, capacity_bits_per_s=capacity_bits_per_s) for entry in classes
    )
    for before, after in zip(classes, gentler, strict=True):
        if after.ceiling != before.ceiling:
            limits[after.name] = Because.HELD_BY_PRESENCE(ceiling_bits_per_s=after.ceiling.of(capacity_bits_per_s))
    return Promised(gentler, limits)
