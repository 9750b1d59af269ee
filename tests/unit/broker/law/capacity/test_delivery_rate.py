"""What the network carried, by when packets arrived: against a queue that is known exactly."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

from broker.law.capacity import delivery_rate, signals
from broker.law.capacity.delivery_rate import DeliveryRate
from broker.law.capacity.state import ArrivalState, SignalState, TickState
from broker.model.values import ClassSample, FlowSample
from broker.policy.types import CLASS_NAMES

TICK_S = 0.1
NONE = (0,) * len(CLASS_NAMES)


def ticks(rates: Sequence[float]) -> tuple[TickState, ...]:
    """One tick after the other from 0 on, in each of which so much left a second."""
    return tuple(
        TickState((number + 1) * TICK_S, TICK_S, rate * TICK_S, 0.0, NONE, NONE, NONE, NONE, (0.0,) * 4)
        for number, rate in enumerate(rates)
    )


def read(
    heard: Sequence[ArrivalState], left: Sequence[TickState], *, since_s: float, now_s: float
) -> DeliveryRate | None:
    return delivery_rate.middle(delivery_rate.by_peer(heard, left, since_s=since_s, now_s=now_s).values())


def arrivals(rates: Sequence[float], carried: float, *, first_s: float = 0.3, peer: str = "p") -> list[ArrivalState]:
    """A packet in the middle of each tick, behind what has left and has not been carried; the queue begins with 0.3 s
    of it, and holds all."""
    found, bits = [], first_s * carried
    for number, rate in enumerate(rates):
        middle = bits + (rate - carried) * TICK_S / 2
        found.append(ArrivalState(peer, (number + 0.5) * TICK_S, max(0.0, middle / carried)))
        bits = max(0.0, bits + (rate - carried) * TICK_S)
    return found


@settings(max_examples=200)
@given(
    carried=st.floats(1e6, 1e9),
    parts=st.lists(st.floats(0.6, 3.5), min_size=5, max_size=9),
)
def test_whatever_is_sent_into_a_standing_queue_what_it_carries_is_found(carried: float, parts: list[float]) -> None:
    rates = [part * carried for part in parts]
    heard = arrivals(rates, carried)
    assert min(entry.wait_s for entry in heard) > delivery_rate.STANDING_S
    found = read(heard, ticks(rates), since_s=0.0, now_s=len(rates) * TICK_S)
    assert found is not None
    assert found.carried_bits_per_s == pytest.approx(carried, rel=0.01)


@settings(max_examples=100)
@given(parts=st.lists(st.floats(0.6, 3.5), min_size=5, max_size=9), later=st.lists(st.floats(0.0, 1.0), max_size=3))
def test_the_wait_of_what_leaves_now_counts_what_has_left_since_the_last_sample(
    parts: list[float], later: list[float]
) -> None:
    carried = 30e6
    rates = [part * carried for part in (*parts, *later)]
    now_s = len(rates) * TICK_S
    queued = (0.3 + TICK_S * sum(part - 1.0 for part in (*parts, *later))) * carried
    heard = arrivals(rates, carried)[: len(parts)]
    found = read(heard, ticks(rates), since_s=0.0, now_s=now_s)
    assert found is not None
    most_s = max(entry.wait_s for entry in heard) + delivery_rate.FULL_S
    assert found.wait_s == pytest.approx(min(max(0.0, queued / carried), most_s), abs=0.005)


def test_a_peer_that_stalled_took_in_far_more_than_was_sent_so_nobody_is_blamed() -> None:
    """For 0.4 s it reads nothing and then everything: each wait is 0.1 s shorter than the one before."""
    heard = [ArrivalState("p", 0.05 + number * TICK_S, 0.4 - number * TICK_S) for number in range(4)]
    found = read(heard, ticks([20e6] * 5), since_s=0.0, now_s=0.5)
    assert found is not None
    assert found.carried_bits_per_s > 10 * 20e6


@pytest.mark.parametrize("place", [2, 3])
def test_a_packet_that_was_held_up_at_the_peer_says_nothing_once_the_next_has_come(place: int) -> None:
    """20 Mbit/s over a link of 10, and what waits drains at 5: the next packet came sooner than 20 Mbit/s can."""
    rates, carried = [20e6, 20e6, 20e6, 20e6, 5e6], 10e6
    heard = arrivals(rates, carried, first_s=0.03)
    held = [replace(entry, wait_s=entry.wait_s + 0.14 * (number == place)) for number, entry in enumerate(heard)]
    found = delivery_rate.by_peer(held, ticks(rates), since_s=0.0, now_s=0.5, most_bits_per_s=1.1 * 20e6)["p"]
    assert found is not None
    assert found.carried_bits_per_s == pytest.approx(carried, rel=0.01)
    assert found.deepest_s == pytest.approx(max(entry.wait_s for entry in heard), abs=0.1)
    believed = delivery_rate.by_peer(held, ticks(rates), since_s=0.0, now_s=0.5)["p"]
    assert believed is not None
    assert believed.carried_bits_per_s < 0.87 * carried


def test_a_peer_that_holds_up_all_packets_has_still_stalled() -> None:
    heard = [ArrivalState("p", 0.05 + number * TICK_S, 0.4 - number * TICK_S) for number in range(4)]
    found = delivery_rate.by_peer(heard, ticks([20e6] * 5), since_s=0.0, now_s=0.5, most_bits_per_s=22e6)["p"]
    assert found is not None
    assert found.carried_bits_per_s > 22e6


def test_what_a_full_buffer_dropped_does_not_count_as_carried() -> None:
    """The queue grows at 30 Mbit/s carried, stands full for 0.2 s while 60 of 90 are dropped, and drains."""
    rates = [90e6, 90e6, 90e6, 90e6, 0.0, 0.0]
    waits = [0.1, 0.3, 0.33, 0.33, 0.28, 0.18]
    heard = [ArrivalState("p", (number + 0.5) * TICK_S, wait_s) for number, wait_s in enumerate(waits)]
    found = read(heard, ticks(rates), since_s=0.0, now_s=0.6)
    assert found is not None
    assert found.carried_bits_per_s <= 33e6
    assert found.wait_s <= 0.33 + delivery_rate.FULL_S


def test_when_packets_arrived_is_the_same_whoever_the_queue_is_said_to_belong_to() -> None:
    """A full buffer of 0.2 s, of which 0.18 s count as others' until they do not any more."""
    heard = [
        ArrivalState("p", (number + 0.5) * TICK_S, wait_s, 0.2 - wait_s)
        for number, wait_s in enumerate((0.02, 0.02, 0.02, 0.2, 0.2, 0.2))
    ]
    found = read(heard, ticks([40e6] * 6), since_s=0.0, now_s=0.6)
    assert found is not None
    assert found.carried_bits_per_s == pytest.approx(40e6)


