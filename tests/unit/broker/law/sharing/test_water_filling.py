"""Water-filling: against a naive bisection, and the promises it has to keep."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from broker.law.sharing.water_filling import Claim, allocate

RATES = st.integers(min_value=0, max_value=10**11)


@st.composite
def claims(draw: st.DrawFn) -> Claim:
    floor, guarantee, ceiling = sorted(draw(st.tuples(RATES, RATES, RATES)))
    weight = draw(st.floats(min_value=0.01, max_value=1000))
    return Claim(weight, floor, guarantee, ceiling, draw(RATES))


def bisect(entries: list[Claim], capacity: int) -> list[float]:
    """The same definition without the cleverness: try levels until the sum fits."""
    high = [min(claim.demand_bits_per_s, claim.ceiling_bits_per_s) for claim in entries]
    low = [min(claim.guarantee_bits_per_s, top) for claim, top in zip(entries, high, strict=True)]

    def poured(level: float) -> list[float]:
        return [
            min(max(claim.weight * level, bottom), top) for claim, bottom, top in zip(entries, low, high, strict=True)
        ]

    below, above = 0.0, 1e14
    for _ in range(200):
        middle = (below + above) / 2
        below, above = (middle, above) if sum(poured(middle)) <= capacity else (below, middle)
    return poured(below)


@settings(max_examples=300, deadline=None)
@given(st.lists(claims(), max_size=12), st.integers(min_value=1, max_value=10**11))
def test_water_filling_agrees_with_naive_bisection_where_guarantees_fit(entries: list[Claim], capacity: int) -> None:
    rates = allocate(entries, capacity_bits_per_s=capacity)
    lows = (min(claim.guarantee_bits_per_s, claim.demand_bits_per_s, claim.ceiling_bits_per_s) for claim in entries)
    if sum(lows) <= capacity:
        for found, naive in zip(rates, bisect(entries, capacity), strict=True):
            assert found == pytest.approx(naive, abs=2, rel=1e-9)


@settings(max_examples=300, deadline=None)
@given(st.lists(claims(), max_size=12), st.integers(min_value=0, max_value=10**11))
def test_total_never_exceeds_capacity_and_no_claim_its_ceiling_or_demand(entries: list[Claim], capacity: int) -> None:
    rates = allocate(entries, capacity_bits_per_s=capacity)
    assert sum(rates) <= capacity
    for claim, rate in zip(entries, rates, strict=True):
        assert 0 <= rate <= min(claim.ceiling_bits_per_s, claim.demand_bits_per_s)


@settings(max_examples=300, deadline=None)
@given(st.lists(claims(), max_size=12), st.integers(min_value=0, max_value=10**11))
def test_capacity_is_used_up_while_anybody_wants_more(entries: list[Claim], capacity: int) -> None:
    rates = allocate(entries, capacity_bits_per_s=capacity)
    wanted = sum(min(claim.demand_bits_per_s, claim.ceiling_bits_per_s) for claim in entries)
    assert sum(rates) >= min(capacity, wanted) - len(entries)


@settings(max_examples=300, deadline=None)
@given(st.lists(claims(), max_size=12), st.integers(min_value=0, max_value=10**11))
def test_floors_hold_whenever_the_floors_fit(entries: list[Claim], capacity: int) -> None:
    wanted = [min(claim.floor_bits_per_s, claim.demand_bits_per_s) for claim in entries]
    if sum(wanted) <= capacity:
        rates = allocate(entries, capacity_bits_per_s=capacity)
        assert all(rate >= floor for rate, floor in zip(rates, wanted, strict=True))


def test_order_of_claims_does_not_matter() -> None:
    entries = [Claim(3, 1, 10, 100, 90), Claim(1, 2, 20, 100, 100), Claim(2, 0, 5, 40, 60)]
    there = allocate(entries, capacity_bits_per_s=99)
    back = allocate(entries[::-1], capacity_bits_per_s=99)
    assert sorted(there) == sorted(back)


def test_what_is_left_is_divided_by_weight_above_the_guarantees() -> None:
    entries = [Claim(3, 0, 0, 1000, 1000), Claim(1, 0, 0, 1000, 1000)]
    assert allocate(entries, capacity_bits_per_s=400) == (300, 100)


def test_guarantees_that_do_not_fit_keep_floors_and_are_scaled_in_proportion_to_what_is_missing() -> None:
    entries = [Claim(1, 10, 110, 1000, 1000), Claim(1, 20, 320, 1000, 1000)]
    assert allocate(entries, capacity_bits_per_s=230) == (10 + 50, 20 + 150)


def test_a_weight_of_zero_is_refused() -> None:
    with pytest.raises(ValueError, match="weights"):
        allocate([Claim(0, 0, 0, 1, 1)], capacity_bits_per_s=1)
