"""From promises, demand and capacity to the figures that HTB gets: rate and ceil of every class, and why.

    rate   the floor, at every moment; above it what the class is promised and wants now, up to its guarantee.
           Storage is the lender: its rate is the floor until its window is at risk (broker.law.sharing.guarantee).
           While data is at risk (broker.law.sharing.storage_needs) it lends nothing: its rate is its guarantee.
    ceil   the operator's ceiling; the kernel lends up to it by priority. For storage it is lowered to its rate for
           an announced burst, or one that is due, while a queue may stand elsewhere: there HTB's priority cannot help.

The rates sum to at most the capacity, because HTB lets a leaf send its own rate whatever its parent has (a tree whose
leaves sum to twice the root sends twice). Where the demands exceed it, floors come first and the rest is scaled.

That rule of HTB's is also what lets people go where the capacity does not concern them (`unheld`).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from msgspec import Struct

from broker.law.sharing.promises import LENDER, Promises
from broker.law.sharing.water_filling import Claim, allocate
from broker.model.reasons import Because, Reason
from broker.policy.types import ClassPolicy

PEOPLE = "other"
"""Whose capacity nobody else's measurement lowers (`unheld`)."""


DEAD_BAND = 0.02
"""Part of a class' guarantee by which its rate has to move before the plan changes. Of the link it would be more than a
whole promise of 15 Mbit/s on 1 Gbit/s. Without it three simulated links are worse (docs/log/ablations.md)."""


class ClassNeeds(Struct, frozen=True):
    """What is known about one class when the plan is made. `repay_bits_per_s` is 0 while its window is not at risk;
    `at_risk` says why it lends nothing, where data is at risk; `limit` why its ceiling is lower than the file's."""

    policy: ClassPolicy
    demand_bits_per_s: int
    waiting: bool
    sending: bool
    repay_bits_per_s: int
    received_bits_per_s: int
    limit: Reason | None = None
    at_risk: Reason | None = None


class ClassPlan(Struct, frozen=True):
    """What HTB gets for one class, what water-filling gives it at present demand, and why."""

    name: str
    rate_bits_per_s: int
    ceil_bits_per_s: int
    guarantee_bits_per_s: int
    floor_bits_per_s: int
    ceiling_bits_per_s: int
    share_bits_per_s: int
    reason: Reason


def plan(
    needs: Sequence[ClassNeeds],
    *,
    promised: Mapping[str, Promises],
    capacity_bits_per_s: int,
    storage_waits: Reason | None,
) -> tuple[ClassPlan, ...]:
    """Make the plan of one interface.

    Args:
        needs: one entry a class, in the order of the result.
        promised: to each of them at this capacity.
        capacity_bits_per_s: what the root class gets.
        storage_waits: why storage is held to its rate; None where no burst needs it out of its way.

    Returns:
        The plans, in the order of the needs.
    """
    shares = allocate([_claim(need, promised) for need in needs], capacity_bits_per_s=capacity_bits_per_s)
    rates = _rates(needs, promised, capacity_bits_per_s)
    plans = []
    for need, share, rate in zip(needs, shares, rates, strict=True):
        name, own = need.policy.name, promised[need.policy.name]
        held = storage_waits if name == LENDER else None
        plans.append(
            ClassPlan(
                name=name,
                rate_bits_per_s=rate,
                ceil_bits_per_s=rate if held else max(rate, own.ceiling),
                guarantee_bits_per_s=own.guarantee,
                floor_bits_per_s=own.floor,
                ceiling_bits_per_s=own.ceiling,
                share_bits_per_s=share,
                reason=_reason(need, own, share=share, capacity_bits_per_s=capacity_bits_per_s, held=held),
            )
        )
    return tuple(plans)


def moves(rate_bits_per_s: int, applied_bits_per_s: int, *, guarantee_bits_per_s: int) -> bool:
    """Whether a rate differs from the one in force by more than the dead band; above a guarantee, by more of that."""
    band = DEAD_BAND * max(guarantee_bits_per_s, applied_bits_per_s)
    return abs(rate_bits_per_s - applied_bits_per_s) > band


def unheld(
    plans: Sequence[ClassPlan], *, ceiling_bits_per_s: int, open_bits_per_s: int
) -> tuple[ClassPlan, ...]:  # fmt: skip
    """The plans where the capacity is what one destination alone says of itself: people keep all that the others' rates
    leave of the interface, for what they send elsewhere has another way.

    The kernel takes what they send off what the others may borrow, and all together stay within the interface.

    Args:
        plans: made for the capacity.
        ceiling_bits_per_s: of class `PEOPLE`, at the interface's own rate.
        open_bits_per_s: the interface's own rate.
    """
    found = []
    for entry in plans:
        if entry.name == PEOPLE:
            left = open_bits_per_s - sum(other.rate_bits_per_s for other in plans if other is not entry)
            rate = max(entry.rate_bits_per_s, min(left, ceiling_bits_per_s))
            ceil = max(rate, ceiling_bits_per_s)
            reason = (
                entry.reason
                if entry.reason.code == Because.IDLE.code
                else Because.LINK_IS_FREE(ceiling_bits_per_s=ceil)
            )
            share = max(entry.share_bits_per_s, rate)
            entry = ClassPlan(
                PEOPLE, rate, ceil, entry.guarantee_bits_per_s, entry.floor_bits_per_s, ceil, share, reason
            )
        found.append(entry)
    return tuple(found)


def _claim(need: ClassNeeds, promised: Mapping[str, Promises]) -> Claim:
    own = promised[need.policy.name]
    return Claim(need.policy.weight, own.floor, own.guarantee, own.ceiling, need.demand_bits_per_s)


def _rates(needs: Sequence[ClassNeeds], promised: Mapping[str, Promises], capacity_bits_per_s: int) -> Sequence[int]:
    """Floors, then what each class wants of its promise now; water-filling keeps the sum within the capacity."""
    wanted = []
    for need in needs:
        own = promised[need.policy.name]
        want = wanted_bits_per_s(need, own)
        wanted.append(Claim(1.0, own.floor, want, own.ceiling, want))
    return allocate(wanted, capacity_bits_per_s=capacity_bits_per_s)


def wanted_bits_per_s(need: ClassNeeds, own: Promises) -> int:
    """The rate that a class is given where all fit: its floor, and above it what it wants of its promise now."""
    above = min(own.guarantee, need.demand_bits_per_s)
    if need.policy.name == LENDER:
        above = max(need.repay_bits_per_s, own.guarantee if need.at_risk else 0)
    return min(max(own.floor, above), own.ceiling)


def _reason(need: ClassNeeds, own: Promises, *, share: int, capacity_bits_per_s: int, held: Reason | None) -> Reason:
    if need.at_risk is not None:
        return need.at_risk
    if held is not None and not need.repay_bits_per_s:
        return held
    if need.repay_bits_per_s:
        return Because.GUARANTEE_REPAID(
            received_bits_per_s=need.received_bits_per_s,
            guarantee_bits_per_s=own.guarantee,
            window_s=need.policy.guarantee_window_s,
        )
    if not need.sending and not need.waiting:
        return Because.IDLE(floor_bits_per_s=own.floor)
    if need.waiting and share >= own.ceiling < capacity_bits_per_s:
        return need.limit or Because.HELD_BY_CEILING(ceiling_bits_per_s=own.ceiling)
    if need.waiting and share < need.demand_bits_per_s:
        return Because.SHARES_WHAT_IS_LEFT(share_bits_per_s=share, capacity_bits_per_s=capacity_bits_per_s)
    return Because.LINK_IS_FREE(ceiling_bits_per_s=own.ceiling)