def test_a_drain_does_not_wait_for_others() -> None:
    heard = [ArrivalState("p", (number + 0.5) * TICK_S, 0.02, 0.18) for number in range(6)]
    found = read(heard, ticks([40e6] * 6), since_s=0.0, now_s=0.6)
    assert found is not None
    assert found.wait_s == pytest.approx(0.02, abs=0.001)


def test_where_no_queue_stands_nothing_is_said() -> None:
    rates = [20e6] * 6
    heard = [ArrivalState("p", (number + 0.5) * TICK_S, 0.004) for number in range(6)]
    assert read(heard, ticks(rates), since_s=0.0, now_s=0.6) is None
    assert read([], ticks(rates), since_s=0.0, now_s=0.6) is None


def test_a_packet_that_waits_long_after_a_queue_was_last_seen_is_not_of_the_same_queue() -> None:
    """Nothing is heard for 0.5 s after a drain, in which hardly anything leaves; then a busy host holds one packet up.
    It made 6.3 Mbit/s of a link of 10, which cost a fall six seconds."""
    heard = [ArrivalState("p", left_s, 0.2) for left_s in (0.15, 0.25, 0.35)]
    rates = [10e6] * 4 + [0.0] * 4 + [8e6] * 2
    late = [*heard, ArrivalState("p", 0.95, 0.037)]
    assert delivery_rate.by_peer(late, ticks(rates), since_s=0.0, now_s=1.0) == {}
    soon = [*heard, ArrivalState("p", 0.75, 0.037)]
    assert delivery_rate.by_peer(soon, ticks(rates), since_s=0.0, now_s=1.0)["p"] is not None


def test_a_queue_that_what_left_must_have_fed_stood_though_nobody_was_heard() -> None:
    """An honest peer that our own queue hides for 0.4 s in each burst has its say; else one that lies decides alone."""
    heard = [ArrivalState("p", left_s, 0.04) for left_s in (0.15, 0.25, 0.35, 0.75)]
    left = ticks([10e6] * 8)
    most = {"since_s": 0.0, "now_s": 0.8, "most_bits_per_s": 10.5e6}
    found = delivery_rate.by_peer(heard, left, **most)["p"]
    assert found is not None
    assert found.carried_bits_per_s == pytest.approx(10e6, rel=0.02)
    assert delivery_rate.by_peer(heard, ticks([10e6] * 4 + [3e6] * 4), **most) == {}


def test_a_queue_of_others_does_not_make_ours_a_deep_one() -> None:
    heard = [ArrivalState("p", 0.05 + number * TICK_S, 0.02 + 0.02 * number, 0.12) for number in range(5)]
    found = delivery_rate.by_peer(heard, ticks([97e6] * 5), since_s=0.0, now_s=0.5)["p"]
    assert found is not None
    assert found.deepest_s == pytest.approx(0.1)
    assert delivery_rate.by_peer(heard[:3], ticks([97e6] * 3), since_s=0.0, now_s=0.3) == {}


