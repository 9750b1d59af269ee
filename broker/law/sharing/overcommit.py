"""What becomes of promises that do not fit into a capacity, by a stated rule, and the alarm that says so.

    floors      hold at every moment. Where even they exceed the capacity, all are scaled by one factor.
    guarantees  where they exceed it: every class keeps its floor, and of what its guarantee asks above that each gets
                the same part. What storage is owed is counted by what is left of its guarantee, not by what was
                promised: a debt that nobody can pay would only take from the others.

Configuration refuses what can never fit; a capacity that is measured can fall below promises that are written as rates.
"""

from __future__ import annotations

from collections.abc import Mapping

from broker.law.sharing.plan import Promises
from broker.law.sharing.water_filling import Claim, allocate
from broker.model.values import Alarm
from hive_qos.units import format_rate


def kept(promised: Mapping[str, Promises], capacity_bits_per_s: int) -> Mapping[str, int]:
    """The guarantee of each class that can be kept at a capacity: all of it, where all fit."""
    claims = [Claim(1.0, own.floor, own.guarantee, own.guarantee, own.guarantee) for own in promised.values()]
    rates = allocate(claims, capacity_bits_per_s=capacity_bits_per_s).rates_bits_per_s
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
