"""What was found of a link when another speed is named for it: what holds, and what is forgotten."""

from __future__ import annotations

import pytest

from broker.law.capacity import nominal_rate
from broker.law.capacity.decrease import HOLD_S
from broker.law.capacity.estimator import estimate
from broker.law.capacity.inbound_state import InboundCapacityState
from broker.law.state import CapacityState, SignalState

MBIT = 1_000_000
HEARD = SignalState(wire_ratio=1.08, covered=0.9)


def found(mbit: int, *, of: int) -> CapacityState:
    """A way out that was found to carry `mbit`."""
    return CapacityState(
        of * MBIT, mbit * MBIT, signals=HEARD, cut_s=4.0, changed_s=5.0, hold_s=1.5, changed_by="delay",
        failed_bits_per_s=(mbit + 5) * MBIT, settled_bits_per_s=mbit * MBIT,
    )  # fmt: skip


@pytest.mark.parametrize(
    ("mbit", "of", "base", "rate"),
    [
        (40, 100, 1000, 40),  # elsewhere: more may come, and is probed for
        (40, 1000, 100, 40),
        (400, 1000, 100, 100),  # as far as it is below the new one
        (1000, 1000, 100, 100),
        (95, 100, 1000, 1000),  # the link itself was the limit
        (100, 100, 1000, 1000),
    ],
)
def test_what_was_found_holds_below_the_new_speed_unless_the_old_one_was_the_limit(
    mbit: int, of: int, base: int, rate: int
) -> None:
    out = nominal_rate.outbound(found(mbit, of=of), base * MBIT, now_s=9.0)
    into = nominal_rate.inbound(InboundCapacityState(of * MBIT, mbit * MBIT, received_bytes=7), base * MBIT, now_s=9.0)
    assert (out.base_bits_per_s, out.rate_bits_per_s) == (base * MBIT, rate * MBIT)
    assert (into.base_bits_per_s, into.rate_bits_per_s) == (base * MBIT, rate * MBIT)


def test_who_was_heard_counts_on_and_no_rate_stays_above_the_new_speed() -> None:
    state = nominal_rate.outbound(found(400, of=1000), 100 * MBIT, now_s=9.0)
    assert (state.signals, state.cut_s, state.changed_by) == (HEARD, 4.0, "delay")
    assert (state.failed_bits_per_s, state.settled_bits_per_s) == (100 * MBIT, 100 * MBIT)


def test_another_link_begins_with_nothing() -> None:
    fresh = CapacityState(1000 * MBIT, 1000 * MBIT, changed_s=9.0, hold_s=HOLD_S)
    assert nominal_rate.outbound(None, 1000 * MBIT, now_s=9.0) == fresh
    assert nominal_rate.outbound(found(99, of=100), 1000 * MBIT, now_s=9.0) == fresh
    into = nominal_rate.inbound(InboundCapacityState(100 * MBIT, 99 * MBIT), 1000 * MBIT, now_s=9.0)
    assert into == InboundCapacityState(1000 * MBIT, 1000 * MBIT, changed_s=9.0, heard_s=9.0)


def test_the_same_speed_changes_nothing() -> None:
    out, into = found(40, of=100), InboundCapacityState(100 * MBIT, 40 * MBIT)
    assert nominal_rate.outbound(out, 100 * MBIT, now_s=9.0) is out
    assert nominal_rate.inbound(into, 100 * MBIT, now_s=9.0) is into


def test_a_driver_that_is_silent_for_a_while_costs_nothing_that_was_found() -> None:
    state = found(40, of=97)
    for base in ((970 * MBIT, "fallback"), (97 * MBIT, "link")):
        given = estimate(now_s=9.0, state=state, base=base, flows=(), counters=None)
        assert (given.rate_bits_per_s, given.source) == (40 * MBIT, "measured")
        state = given.state
