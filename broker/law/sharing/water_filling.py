"""Weighted water-filling with guarantees and ceilings: who gets how much of one capacity.

A tank with one compartment a claim: pour until the capacity is gone. The level L rises in all of them; claim i holds
w_i * L, but never less than lo_i = min(guarantee, demand) and never more than hi_i = min(demand, ceiling):

    sum over i of clamp(w_i * L, lo_i, hi_i) = C

The left side is piecewise linear in L; it bends where a claim starts to grow (L = lo/w) and where it is full
(L = hi/w). Sorting these 2n points and walking along them finds L in O(n log n). The same function divides a class
among the users of its jobs, and what a user gets among his.

Where even the lower bounds exceed C, nobody can have what was promised. The rule: every claim keeps its floor (or what
it wants, if less), and what is left is divided in proportion to what is missing to each lower bound. Where even the
floors exceed C, they are all scaled by the same factor.
"""

from __future__ import annotations

from collections.abc import Hashable, Sequence

from msgspec import Struct


class Claim(Struct, frozen=True):
    """One claimant: all rates in bits per second; `weight` above 0. `ceiling` wins over everything, even the floor."""

    weight: float
    floor_bits_per_s: int
    guarantee_bits_per_s: int
    ceiling_bits_per_s: int
    demand_bits_per_s: int


def allocate(claims: Sequence[Claim], *, capacity_bits_per_s: int) -> tuple[int, ...]:
    """Divide a capacity among claims.

    Returns:
        A whole rate for each claim, in their order. They sum to at most the capacity, and when demand exceeds it fall
        short of it by at most one bit/s a claim.

    Raises:
        ValueError: a weight that is not positive, or a negative rate.
    """
    high, low = [], []
    for claim in claims:
        demand, ceiling, guarantee = claim.demand_bits_per_s, claim.ceiling_bits_per_s, claim.guarantee_bits_per_s
        if claim.weight <= 0 or demand < 0:
            raise ValueError("weights must be above 0, rates at least 0")
        high.append(top := demand if demand < ceiling else ceiling)
        low.append(guarantee if guarantee < top else top)
    if capacity_bits_per_s < 0:
        raise ValueError("weights must be above 0, rates at least 0")
    if sum(high) <= capacity_bits_per_s:
        return tuple(high)
    if sum(low) > capacity_bits_per_s:
        floors = [min(claim.floor_bits_per_s, bottom) for claim, bottom in zip(claims, low, strict=True)]
        return tuple(_scale(floors, low, capacity_bits_per_s))
    level = _level([claim.weight for claim in claims], low, high, capacity_bits_per_s)
    rates = [
        min(max(int(claim.weight * level), bottom), top) for claim, bottom, top in zip(claims, low, high, strict=True)
    ]
    return tuple(_trim(rates, low, capacity_bits_per_s))


def allocate_by_user(
    claims: Sequence[Claim], *, users: Sequence[Hashable], capacity_bits_per_s: int
) -> tuple[int, ...]:  # fmt: skip
    """Divide a capacity among users, and what each gets among his claims: no number of claims makes it more.

    A user weighs as much as the heaviest of his claims that want anything, and is guaranteed what they are together.

    Args:
        claims, capacity_bits_per_s: as of `allocate`.
        users: whose each claim is.

    Returns:
        A rate for each claim; where everybody wants more they fall short of the capacity by a few bit/s.
    """
    mine: dict[Hashable, list[Claim]] = {}
    for user, claim in zip(users, claims, strict=True):
        mine.setdefault(user, []).append(claim)
    parts = allocate([_together(his) for his in mine.values()], capacity_bits_per_s=capacity_bits_per_s)
    divided = {
        user: iter(allocate(his, capacity_bits_per_s=part))
        for (user, his), part in zip(mine.items(), parts, strict=True)
    }
    return tuple(next(divided[user]) for user in users)


def _together(claims: Sequence[Claim]) -> Claim:
    """What several claims of one user come to."""
    wants = [min(claim.demand_bits_per_s, claim.ceiling_bits_per_s) for claim in claims]
    lows = [min(claim.guarantee_bits_per_s, want) for claim, want in zip(claims, wants, strict=True)]
    floor = sum(min(claim.floor_bits_per_s, low) for claim, low in zip(claims, lows, strict=True))
    weights = [claim.weight for claim, want in zip(claims, wants, strict=True) if want > 0]
    return Claim(max(weights, default=claims[0].weight), floor, sum(lows), sum(wants), sum(wants))


def _level(weights: Sequence[float], low: Sequence[int], high: Sequence[int], capacity_bits_per_s: int) -> float:
    """The level at which the poured amount equals the capacity; it exists because sum(low) <= C < sum(high)."""
    bends = sorted(
        [(bottom / weight, weight) for weight, bottom in zip(weights, low, strict=True)]
        + [(top / weight, -weight) for weight, top in zip(weights, high, strict=True)]
    )
    poured, slope, level = float(sum(low)), 0.0, 0.0
    for bend, change in bends:
        step = slope * (bend - level)
        if poured + step >= capacity_bits_per_s and slope > 0:
            break
        poured, level, slope = poured + step, bend, slope + change
    return level + (capacity_bits_per_s - poured) / slope if slope > 1e-12 else level


def _scale(floors: Sequence[int], wanted: Sequence[int], capacity_bits_per_s: int) -> list[int]:
    """Floors first, then the rest in proportion to what is missing; integer division keeps the sum within bounds."""
    total_floor, total_wanted = sum(floors), sum(wanted)
    if total_floor >= capacity_bits_per_s:
        return [floor * capacity_bits_per_s // max(total_floor, 1) for floor in floors]
    left, missing = capacity_bits_per_s - total_floor, total_wanted - total_floor
    return [floor + (want - floor) * left // missing for floor, want in zip(floors, wanted, strict=True)]


def _trim(rates: list[int], low: Sequence[int], capacity_bits_per_s: int) -> list[int]:
    """Take back the bits that rounding of the level gave too much (a float has 53 bits; a rate may need 44)."""
    excess = sum(rates) - capacity_bits_per_s
    for index in range(len(rates)):
        if excess <= 0:
            break
        taken = min(excess, rates[index] - low[index])
        rates[index] -= taken
        excess -= taken
    return rates
