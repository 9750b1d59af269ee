"""Operator or driver name another speed: what was found outlives it, unless it was the link itself that was found."""

from __future__ import annotations

import pytest

from broker.law.capacity import estimator, outbound
from broker.law.capacity.state import CapacityState, OutboundCapacity, Phase, SignalState
from broker.model.values import ClassSample, FlowSample
from broker.policy.types import CLASS_NAMES

MBIT = 1_000_000


def found(mbit: int, *, of: int) -> CapacityState:
    """A link that was found to carry `mbit`."""
    return CapacityState(of * MBIT, mbit * MBIT, phase=Phase.HOLDING, changed_s=5.0)


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
    state = estimator.of_base(found(mbit, of=of), base * MBIT, now_s=9.0)
    assert (state.base_bits_per_s, state.rate_bits_per_s) == (base * MBIT, rate * MBIT)


def test_another_link_begins_with_nothing() -> None:
    fresh = CapacityState(1000 * MBIT, 1000 * MBIT, changed_s=9.0)
    assert estimator.of_base(None, 1000 * MBIT, now_s=9.0) == fresh
    assert estimator.of_base(found(99, of=100), 1000 * MBIT, now_s=9.0) == fresh


def test_the_same_speed_changes_nothing() -> None:
    state = found(40, of=100)
    assert estimator.of_base(state, 100 * MBIT, now_s=9.0) is state


def test_a_driver_that_is_silent_for_a_while_costs_nothing_that_was_found() -> None:
    state = OutboundCapacity(found(40, of=97), SignalState(wire_ratio=1.08, covered=0.9))
    for base in ((970 * MBIT, "fallback"), (97 * MBIT, "link")):
        given = outbound.estimate(now_s=9.0, state=state, base=base, flows=(), counters=None)
        assert (given.rate_bits_per_s, given.source) == (40 * MBIT, "measured")
        assert given.state.signals == state.signals, "who was heard counts on"
        state = given.state


@pytest.mark.parametrize("source", ["configured", "link", "fallback"])
def test_the_lowest_rate_is_2_percent_of_what_the_operator_names_and_less_elsewhere(source: str) -> None:
    """Whatever leaves, a fifth of it is lost. Wrong evidence costs 98 % at most, but many uplinks have less than 20."""
    state, rates, sent = OutboundCapacity(found(25, of=1000)), [25 * MBIT], 0.0
    for number in range(60, 120):
        sent += rates[-1] * 0.1 / 8
        packets, bits = int(sent / 3000), (0.0, 0.0, rates[-1] * 0.1, 0.0)
        flows = [
            FlowSample(
                key=f"tcp/{peer}", peer=peer, traffic_class="storage", source="tcp-info", age_s=0.0, rtt_s=0.01,
                rtt_s_min=0.01, delivered_bytes=packets * 1448, sent_packets=packets, lost_packets=packets // 5,
            )
            for peer in ("10.0.0.2", "10.0.0.3")
        ]  # fmt: skip
        counters = outbound.Counters(tuple(ClassSample(name, 0) for name in CLASS_NAMES), bits, (0,) * 4, 0.1, 0.0)
        base = (1000 * MBIT, source)
        given = outbound.estimate(now_s=number / 10, state=state, base=base, flows=flows, counters=counters)
        state = given.state
        rates.append(given.rate_bits_per_s)
    assert min(rates) == 20 * MBIT if source == "configured" else 64_000 <= min(rates) < 15 * MBIT
