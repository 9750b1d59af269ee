"""What a schedule says of classes, put over what the configuration says of them."""

from __future__ import annotations

from collections.abc import Sequence

from msgspec.structs import replace

from broker.policy.types import ClassOverride, ClassPolicy, Share


def with_overrides(classes: Sequence[ClassPolicy], overrides: Sequence[ClassOverride]) -> tuple[ClassPolicy, ...]:
    """Put overrides over classes. A promise above a ceiling that came over it gives way to that ceiling."""
    by_name = {entry.name: entry for entry in overrides}
    return tuple(_with_override(entry, by_name.get(entry.name)) for entry in classes)


def _with_override(entry: ClassPolicy, override: ClassOverride | None) -> ClassPolicy:
    if override is None:
        return entry
    ceiling = override.ceiling or entry.ceiling
    guarantee = override.guarantee or _at_most(entry.guarantee, ceiling)
    return replace(
        entry,
        guarantee=guarantee,
        floor=override.floor or _at_most(_at_most(entry.floor, ceiling), guarantee),
        ceiling=ceiling,
        weight=entry.weight if override.weight is None else override.weight,
        priority=entry.priority if override.priority is None else override.priority,
    )


def _at_most(share: Share, most: Share) -> Share:
    """The smaller of two shares of one kind; of two kinds the decision takes the smaller (`plan.promises`)."""
    for one, other in ((share.fraction, most.fraction), (share.rate_bits_per_s, most.rate_bits_per_s)):
        if one is not None and other is not None:
            return most if other < one else share
    return share
