"""Peers that stall or lie about when packets arrived: no one of them holds the capacity up, or far down."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import pytest

from broker.law.capacity import decrease, estimator, signals
from broker.law.capacity.delivery_rate import DeliveryRate
from broker.law.capacity.estimator import Counters
from broker.law.state import ArrivalState, CapacityState, SignalState, TickState
from broker.model.values import ClassSample, FlowSample
from broker.policy.types import CLASS_NAMES

TICK_S, FULL, HALF, FALL_S = 0.1, 40e6, 20e6, 12.0
Says = Callable[[float, float], float]
"""What a peer says its packet waited, of the time and the truth."""


def honest(now_s: float, wait_s: float) -> float:
    return wait_s


def stalls(now_s: float, wait_s: float) -> float:
    """For a moment in each second it reads nothing, and catches up: what it reads late came close together."""
    return wait_s + 0.3 * (1 - now_s % 1.0)


def sees_nothing(now_s: float, wait_s: float) -> float:
    return 0.0


def sees_much(now_s: float, wait_s: float) -> float:
    return 0.0 if now_s < 6 else 0.15 + 0.05 * (now_s % 2.0)


def says_twice(now_s: float, wait_s: float) -> float:
    return 2.5 * wait_s


def rates_of(peers: Sequence[Says], *, falls: bool, until_s: float = 20.0) -> list[tuple[float, float]]:
    """What is decided for a host that always sends all it may, over a link of `FULL` that falls to `HALF` or does not,
    in front of which 0.3 s of it fit."""
    state: CapacityState | None = None
    rate, queue, sent, found = FULL, 0.0, 0.0, []
    for number in range(1, int(until_s / TICK_S) + 1):
        now_s = number * TICK_S
        link = HALF if falls and now_s > FALL_S else FULL
        middle = max(0.0, queue + (rate - link) * TICK_S / 2)
        queue = min(max(0.0, queue + (rate - link) * TICK_S), 0.3 * link)
        sent += rate * TICK_S
        flows = [
            FlowSample(
                key=f"s-{place}", peer=f"10.0.0.{place}", traffic_class="compute", source="report", age_s=0.0,
                rtt_s=0.01, rtt_s_min=0.01, delivered_bytes=int(sent / 8), sent_packets=int(sent / 12_000),
                lost_packets=0, one_way_s=5.0 + says(now_s, min(middle, queue + 1e6) / link), one_way_age_s=TICK_S / 2,
            )
            for place, says in enumerate(peers)
        ]  # fmt: skip
        waiting = {"storage": 20_000}
        counters = Counters(
            classes=tuple(ClassSample(name, 0, waiting.get(name, 0)) for name in CLASS_NAMES),
            sent_bits=tuple(rate * TICK_S if name == "storage" else 0.0 for name in CLASS_NAMES),
            dropped_packets=0, elapsed_s=TICK_S, received_bits=0.0,
        )  # fmt: skip
        given = estimator.estimate(
            now_s=now_s, state=state, base=(int(FULL), "configured"), flows=flows, counters=counters
        )
        state, rate = given.state, given.rate_bits_per_s
        found.append((now_s, given.state.rate_bits_per_s / 1e6))
    return found


@pytest.mark.parametrize("liar", [honest, stalls, sees_nothing, sees_much, says_twice])
def test_one_of_three_peers_neither_forbids_a_cut_nor_sets_its_depth(liar: Says) -> None:
    rates = rates_of([honest, honest, liar], falls=True)
    assert max(rate for at_s, rate in rates if at_s > FALL_S + 2) <= 22
    assert min(rate for _, rate in rates) >= 13


@pytest.mark.parametrize("liar", [stalls, sees_much])
def test_one_of_three_peers_does_not_bring_about_a_cut(liar: Says) -> None:
    assert min(rate for _, rate in rates_of([honest, honest, liar], falls=False)) == 40


def test_of_two_peers_one_that_stalls_does_not_hide_what_the_other_sees() -> None:
    rates = rates_of([honest, stalls], falls=True)
    assert max(rate for at_s, rate in rates if at_s > FALL_S + 2) <= 22


def test_one_of_two_peers_does_not_bring_about_a_cut() -> None:
    assert min(rate for _, rate in rates_of([honest, sees_much], falls=False)) == 40


def test_one_of_two_peers_that_says_less_was_carried_does_not_push_the_rate_far_below_the_link() -> None:
    rates = rates_of([honest, says_twice], falls=True)
    assert max(rate for at_s, rate in rates if at_s > FALL_S + 2) <= 23  # a probe is up to a tenth too much
    assert min(rate for _, rate in rates) >= 12


@pytest.mark.parametrize(("waits", "lasts"), [((0.4, 0.3, 0.2, 0.1), True), ((0.004, 0.003, 0.002, 0.001), False)])
def test_a_drain_goes_on_as_long_as_its_only_peer_stalls_and_ends_when_it_sees_no_queue(
    waits: Sequence[float], lasts: bool
) -> None:
    """Cut at 10 s; of what left since, a packet each tick arrived at once with the others, or without any wait."""
    ticks = tuple(
        TickState(9 + number * TICK_S, TICK_S, 9e6 * TICK_S, 0.0, 0, 0, 0, (0,) * 4, (0.0,) * 4) for number in range(16)
    )
    arrivals = tuple(ArrivalState("p", 10.05 + number * TICK_S, wait_s) for number, wait_s in enumerate(waits))
    state = CapacityState(
        base_bits_per_s=int(FULL), rate_bits_per_s=18_000_000, changed_s=10.8, hold_s=1.0, cut_s=10.0,
        cut_from_bits_per_s=20_000_000, drain_until_s=10.8, changed_by="delay", failed_bits_per_s=19_000_000,
        signals=SignalState(ticks=ticks, arrivals=arrivals),
    )  # fmt: skip
    now_s = 10.5
    passed, stalled = decrease.carried(state, since_s=0.0, now_s=now_s)
    assert (passed, stalled) == (None, frozenset({"p"} if lasts else ()))
    assert decrease.drain(state, passed, now_s=now_s).drain_until_s == (10.8 if lasts else now_s)


@pytest.mark.parametrize(("carried", "failed"), [(9.8e6, 9.8e6), (15e6, 10e6), (6e6, 6e6)])
def test_a_drain_takes_back_what_a_packet_said_that_had_been_held_up(carried: float, failed: float) -> None:
    """Cut for 10 Mbit/s; one late packet had made 7.5 of it. What is heard then counts, up to what the cut was for."""
    state = CapacityState(
        base_bits_per_s=20_000_000, rate_bits_per_s=7_125_000, changed_s=10.8, hold_s=1.0, cut_s=10.0,
        cut_from_bits_per_s=20_000_000, drain_until_s=10.8, changed_by="delay", failed_bits_per_s=7_500_000,
        cut_carried_bits_per_s=10_000_000,
    )  # fmt: skip
    after = decrease.drain(state, DeliveryRate(carried, 0.5, 0.1, 0.2), now_s=10.4)
    assert after.failed_bits_per_s == failed
    assert after.rate_bits_per_s == pytest.approx(0.95 * failed)


def test_what_arrivals_say_first_of_a_cut_by_acknowledgements_bounds_what_they_say_later() -> None:
    """The queue's end makes spans short: 31 of 30 Mbit/s, then 35, and 2 % too much stood for two seconds."""
    state = CapacityState(
        base_bits_per_s=97_000_000, rate_bits_per_s=97_000_000, changed_by="raise", signals=SignalState(),
    )  # fmt: skip
    now = signals.read(state.signals, now_s=10.0)
    state = decrease.cut(state, now, None, by="delay", limited=True, now_s=10.0)
    found = []
    for number, carried in enumerate((31e6, 35e6, 29e6, 30e6)):
        state = decrease.drain(state, DeliveryRate(carried, 0.5, 0.1, 0.3), now_s=10.1 + number / 10)
        found.append(state.failed_bits_per_s)
    assert found == [31_000_000, 31_000_000, 29_000_000, 30_000_000]
    assert state.rate_bits_per_s == pytest.approx(0.95 * 30e6)
