"""Peers that stall or lie about when packets arrived: no one of them holds the capacity up, or far down."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import pytest

from broker.law.capacity import decrease, outbound
from broker.law.capacity.delivery_rate import DeliveryRate
from broker.law.capacity.evidence import OUTBOUND, Carried, Evidence, Queue, Room
from broker.law.capacity.outbound import Counters
from broker.law.capacity.state import CapacityState, Cause, Cut, OutboundCapacity, Phase
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
    state: OutboundCapacity | None = None
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
            dropped_packets=(0,) * len(CLASS_NAMES), elapsed_s=TICK_S, received_bits=0.0,
        )  # fmt: skip
        given = outbound.estimate(
            now_s=now_s, state=state, base=(int(FULL), "configured"), flows=flows, counters=counters
        )
        state, rate = given.state, given.rate_bits_per_s
        found.append((now_s, given.state.estimate.rate_bits_per_s / 1e6))
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


CUT = Cut(
    at_s=10.0, cause=Cause.DELAY, from_bits_per_s=20_000_000, carried_bits_per_s=7_500_000,
    first_bits_per_s=10_000_000, surely_more_bits_per_s=0, drained_s=10.8, excess_s=0.2, baseline_s=0.01,
)  # fmt: skip
DRAINING = CapacityState(
    base_bits_per_s=20_000_000, rate_bits_per_s=7_125_000, phase=Phase.DRAINING, changed_s=10.8, cut=CUT
)  # fmt: skip


def evidence(carried: Carried, queue: Queue = Queue()) -> Evidence:  # noqa: B008
    return Evidence(0.1, limiting=True, reported=True, used=True, queue=queue, carried=carried, room=Room())


@pytest.mark.parametrize("drained", [False, True])
def test_a_drain_goes_on_while_nobody_can_tell_and_ends_when_no_queue_is_met(drained: bool) -> None:
    after = decrease.drain(DRAINING, evidence(Carried(drained=drained)), OUTBOUND, now_s=10.5)
    assert after.cut is not None
    assert after.cut.drained_s == (10.5 if drained else 10.8)


@pytest.mark.parametrize(("carried", "found"), [(9.8e6, 9.8e6), (15e6, 10e6), (6e6, 6e6)])
def test_a_drain_takes_back_what_a_packet_said_that_had_been_held_up(carried: float, found: float) -> None:
    """Cut for 10 Mbit/s; one late packet had made 7.5 of it. What is heard then counts, up to what the cut was for."""
    measured = Carried(measured=DeliveryRate(carried, 0.5, 0.1, 0.2))
    after = decrease.drain(DRAINING, evidence(measured), OUTBOUND, now_s=10.4)
    assert after.cut is not None
    assert after.cut.carried_bits_per_s == found
    assert after.rate_bits_per_s == pytest.approx(0.95 * found)


def test_what_arrivals_say_first_of_a_cut_by_acknowledgements_bounds_what_they_say_later() -> None:
    """The queue's end makes spans short: 31 of 30 Mbit/s, then 35, and 2 % too much stood for two seconds."""
    state = CapacityState(base_bits_per_s=97_000_000, rate_bits_per_s=97_000_000, phase=Phase.PROBING)
    by_acknowledgements = evidence(Carried(assumed_bits_per_s=77e6), Queue(Cause.DELAY, votes=2, excess_s=0.2))
    state = decrease.cut(state, by_acknowledgements, OUTBOUND, now_s=10.0)
    found = []
    for number, carried in enumerate((31e6, 35e6, 29e6, 30e6)):
        measured = evidence(Carried(measured=DeliveryRate(carried, 0.5, 0.1, 0.3)))
        state = decrease.drain(state, measured, OUTBOUND, now_s=10.1 + number / 10)
        assert state.cut is not None
        found.append(state.cut.carried_bits_per_s)
    assert found == [31_000_000, 31_000_000, 29_000_000, 30_000_000]
    assert state.rate_bits_per_s == pytest.approx(0.95 * 30e6)
