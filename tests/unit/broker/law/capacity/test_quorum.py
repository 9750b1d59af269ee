"""Who may decide what the way out carries: what our kernel measured, and of each user's programs one voice."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import pairwise

import pytest
from control_loop import Controlled
from fluid_link import World, quic, tcp
from msgspec.structs import replace

from broker.law.capacity import delivery_rate, flow_delay, outbound
from broker.law.capacity.inbound_delay import outbound_queue_s
from broker.law.capacity.outbound import Counters, OutboundEstimate
from broker.law.capacity.state import ArrivalState, CapacityState, DestinationState, OutboundCapacity, SignalState
from broker.law.recording import replay
from broker.model.values import ClassSample, FlowSample, InterfaceAllocation
from broker.policy.toml import load
from broker.policy.types import CLASS_NAMES, Policy
from hive_qos.units import format_rate

TICK_S, FULL = 0.1, 40_000_000
BASE = int(0.97 * FULL)
Run = Callable[[World, float], World]


def reported(number: int, *, wait_s: float, uid: int, delivered: float, lost: int = 0, sent: int = 0) -> FlowSample:
    return FlowSample(
        key=f"s-{uid}/{number}", peer=f"10.{uid % 200}.0.{number}", traffic_class="compute", source="report", age_s=0.0,
        rtt_s=0.01 + wait_s, rtt_s_min=0.01, delivered_bytes=int(delivered), sent_packets=sent, lost_packets=lost,
        one_way_s=5.0 + wait_s, one_way_age_s=TICK_S / 2, uid=uid,
    )  # fmt: skip


def measured(number: int, *, wait_s: float, delivered: float, lost: int = 0, sent: int = 0) -> FlowSample:
    return FlowSample(
        key=f"tcp/{number}", peer=f"10.9.0.{number}", traffic_class="storage", source="tcp-info", age_s=0.0,
        rtt_s=0.01 + wait_s, rtt_s_min=0.01, delivered_bytes=int(delivered), sent_packets=sent, lost_packets=lost,
    )  # fmt: skip


Flows = Callable[[float, float], Sequence[FlowSample]]
"""What is known, of the time and what has been sent, in bytes."""


def capacities(flows: Flows, *, until_s: float = 20.0, load: float = 0.8) -> list[CapacityState]:
    """What is made of it where the host sends a part of what it may and nothing waits here."""
    state: OutboundCapacity | None = None
    sent, found = 0.0, []
    for number in range(1, int(until_s / TICK_S) + 1):
        now_s = number * TICK_S
        rate = state.estimate.rate_bits_per_s if state is not None else BASE
        bits = load * rate * TICK_S
        sent += bits / 8
        counters = Counters(
            classes=tuple(ClassSample(name, 0) for name in CLASS_NAMES),
            sent_bits=tuple(bits if name == "storage" else 0.0 for name in CLASS_NAMES),
            dropped_packets=(0,) * len(CLASS_NAMES), elapsed_s=TICK_S, received_bits=0.0,
        )  # fmt: skip
        given = outbound.estimate(
            now_s=now_s, state=state, base=(BASE, "configured"), flows=flows(now_s, sent), counters=counters
        )
        state = given.state
        found.append(state.estimate)
    return found


def growing(now_s: float) -> float:
    """What a liar says: no queue for six seconds, and then more of it each second."""
    return 0.0 if now_s < 6 else 0.1 + 0.05 * (now_s % 2.0)


def lies(now_s: float, sent: float, *, peers: int, uid: int = 1000) -> list[FlowSample]:
    return [reported(number, wait_s=growing(now_s), uid=uid, delivered=sent * 1000) for number in range(peers)]


@pytest.mark.parametrize("peers", [1, 3, 40])
def test_one_users_invented_peers_take_nothing_where_the_kernel_measures_no_queue(peers: int) -> None:
    def flows(now_s: float, sent: float) -> list[FlowSample]:
        return [measured(1, wait_s=0.0, delivered=sent), *lies(now_s, sent, peers=peers)]

    assert {state.rate_bits_per_s for state in capacities(flows)} == {BASE}


@pytest.mark.parametrize("peers", [3, 40])
def test_one_users_invented_peers_take_nothing_where_another_users_see_no_queue(peers: int) -> None:
    def flows(now_s: float, sent: float) -> list[FlowSample]:
        return [reported(1, wait_s=0.0, uid=2000, delivered=sent), *lies(now_s, sent, peers=peers)]

    assert {state.rate_bits_per_s for state in capacities(flows)} == {BASE}


def test_what_one_user_says_alone_is_believed_as_of_one_destination() -> None:
    """An honest job has nobody else to speak for it; what it says holds for training and storage alone."""
    states = capacities(lambda now_s, sent: lies(now_s, sent, peers=2))
    assert min(state.rate_bits_per_s for state in states) < 0.9 * BASE
    assert all(state.one_destination for state in states if state.rate_bits_per_s < BASE)


@pytest.mark.parametrize(
    "of",
    [
        lambda wait_s, sent: [
            measured(1, wait_s=wait_s, delivered=sent / 2), measured(2, wait_s=wait_s, delivered=sent / 2)
        ],
        lambda wait_s, sent: [
            measured(1, wait_s=wait_s, delivered=sent / 2), reported(1, wait_s=wait_s, uid=1, delivered=sent / 2)
        ],
        lambda wait_s, sent: [
            reported(1, wait_s=wait_s, uid=1, delivered=sent / 2), reported(2, wait_s=wait_s, uid=2, delivered=sent / 2)
        ],
    ],
)  # fmt: skip
def test_two_voices_of_two_destinations_speak_for_the_whole_interface(
    of: Callable[[float, float], list[FlowSample]],
) -> None:
    states = capacities(lambda now_s, sent: of(growing(now_s), sent))
    assert min(state.rate_bits_per_s for state in states) < 0.9 * BASE
    assert not any(state.one_destination for state in states)


def test_two_voices_about_one_address_are_one_destination() -> None:
    def flows(now_s: float, sent: float) -> list[FlowSample]:
        program = replace(reported(1, wait_s=growing(now_s), uid=1, delivered=sent / 2), peer="10.9.0.1")
        return [measured(1, wait_s=growing(now_s), delivered=sent / 2), program]

    states = capacities(flows)
    assert min(state.rate_bits_per_s for state in states) < BASE
    assert all(state.one_destination for state in states if state.rate_bits_per_s < BASE)


def test_losses_that_one_user_claims_and_the_kernel_does_not_count_make_one_cut_a_minute_and_forbid_no_raise() -> None:
    def flows(now_s: float, sent: float) -> list[FlowSample]:
        packets = int(sent / 1500)
        liar = [
            reported(number, wait_s=0.0, uid=1, delivered=sent, sent=packets * 50, lost=packets * 25)
            for number in range(9)
        ]
        return [measured(1, wait_s=0.0, delivered=sent, sent=packets), *liar]

    found = [one.state.estimate.rate_bits_per_s for one in greedy(flows, until_s=30)]
    falls = [at for at, (before, after) in enumerate(pairwise(found)) if after < before]
    assert len(falls) == 1
    assert found[-1] == BASE


def test_losses_too_small_for_a_cut_that_one_user_claims_forbid_no_raise() -> None:
    """A queue makes a cut, then one user claims 3 % for good: our kernel counts none, and the rate comes back."""

    def flows(now_s: float, sent: float) -> list[FlowSample]:
        packets, wait_s = int(sent / 1500), 0.1 if 2 < now_s < 4 else 0.0
        liar = reported(1, wait_s=wait_s, uid=1, delivered=sent, sent=packets * 50, lost=int(packets * 1.5))
        return [measured(1, wait_s=wait_s, delivered=sent, sent=packets), liar]

    found = [one.state.estimate.rate_bits_per_s for one in greedy(flows, until_s=40)]
    assert min(found) < 0.9 * BASE
    assert found[-1] == BASE


def test_losses_that_the_kernel_counts_too_are_believed() -> None:
    def flows(now_s: float, sent: float) -> list[FlowSample]:
        packets = int(sent / 1500)
        both = [reported(1, wait_s=0.0, uid=1, delivered=sent / 2, sent=packets, lost=packets // 10)]
        return [measured(1, wait_s=0.0, delivered=sent / 2, sent=packets, lost=packets // 10), *both]

    states = [one.state.estimate for one in greedy(flows, until_s=5)]
    assert states[-1].rate_bits_per_s < 0.5 * BASE
    assert not any(state.one_destination for state in states)


def test_no_number_of_reports_takes_the_places_of_what_the_kernel_measures() -> None:
    kernel = [measured(number, wait_s=0.0, delivered=1.0) for number in range(20)]
    liars = [reported(number, wait_s=0.1, uid=1, delivered=1e12) for number in range(200)]
    honest = [reported(number, wait_s=0.0, uid=2, delivered=1e3) for number in range(3)]
    chosen = flow_delay.chosen([*liars, *kernel, *honest])
    assert len(chosen) == flow_delay.FLOWS_MAX
    assert sum(flow.source == "tcp-info" for flow in chosen) == flow_delay.MEASURED_MIN
    assert sum(flow.uid == 2 for flow in chosen) == 3


def test_where_two_users_tell_when_packets_arrived_each_has_one_peer() -> None:
    def arrivals(at_s: float) -> list[ArrivalState]:
        liars = [ArrivalState(f"1/{number}", at_s, 0.1, uid=1) for number in range(12)]
        return [*liars, ArrivalState("2/a", at_s, 0.0, uid=2), ArrivalState("2/b", at_s, 0.0, uid=2)]

    kept: tuple[ArrivalState, ...] = ()
    for number in range(10):
        kept = delivery_rate.kept(kept, arrivals(number * TICK_S), now_s=number * TICK_S)
    assert {entry.peer for entry in kept} == {"1/0", "2/a"}
    alone = delivery_rate.kept((), [entry for entry in arrivals(0.0) if entry.uid == 1], now_s=0.0)
    assert len(alone) == delivery_rate.PEERS_MAX


def test_what_one_user_says_of_many_peers_is_not_taken_off_what_waits_on_the_way_in() -> None:
    def entry(peer: str, source: str, wait_s: float) -> DestinationState:
        return DestinationState(
            peer, False, source, uid=1 if source == "report" else None, excess=((1.0, wait_s, 1.0),)
        )

    liars = [entry(f"10.0.0.{number}", "report", 0.2) for number in range(9)]
    known = [entry(f"10.9.0.{number}", "tcp-info", 0.0) for number in range(2)]
    assert outbound_queue_s(SignalState(destinations=(*liars, *known)), now_s=1.1) == 0.0
    assert outbound_queue_s(SignalState(destinations=tuple(liars)), now_s=1.1) == 0.2


# People, where the capacity is one destination's.


def slow_nas() -> World:
    """Storage alone, to one address: its own port carries a fifth of our link from 12 s on."""
    return World([quic(), tcp(), tcp(port=874)], lambda at_s: 40e6 if at_s < 12 else 8e6, training=False)


def shapes(world: World, from_s: float) -> list[InterfaceAllocation]:
    return [
        decision.allocation.interfaces[0]
        for at_s, decision in zip(world.decided_s, world.decisions, strict=True)
        if at_s > from_s
    ]


def test_a_slow_destination_alone_holds_training_and_storage_and_leaves_people_the_interface(run: Run) -> None:
    found = shapes(run(slow_nas(), 30), 15.0)
    assert max(one.capacity_bits_per_s for one in found) <= 10e6
    for one in found:
        rates = {entry.name: entry for entry in one.classes}
        others = sum(entry.rate_bits_per_s for name, entry in rates.items() if name != "other")
        assert one.open_bits_per_s == BASE
        assert others <= one.capacity_bits_per_s
        assert others + rates["other"].rate_bits_per_s <= BASE
        assert rates["other"].rate_bits_per_s >= BASE - one.capacity_bits_per_s
        assert rates["other"].ceil_bits_per_s == BASE
        assert max(entry.ceil_bits_per_s for name, entry in rates.items() if name != "other") <= one.capacity_bits_per_s
    assert "one-destination" in {one.capacity_reason.code for one in found}


def test_where_two_destinations_agree_people_are_held_to_what_is_carried(run: Run) -> None:
    world = World([quic(), tcp(), tcp("10.0.0.4")], lambda at_s: 40e6 if at_s < 12 else 8e6, training=False)
    found = shapes(run(world, 30), 15.0)
    assert max(one.capacity_bits_per_s for one in found) <= 10e6
    assert {one.open_bits_per_s for one in found} == {None}
    assert max(entry.ceil_bits_per_s for one in found for entry in one.classes) <= 10e6


def test_the_operators_ceiling_of_people_stands_whoever_tells_of_a_bottleneck() -> None:
    policy = load(
        'version = 1\n[[interface]]\nname = "a"\negress = "40 Mbit/s"\n[class.other]\nceiling = "50 %"\n'
        'guarantee = "10 %"\n'
    )
    law = Controlled(policy)
    world = slow_nas()
    law(world)
    world.run(20, law)
    found = shapes(world, 15.0)
    assert {one.open_bits_per_s for one in found} == {BASE}
    assert {entry.ceil_bits_per_s for one in found for entry in one.classes if entry.name == "other"} == {BASE // 2}


def test_a_recording_in_which_people_are_not_held_replays_to_the_same_bytes(policy: Policy) -> None:
    law = Controlled(policy)
    world = slow_nas()
    law(world)
    world.run(16, law)
    assert any('"open_bits_per_s":38800000' in line for line in law.lines)
    assert replay(law.lines).first_difference is None


# What nobody can see any more.


def told_until(silent_from_s: float, again_s: float) -> Flows:
    """Two see a queue at 6 s; from a time on nobody says anything, and then that whatever is sent is too much."""

    def flows(now_s: float, sent: float) -> list[FlowSample]:
        if silent_from_s <= now_s < again_s:
            return []
        wait_s = growing(now_s) if now_s < 8 or now_s >= again_s + 2 else 0.0
        return [measured(number, wait_s=wait_s, delivered=sent / 2) for number in (1, 2)]

    return flows


def greedy(flows: Flows, *, until_s: float, waiting: bool = True) -> list[OutboundEstimate]:
    """What is made of it where something always waits for all that may leave."""
    state, found, sent = None, list[OutboundEstimate](), 0.0
    for number in range(1, int(until_s / TICK_S) + 1):
        now_s = number * TICK_S
        rate = found[-1].rate_bits_per_s if found else BASE
        bits = rate * TICK_S if waiting or now_s < 10 else 0.0
        sent += bits / 8
        counters = Counters(
            classes=tuple(ClassSample(name, 0, 5_000 if bits and name == "other" else 0) for name in CLASS_NAMES),
            sent_bits=(0.0, 0.0, 0.0, bits), dropped_packets=(0,) * 4, elapsed_s=TICK_S, received_bits=0.0,
        )  # fmt: skip
        found.append(
            outbound.estimate(
                now_s=now_s, state=state, base=(BASE, "configured"), flows=flows(now_s, sent), counters=counters
            )
        )
        state = found[-1].state
    return found


def test_what_was_found_is_forgotten_in_small_steps_after_a_minute_in_which_nobody_can_say_anything() -> None:
    found = greedy(told_until(9.0, 1e9), until_s=180)
    held = {one.rate_bits_per_s for one in found[120:680]}
    assert len(held) == 1
    assert held.pop() < 0.8 * BASE
    assert {one.reason.code for one in found[120:680]} == {"signals-missing"}
    later = [one.rate_bits_per_s for one in found[680:]]
    assert all(after <= 1.031 * before for before, after in pairwise(later))
    assert "outbound-not-measured" in {one.reason.code for one in found[700:]}
    assert found[-1].rate_bits_per_s == BASE
    assert found[-1].reason.code == "link-rate"
    assert "not measured now" in found[-1].reason.text


def test_what_one_destination_limits_is_said_to_limit_training_and_storage_alone_also_in_silence() -> None:
    def flows(now_s: float, sent: float) -> list[FlowSample]:
        return lies(now_s, sent, peers=2) if now_s < 9 else []

    found = [one for one in greedy(flows, until_s=100)[120:] if one.rate_bits_per_s < BASE]
    texts = {one.reason.code: one.reason.text for one in found}
    assert texts.keys() == {"signals-missing", "outbound-not-measured"}
    assert all(f" Mbit/s for training and storage, {format_rate(BASE)} for all: " in one for one in texts.values())
    assert all(one.one_destination for one in found)
    of_two = greedy(told_until(9.0, 1e9), until_s=20)[-1]
    assert " for " not in of_two.reason.text


def test_what_nobody_uses_is_not_forgotten() -> None:
    found = greedy(told_until(9.0, 1e9), until_s=180, waiting=False)
    assert len({one.rate_bits_per_s for one in found[120:]}) == 1


def test_who_speaks_again_undoes_what_was_given_back() -> None:
    found = greedy(told_until(9.0, 85.0), until_s=95)
    forgotten = found[845].rate_bits_per_s
    assert forgotten > 1.2 * found[300].rate_bits_per_s
    assert min(one.rate_bits_per_s for one in found[850:]) < forgotten
    assert "outbound-not-measured" not in {one.reason.code for one in found[860:]}