def test_samples_that_are_old_or_alone_say_nothing() -> None:
    rates = [60e6] * 20
    heard = arrivals(rates[:4], 30e6)
    assert read(heard[:1], ticks(rates), since_s=0.0, now_s=0.2) is None
    assert read(heard, ticks(rates), since_s=0.0, now_s=heard[-1].left_s + delivery_rate.FRESH_S + 0.01) is None
    assert read(heard, ticks(rates), since_s=1.0, now_s=1.1) is None


def test_of_three_peers_the_middle_one_counts() -> None:
    """One has a slow link of its own, or says so: cutting to that would take the uplink from all. Another says that all
    arrives: the uplink would stay full."""
    rates = [45e6] * 6
    said = {"lies": 90e6, "near": 30e6, "slow": 10e6}
    heard = [entry for peer, carried in said.items() for entry in arrivals(rates, carried, peer=peer)]
    found = read(heard, ticks(rates), since_s=0.0, now_s=0.6)
    assert found is not None
    assert found.carried_bits_per_s == pytest.approx(30e6, rel=0.02)


def test_of_two_peers_neither_has_its_way_alone() -> None:
    rates = [45e6] * 6
    heard = [*arrivals(rates, 30e6, peer="near"), *arrivals(rates, 10e6, peer="slow")]
    found = read(heard, ticks(rates), since_s=0.0, now_s=0.6)
    assert found is not None
    assert found.carried_bits_per_s == pytest.approx(20e6, rel=0.05)


def test_a_peer_that_says_much_takes_nothing_from_what_is_kept_of_others() -> None:
    kept: tuple[ArrivalState, ...] = ()
    for number in range(20):
        now_s = (number + 1) * TICK_S
        chatty = [ArrivalState("chatty", now_s - TICK_S + one * 0.005, 0.05) for one in range(20)]
        kept = delivery_rate.kept(kept, [*chatty, ArrivalState("other", now_s - 0.05, 0.05)], now_s=now_s)
    of_each = [[entry.left_s for entry in kept if entry.peer == peer] for peer in ("chatty", "other")]
    assert all(len(left) <= delivery_rate.OF_PEER_MAX for left in of_each)
    assert len(of_each[1]) >= 19
    assert all(left == sorted(left) for left in of_each)


def test_new_names_move_nobody_out_and_what_is_kept_is_bounded() -> None:
    first = delivery_rate.kept((), [ArrivalState("b", 0.1, 0.05)], now_s=0.1)
    more = delivery_rate.kept(first, [ArrivalState(f"a{number}", 0.2, 0.05) for number in range(100)], now_s=0.2)
    assert more[0].peer == "b"
    assert len({entry.peer for entry in more}) == delivery_rate.PEERS_MAX
    assert delivery_rate.kept(more, (), now_s=0.2 + delivery_rate.KEPT_S) == ()


def heard_behind(backlog_bytes: int) -> tuple[ArrivalState, ...]:
    """What is known after a second in which training leaves at 40 Mbit/s behind so much of its own, and its packets
    wait 60 ms elsewhere from half of it on."""
    state, sent_bits = SignalState(), tuple(4e6 if name == "compute" else 0.0 for name in CLASS_NAMES)
    classes = tuple(ClassSample(name, 0, backlog_bytes if name == "compute" else 0) for name in CLASS_NAMES)
    own_s = backlog_bytes * 8 / 40e6
    for number in range(1, 11):
        sample = FlowSample(
            key="s-1/p", peer="p", traffic_class="compute", source="report", age_s=0.0, rtt_s=0.01, rtt_s_min=0.01,
            delivered_bytes=500_000 * number, sent_packets=330 * number, lost_packets=0,
            one_way_s=own_s + (0.06 if number > 5 else 0.0) if number > 1 else 0.0, one_way_age_s=0.15,
        )  # fmt: skip
        state = signals.observe(
            state, now_s=TICK_S * number, flows=[sample], classes=classes, sent_bits=sent_bits, received_bits=0.0,
            dropped_packets=(0,) * len(CLASS_NAMES), elapsed_s=TICK_S, loaded=True, rate_bits_per_s=40_000_000,
        )  # fmt: skip
    return state.arrivals


def test_an_arrival_is_known_where_our_own_queue_is_short_and_not_where_it_is_long() -> None:
    known = heard_behind(100_000)  # 20 ms
    assert delivery_rate.is_reported(known)
    assert known[-1].wait_s == pytest.approx(0.06, abs=0.001)
    assert known[-1].left_s == pytest.approx(1.0 - 0.15 + 0.02)
    assert not delivery_rate.is_reported(heard_behind(200_000))  # 40 ms
