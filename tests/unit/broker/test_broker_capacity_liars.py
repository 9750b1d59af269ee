"""Peers that stall or lie about when packets arrived: no one of them holds the capacity up, or far down."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import pytest

from broker import capacity
from broker.capacity import Counters
from broker.model import CLASS_NAMES, ClassSample, FlowSample
from broker.state import CapacityState

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
        given = capacity.estimate(
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


@pytest.mark.parametrize("late_s", [0.06, 0.1])
@pytest.mark.parametrize("tick", [1, 2, 3, 4])
def test_a_cut_that_one_late_packet_made_too_deep_is_mended_when_the_queue_has_gone(tick: int, late_s: float) -> None:
    """By probing alone it came back to 11 to 16 Mbit/s in that time."""

    def late_once(now_s: float, wait_s: float) -> float:
        return wait_s + (late_s if round(now_s / TICK_S) == round(FALL_S / TICK_S) + tick + 1 else 0.0)

    rates = rates_of([late_once], falls=True, until_s=FALL_S + 1.5)
    assert 15 <= rates[-1][1] <= 20
