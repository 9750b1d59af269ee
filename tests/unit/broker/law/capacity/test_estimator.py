"""The capacity estimator in a loop with a simulated host and link, in virtual time. Rates in Mbit/s, delays in ms."""

from __future__ import annotations

import statistics
from collections.abc import Callable
from typing import Any

import pytest
from fluid_link import World, quic, tcp

Run = Callable[[World, float], World]

FULL, HALF = 40e6, 20e6


def falls_to(low: float, *, from_s: float = 12.0, until_s: float = 1e9) -> Callable[[float], float]:
    return lambda at_s: low if from_s <= at_s < until_s else FULL


def rates(world: World, start_s: float, end_s: float) -> list[float]:
    return [rate / 1e6 for at_s, rate in world.rates if start_s < at_s <= end_s]


def queues_ms(world: World, start_s: float, end_s: float) -> list[float]:
    return sorted(1000 * queue_s for at_s, queue_s in world.queues if start_s < at_s <= end_s)


def busy(*, seed: int = 1) -> dict[str, Any]:
    return {"senders": [quic(), tcp(), tcp(port=874)], "jitter_s": 0.003, "spike_s": 0.05, "seed": seed}


def test_training_alone_finds_a_fall_by_asking(run: Run) -> None:
    world = run(World([quic()], falls_to(HALF)), 30)
    assert max(rates(world, 13.0, 30)) <= 23
    assert statistics.quantiles(queues_ms(world, 14, 30), n=20)[-1] < 50


@pytest.mark.long
def test_five_minutes_of_jitter_and_processor_noise_cause_no_cut(run: Run) -> None:
    world = run(World(rate=lambda at_s: FULL, **busy()), 300)
    assert set(rates(world, 0, 300)) == {38.8}


def test_the_peers_own_queue_is_not_taken_for_ours(run: Run) -> None:
    world = run(World([quic(), tcp()], lambda at_s: FULL, peer_queue_s=0.08), 60)
    assert min(rates(world, 0, 60)) == 38.8


def test_a_queue_towards_us_while_everybody_sends_is_not_taken_for_our_uplinks(run: Run) -> None:
    """Both connections see it: the acknowledgements of storage wait behind the peer's gradients too."""
    world = run(World([quic(), tcp(), tcp(port=874)], lambda at_s: FULL, reverse_queue_s=0.15), 60)
    assert min(rates(world, 0, 60)) == 38.8


def test_a_fall_is_found_although_a_queue_towards_us_lengthens_every_round_trip(run: Run) -> None:
    world = run(World([quic(), tcp(), tcp(port=874)], falls_to(HALF), reverse_queue_s=0.15), 40)
    assert max(rates(world, 13, 40)) <= 22.5
    assert statistics.mean(rates(world, 15, 40)) >= 18.5
    assert statistics.quantiles(queues_ms(world, 14, 40), n=20)[-1] < 60


def test_training_alone_behind_a_slow_peer_is_not_cut_without_loss(run: Run) -> None:
    world = run(World([quic()], lambda at_s: FULL, peer_queue_s=0.08), 60)
    assert min(rates(world, 0, 60)) == 38.8


def test_a_slow_destination_does_not_cost_the_others_the_uplink(run: Run) -> None:
    slow = tcp("10.0.0.9")
    slow.round_trip_s = 0.010
    world = World([quic(), slow], lambda at_s: FULL)
    original = world._sample

    def sample() -> None:
        slow.round_trip_s = 0.010 if world.now_s < 5 else 0.080  # a queue at the storage target's own downlink
        original()

    world._sample = sample  # type: ignore[method-assign]
    run(world, 40)
    assert min(rates(world, 0, 40)) == 38.8


def test_samples_once_a_second_find_a_fall_within_three_seconds(run: Run) -> None:
    world = run(World([quic(), tcp()], falls_to(HALF), tcp_every_s=1.0), 30)
    assert max(rates(world, 15.0, 15.5)) <= 23


def test_storage_alone_finds_a_fall(run: Run) -> None:
    world = run(World([quic(), tcp(), tcp(port=874)], falls_to(HALF), training=False), 30)
    assert max(rates(world, 14, 15)) <= 22


def test_a_short_buffer_shows_itself_by_loss_and_training_goes_on(run: Run) -> None:
    world = run(World([quic(), tcp()], falls_to(HALF), buffer_bytes=40_000), 40)
    assert statistics.median(rates(world, 20, 40)) <= 25
    assert world.steps[-1][1] < 3.5


def test_silence_holds_the_last_safe_capacity_and_says_so(run: Run) -> None:
    world = run(World(rate=falls_to(HALF), silent_from_s=18.0, **busy()), 40)
    held = set(rates(world, 20.5, 40))
    assert len(held) == 1
    assert held.pop() <= 21.5
    reason = world.decisions[-1].allocation.interfaces[0].capacity_reason
    assert reason.code == "signals-missing"


def test_an_idle_minute_changes_nothing(run: Run) -> None:
    world = run(World(rate=falls_to(HALF), paused=lambda at_s: 20 < at_s < 80, **busy()), 90)
    held = rates(world, 22, 80)
    assert max(held) - min(held) < 0.01
    assert max(rates(world, 82, 90)) <= 23


def test_delay_that_does_not_follow_our_rate_is_not_blamed_on_us_for_long(run: Run) -> None:
    senders = [tcp(), tcp(port=874)]
    world = World([quic(), *senders], lambda at_s: FULL, training=False)
    original = world._sample

    def sample() -> None:
        for sender in senders:
            sender.round_trip_s = 0.010 if world.now_s < 5 else 0.100
        original()

    world._sample = sample  # type: ignore[method-assign]
    run(world, 40)
    codes = {decision.allocation.interfaces[0].capacity_reason.code for decision in world.decisions}
    assert "delay-not-ours" in codes
    assert rates(world, 38, 40)[-1] == 38.8
