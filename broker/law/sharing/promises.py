"""What each class is promised now: the file, then the schedules that hold, in bits per second of the capacity.

    schedules   in the order of the file, key by key: the later one wins.
    floors      hold at every moment. Where even they exceed the capacity, all are scaled by one factor.
    guarantees  where they exceed it, every class keeps its floor, and each gets the same part of what its guarantee
                asks above that. What storage is owed is counted by what is left of its guarantee: a debt that nobody
                can pay would only take from the others.

Configuration refuses what can never fit; a capacity that is measured can fall below promises that are written as rates.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from types import MappingProxyType

from msgspec import Struct

from broker.law.sharing.water_filling import Claim, allocate
from broker.model.reasons import Because, Reason
from broker.model.values import Alarm, ScheduleInForce
from broker.policy.overrides import with_overrides
from broker.policy.types import ClassPolicy, Policy
from hive_qos.units import format_rate

LENDER = "storage"
"""The class that lends its guarantee to bursts of training."""


class Promises(Struct, frozen=True):
    """A class' policy in bits per second of one capacity: floor <= guarantee <= ceiling <= capacity."""

    guarantee: int
    floor: int
    ceiling: int


def promises(policy: ClassPolicy, capacity_bits_per_s: int) -> Promises:
    """Turn shares into rates. A default floor may exceed a guarantee that is a rate: the smaller one counts."""
    ceiling = policy.ceiling.of(capacity_bits_per_s)
    guarantee = min(policy.guarantee.of(capacity_bits_per_s), ceiling)
    return Promises(guarantee, min(policy.floor.of(capacity_bits_per_s), guarantee), ceiling)


def promises_of(classes: tuple[ClassPolicy, ...], capacity_bits_per_s: int) -> Mapping[str, Promises]:
    """The same of all classes, by name."""
    return MappingProxyType({entry.name: promises(entry, capacity_bits_per_s) for entry in classes})


def in_force(
    policy: Policy, held: Sequence[ScheduleInForce], *, capacity_bits_per_s: int
) -> tuple[tuple[ClassPolicy, ...], Mapping[str, Reason]]:
    """The classes as the schedules that hold want them, and why a ceiling is not the file's, by class.

    Args:
        policy: what the file says.
        held: the schedules that hold, in any order.
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
    return classes, limits


def unknown_schedules(policy: Policy, unknown: Collection[str]) -> tuple[Alarm, ...]:
    """Alarms for the schedules of which nobody can say whether they hold."""
    text = "this host does not know its time zone any more (is the package tzdata there?); it does not hold meanwhile"
    return tuple(
        Alarm("schedule-unknown", entry.name, f"{entry.timezone}: {text}")
        for entry in policy.schedules
        if entry.name in unknown
    )


def kept(promised: Mapping[str, Promises], capacity_bits_per_s: int) -> Mapping[str, int]:
    """The guarantee of each class that can be kept at a capacity: all of it, where all fit."""
    claims = [Claim(1.0, own.floor, own.guarantee, own.guarantee, own.guarantee) for own in promised.values()]
    rates = allocate(claims, capacity_bits_per_s=capacity_bits_per_s)
    return dict(zip(promised, rates, strict=True))


def alarms(name: str, promised: Mapping[str, Promises], *, capacity_bits_per_s: int) -> tuple[Alarm, ...]:
    """Say which promises do not fit into the capacity of an interface, and what is left of them.

    Args:
        name: of the interface.
        promised: by class.
        capacity_bits_per_s: what it carries now.
    """
    floors = guarantees = 0
    for own in promised.values():
        floors, guarantees = floors + own.floor, guarantees + own.guarantee
    if max(floors, guarantees) <= capacity_bits_per_s:
        return ()
    there = format_rate(capacity_bits_per_s)
    if floors > capacity_bits_per_s:
        part = 100 * capacity_bits_per_s / floors
        text = f"the floors sum to {format_rate(floors)}, {there} are there; each class has {part:.0f} % of its floor"
        return (Alarm("floors-scaled", name, text),)
    part = 100 * (capacity_bits_per_s - floors) / (guarantees - floors)
    text = (
        f"the guarantees sum to {format_rate(guarantees)}, {there} are there; floors hold, and above its floor each "
        f"class has {part:.0f} % of its guarantee"
    )
    return (Alarm("guarantees-scaled", name, text),)
