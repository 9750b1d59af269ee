"""Whose queue it is: what stands while we send nothing is somebody else's, and nobody cuts his own way out for it."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

from broker.law.capacity import flow_delay, inbound_delay, outbound
from broker.law.capacity.evidence import DELAY_S
from broker.law.capacity.state import FlowState, OutboundCapacity, TickState
from broker.model.values import ClassSample, FlowSample
from broker.policy.types import CLASS_NAMES

TICK_S = 0.1
NONE = (0,) * len(CLASS_NAMES)
RATE = 97_000_000


def theirs(own: Sequence[float], others: Sequence[float], link: float, *, buffer_s: float = 0.5) -> list[list[float]]:
    """(wait, others' part of it) of a packet in each tick, while we and others send so much in each, bits per second,
    into a FIFO in front of a link."""
    flow, queued, found = FlowState("f", one_way_at_s=0.0), 0.0, []
    ticks: list[TickState] = []
    for number, (mine, its) in enumerate(zip(own, others, strict=True)):
        before = queued
        queued = min(buffer_s * link, max(0.0, queued + (mine + its - link) * TICK_S))
        ticks.append(TickState((number + 1) * TICK_S, TICK_S, mine * TICK_S, 0.0, NONE, NONE, NONE, NONE, (0.0,) * 4))
        left_s, wait_s = (number + 0.5) * TICK_S, (before + queued) / 2 / link
        part_s, at_s = flow_delay.cross_traffic_s(flow, wait_s, left_s=left_s, ticks=ticks, rate_bits_per_s=RATE)
        flow = replace(flow, one_way_at_s=left_s, one_way_wait_s=wait_s, cross_s=part_s, cross_at_s=at_s)
        found.append([wait_s, part_s])
    return found


def test_what_fills_while_we_send_nothing_is_all_theirs_and_goes_as_it_came() -> None:
    heard = theirs([0] * 10 + [50e6] * 4 + [50e6] * 12, [140e6] * 14 + [0] * 12, 100e6)
    waits, others = ([pair[index] for pair in heard] for index in (0, 1))
    assert waits[0] < DELAY_S < waits[1]
    assert others[:10] == [0.0, 0.0, *waits[2:10]], "from the second packet on that it holds up"
    assert waits[9] > 0.35
    assert others[10:14] == [others[9]] * 4, "of what is sent into it only the growth is ours"
    assert others[-1] == waits[-1] == 0


def test_what_we_add_to_a_queue_of_others_shows() -> None:
    heard = theirs([0] * 5 + [97e6] * 5, [120e6] * 5 + [60e6] * 5, 100e6, buffer_s=1.0)
    assert all(wait_s - part_s > 0.03 for wait_s, part_s in heard[6:])


@settings(max_examples=200)
@given(
    own=st.lists(st.sampled_from([0.0, 0.03, 0.5, 0.97]).map(lambda part: part * 100e6), min_size=4, max_size=30),
    link=st.floats(0.2, 0.9),
)
def test_a_queue_of_our_own_is_never_taken_for_theirs(own: list[float], link: float) -> None:
    """Bursts and pauses into a link of a fifth to nine tenths of our rate: what is left of them while we pause is
    ours. A packet halfway through a tick in which we began meets what came before."""
    heard = theirs(own, [0.0] * len(own), link * RATE)
    assert all(part_s <= TICK_S / 2 for _, part_s in heard)


def test_the_noise_of_a_busy_host_is_no_queue_of_others() -> None:
    for before_s, wait_s, theirs_s in ((0.02, 0.02, 0), (0.002, 0.12, 0), (0.04, 0.02, 0), (0.04, 0.04, 0.04)):
        flow = FlowState("f", one_way_at_s=0.9, one_way_wait_s=before_s)
        found = flow_delay.cross_traffic_s(flow, wait_s, left_s=1.0, ticks=silent(1.0), rate_bits_per_s=RATE)
        assert found[0] == theirs_s


def silent(until_s: float, *last_bits: float) -> list[TickState]:
    """Two seconds of ticks in which nothing left, but for the last ones."""
    bits = [0.0] * (20 - len(last_bits)) + list(last_bits)
    ends_s = [until_s - (19 - number) * TICK_S for number in range(20)]
    return [
        TickState(at_s, TICK_S, left, 0.0, NONE, NONE, NONE, NONE, (0.0,) * 4)
        for at_s, left in zip(ends_s, bits, strict=True)
    ]


@pytest.mark.parametrize("pause_s", [0.1, 1.0, 9.0])
def test_after_a_pause_however_long_a_packet_behind_our_own_burst_waits_in_our_own_queue(pause_s: float) -> None:
    """Nothing is asked in a pause, so the packet before is old: the burst's beginning is little over all of it."""
    flow = FlowState("f", one_way_at_s=20.0 - pause_s, one_way_wait_s=0.1 if pause_s < 0.3 else 0.0)
    ticks = silent(20.05, 97e5)
    assert flow_delay.cross_traffic_s(flow, 0.1, left_s=20.0, ticks=ticks, rate_bits_per_s=RATE)[0] == 0
    first_s = 19.95  # as the burst begins
    assert flow_delay.cross_traffic_s(flow, 0.1, left_s=first_s, ticks=ticks, rate_bits_per_s=RATE) == (0.1, first_s)


Wait = Callable[[float], float]


def decided(sends: Callable[[float], float], waits: Wait, *, seconds: float) -> list[OutboundCapacity]:
    """What the way out's law makes of a peer that says how long packets took, each tick."""
    state, states, delivered, sent = None, [], 0, dict.fromkeys(CLASS_NAMES, 0.0)
    for number in range(1, round(seconds / TICK_S) + 1):
        now_s = number * TICK_S
        bits = sends(now_s) * TICK_S
        delivered += int(bits / 8)
        sent["compute"] = bits
        flow = FlowSample(
            key="s-1/p", peer="p", traffic_class="compute", source="report", age_s=0.01, rtt_s=0.001, rtt_s_min=0.001,
            delivered_bytes=delivered, sent_packets=delivered // 1400, lost_packets=0,
            one_way_s=waits(now_s - 0.05), one_way_age_s=0.04,
        )  # fmt: skip
        estimate = outbound.estimate(
            now_s=now_s, state=state, base=(RATE, "configured"), flows=[flow],
            counters=outbound.Counters(
                tuple(ClassSample(name, 0, 0) for name in CLASS_NAMES), tuple(sent.values()), (0,) * 4, TICK_S, 0.0
            ),
        )  # fmt: skip
        state = estimate.state
        states.append(state)
    return states


def flooded(now_s: float) -> float:
    """From 1 s on others fill the peer's buffer of 100 ms; from 3 s on they are held back."""
    return min(0.1, max(0.0, 0.05 * (now_s - 1))) if now_s < 3.0 else max(0.0, 0.1 - (now_s - 3.0))


def test_a_receiver_that_others_flood_is_no_reason_to_cut_our_own_way_out() -> None:
    """The burst begins at 2.85 s behind 92 ms of others' packets, and is held up by them until they have passed."""
    states = decided(lambda now_s: 95e6 if now_s > 2.85 else 0.0, flooded, seconds=5)
    assert {state.estimate.rate_bits_per_s for state in states} == {RATE}


def stays(now_s: float) -> float:
    """From 1 s on the peer's buffer of 200 ms fills, and is full from 3 s on."""
    return min(0.2, max(0.0, 0.1 * (now_s - 1)))


def test_a_burst_of_a_second_is_sent_through_a_flood_that_lasts() -> None:
    states = decided(lambda now_s: 40e6 if 2.85 < now_s % 6 < 3.85 else 0.0, stays, seconds=30)
    assert {state.estimate.rate_bits_per_s for state in states} == {RATE}


def test_when_our_own_queue_replaces_theirs_in_a_full_buffer_our_own_way_out_is_cut() -> None:
    """What others stop sending we send: the wait stays, and so does what the link carries."""
    states = decided(lambda now_s: 40e6 if now_s > 2.85 else 0.0, stays, seconds=5)
    assert 30e6 < states[-1].estimate.rate_bits_per_s < 42e6


@pytest.mark.parametrize("begins_s", [0.0, 0.8])
def test_the_same_queue_while_we_send_is_a_reason(begins_s: float) -> None:
    states = decided(lambda now_s: 95e6 if now_s > begins_s else 0.0, flooded, seconds=3)
    assert states[-1].estimate.rate_bits_per_s < 0.9 * RATE


def test_who_asks_what_explains_a_round_trip_is_told_of_others_queue_too() -> None:
    state = decided(lambda now_s: 0.0, flooded, seconds=2.9)[-1]
    assert inbound_delay.outbound_queue_s(state.signals, now_s=2.9) == pytest.approx(flooded(2.85), abs=0.002)
