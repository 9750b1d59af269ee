"""Simulated links between two hosts that train with each other, with the law at both ends."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Sequence

from changing_link import Changing, Host
from link_figures import DRAINING, FOLLOWED, Figures, egress, followed_s, late, shift_s, used, used_from_s

from broker.policy.toml import load

CHANGE_S = 5.0


def changing(seed: int, *, full: float = 100e6, low: float = 0.3, high: float = 0.7, **link: object) -> Figures:
    """A link that falls to a part of its rate and rises to another."""
    fall_s, rise_s = CHANGE_S + shift_s(seed), 13.0 + shift_s(seed)
    low, high = low * full, high * full

    def rate(at_s: float) -> float:
        return full if at_s < fall_s else low if at_s < rise_s else high

    world = Changing(load(egress(full / 1e6)), rate, seed=seed, **link)  # type: ignore[arg-type]
    world.run(rise_s + 14)
    return {
        "fall_s": followed_s(world.a.rates, fall_s, DRAINING * low, low, for_s=1.0),
        "peers_fall_s": followed_s(world.b.rates, fall_s, DRAINING * low, 1.1 * low, for_s=1.0),
        "fall_people_ms": 1000 * late(world.echoes, fall_s + 3, rise_s),
        "fall_used": used(world.carried, fall_s + 3, rise_s, low),
        "rise_s": used_from_s(world.carried, rise_s, rise_s + 10, high, FOLLOWED),
        "rise_people_ms": 1000 * late(world.echoes, rise_s + 6, rise_s + 14),
        "rise_used": used(world.carried, rise_s + 6, rise_s + 10, high),
    }


def late_hosts(seed: int) -> Figures:
    """Between hosts that read packets up to 20 ms late."""

    def rate(at_s: float) -> float:
        return 100e6 if at_s < 5 else 30e6 if at_s < 20 else 70e6

    world = Changing(load(egress(100)), rate, noise_s=0.02, seed=seed).run(31.0)
    return {
        "fall_s": followed_s(world.a.rates, 5.0, DRAINING * 30e6, 30e6, for_s=1.0),
        "fall_people_ms": 1000 * late(world.echoes, 8, 20),
        "rise_used": used(world.carried, 27, 31, 70e6),
        "rise_people_ms": 1000 * late(world.echoes, 27, 31),
    }


def slow_world(seed: int, mbit: float, rate: Callable[[float], float], until_s: float) -> Changing:
    """A slow link whose training hands the kernel six packets at a time, which no counter shows."""
    full = rate(0.0)
    return Changing(
        load(egress(mbit)), rate, buffer_bytes=int(full / 80), window_bytes=full * 6e-3,
        burst_bytes=int(full * 37e-3), think_s=0.05, flows=1, socket_bytes=9_000, seed=seed,
    ).run(until_s)  # fmt: skip


def slow(seed: int, mbit: float) -> Figures:
    """A slow link that falls to a third and rises again."""
    full, rise_s = mbit * 1e6, CHANGE_S + 10.0

    def rate(at_s: float) -> float:
        return full if at_s < CHANGE_S else 0.3 * full if at_s < rise_s else 0.7 * full

    world = slow_world(seed, mbit, rate, rise_s + 11)
    return {
        "fall_s": followed_s(world.a.rates, CHANGE_S, 0.1 * full, 0.35 * full, for_s=1.0),
        "fall_used": used(world.carried, CHANGE_S + 4, rise_s, 0.3 * full),
        "fall_people_ms": 1000 * late(world.echoes, CHANGE_S + 4, rise_s),
        "rise_s": followed_s(world.a.rates, rise_s, 0.9 * 0.97 * 0.7 * full, 2 * full, for_s=0.3),
        "rise_used": used(world.carried, rise_s + 7, rise_s + 11, 0.7 * full),
    }


def slow_moment(seed: int) -> Figures:
    """A slow link that carries two thirds for half a second."""

    def rate(at_s: float) -> float:
        return 20e6 if at_s < CHANGE_S else 6.5e6 if CHANGE_S + 3 < at_s < CHANGE_S + 3.6 else 10e6

    world = slow_world(seed, 20, rate, CHANGE_S + 20)
    return {
        "after_used": used(world.carried, CHANGE_S + 8, CHANGE_S + 20, 10e6),
        "after_people_ms": 1000 * late(world.echoes, CHANGE_S + 8, CHANGE_S + 20),
    }


def slow_steady(seed: int) -> Figures:
    """A link of five megabits that is what the file says."""
    return {"least_part": min(rate for _, rate in slow_world(seed, 5, lambda at_s: 5e6, 12.0).a.rates) / 5e6}


def short_buffer(seed: int) -> Figures:
    """A fall to half in front of which 0.1 s fit; what the rate was later on, drains apart."""
    world = Changing(
        load(egress(20)), lambda at_s: 20e6 if at_s < 5.39 else 10e6, buffer_bytes=250_000, window_bytes=300_000.0,
        burst_bytes=600_000, parts=2, think_s=0.25, flows=1, seed=seed,
    ).run(10.0)  # fmt: skip
    why = zip(world.a.rates, world.a.reasons, strict=True)
    stood = [rate / 10e6 for (at_s, rate), (_, reason) in why if at_s > 6.5 and reason != "draining"]
    return {
        "fall_s": followed_s(world.a.rates, 5.39, DRAINING * 10e6, 10e6, for_s=1.0),
        "stood_least": min(stood),
    }


def standing(host: Host, start_s: float, end_s: float) -> list[float]:
    """What the law took the capacity for, drains apart: the most of each second."""
    seconds: dict[int, float] = {}
    for at_s, rate in host.rates:
        if start_s < at_s <= end_s:
            seconds[int(at_s)] = max(seconds.get(int(at_s), 0.0), rate)
    return list(seconds.values())


def longest_s(queues: Sequence[tuple[float, float, float]], over_s: float) -> float:
    """The longest that the queue on the way from a was over a bound without a break."""
    began_s, longest = None, 0.0
    for at_s, queue_s, _ in queues:
        began_s = (at_s if began_s is None else began_s) if queue_s > over_s else None
        longest = max(longest, 0.0 if began_s is None else at_s - began_s)
    return longest


def late_probes(seed: int, *stalls_s: float) -> Figures:
    """A steady link of 40 of the 100 Mbit/s that both hosts believe in; both hold packets up after each probe."""
    world = Changing(load(egress(100)), lambda at_s: 40e6, seed=seed, stalls_after_probe_s=stalls_s, stalls_from_s=15.0)
    world.run(45.0)
    return {
        "held_up": float(world.held_up),
        "least_part": min(standing(world.a, 15, 45)) / 40e6,
        "peers_least_part": min(standing(world.b, 15, 45)) / 40e6,
        "used": used(world.carried, 15, 45, 40e6),
        "people_ms": 1000 * late(world.echoes, 15, 45),
    }


def declining(seed: int) -> Figures:
    """A link that declines by a third in ten seconds."""

    def rate(at_s: float) -> float:
        return 40e6 - 12e6 * min(1.0, max(0.0, at_s - 10) / 10)

    world = Changing(load(egress(100)), rate, seed=seed).run(45.0)
    return {
        "queue_s": longest_s([entry for entry in world.queues if entry[0] > 10], over_s=0.1),
        "people_ms": 1000 * late(world.echoes, 20, 45),
        "stood_most": statistics.median(standing(world.a, 20, 25)) / 28e6,
        "used": used(world.carried, 22, 45, 28e6),
    }
