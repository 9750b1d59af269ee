"""The simulated links by which a mechanism of the capacity law is judged; `tools.ablations` runs them over seeds.

Each scenario takes a seed and gives the figures that a user feels: seconds to follow a fall or a rise, the 95th
percentile of what people wait in ms, and the part of the link that is used. A figure's name ends in its unit.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping
from itertools import pairwise

from changing_link import Changing
from control_loop import Controlled
from fluid_link import World, quic, tcp
from inflow_link import Inflow, Storage
from link_figures import followed_s, late, used, used_from_s
from msgspec.structs import replace

from broker.model.values import FlowSample, Measurements
from broker.policy.toml import load

Figures = dict[str, float]
FALL_S, RISE_S, AFTER_RISE_S = 5.0, 13.0, 14.0
DRAINING, FOLLOWED, HEADROOM = 0.3, 0.85, 0.95


def egress(mbit: float) -> str:
    return f'version = 1\n[[interface]]\nname = "a"\negress = "{mbit:g} Mbit/s"\n'


def shift_s(seed: int) -> float:
    """The link changes at another place of a training step with every seed."""
    return 0.13 * (seed % 7)


def changing(seed: int, *, full: float = 100e6, low: float = 0.3, high: float = 0.7, **link: object) -> Figures:
    """A link that falls to a part of its rate and rises to another, with the law at both ends."""
    fall_s, rise_s = FALL_S + shift_s(seed), RISE_S + shift_s(seed)

    def rate(at_s: float) -> float:
        return full * (1.0 if at_s < fall_s else low if at_s < rise_s else high)

    world = Changing(load(egress(full / 1e6)), rate, seed=seed, **link)  # type: ignore[arg-type]
    world.run(rise_s + AFTER_RISE_S)
    low, high = low * full, high * full
    return {
        "fall_s": followed_s(world.a.rates, fall_s, DRAINING * low, 1.03 * low, for_s=1.0),
        "peers_fall_s": followed_s(world.b.rates, fall_s, DRAINING * low, 1.1 * low, for_s=1.0),
        "fall_people_ms": 1000 * late(world.echoes, fall_s + 2, rise_s),
        "fall_used": used(world.carried, fall_s + 2, rise_s, low),
        "rise_s": used_from_s(world.carried, rise_s, rise_s + AFTER_RISE_S, high, FOLLOWED),
        "rise_people_ms": 1000 * late(world.echoes, rise_s + 5, rise_s + AFTER_RISE_S),
        "rise_used": used(world.carried, rise_s + 5, rise_s + AFTER_RISE_S, high),
    }


def slow(seed: int, mbit: float) -> Figures:
    """A slow link whose training hands the kernel six packets at a time, which no counter shows."""
    full = mbit * 1e6
    return changing(
        seed, full=full, buffer_bytes=int(full / 80), window_bytes=full * 6e-3, burst_bytes=int(full * 37e-3),
        think_s=0.05, flows=1, socket_bytes=9_000,
    )  # fmt: skip


def short_buffer(seed: int) -> Figures:
    """A fall to half in front of which 0.1 s fit."""
    return changing(
        seed, full=20e6, low=0.5, high=0.8, buffer_bytes=250_000, window_bytes=300_000.0, burst_bytes=600_000, parts=2,
        think_s=0.25, flows=1,
    )  # fmt: skip


def late_probes(seed: int) -> Figures:
    """A steady link of 40 of the 100 Mbit/s that both hosts believe in; both hold packets up after each probe."""
    world = Changing(load(egress(100)), lambda at_s: 40e6, seed=seed, stalls_after_probe_s=(0.1,), stalls_from_s=12.0)
    world.run(36.0)
    stood = [rate for at_s, rate in world.a.rates if at_s > 12]
    return {
        "steady_used": used(world.carried, 12, 36, 40e6),
        "steady_people_ms": 1000 * late(world.echoes, 12, 36),
        "steady_part": sum(stood) / len(stood) / 40e6,
    }


def declining(seed: int) -> Figures:
    """A link that declines by a third in ten seconds."""

    def rate(at_s: float) -> float:
        return 40e6 - 12e6 * min(1.0, max(0.0, at_s - 10) / 10)

    world = Changing(load(egress(100)), rate, seed=seed).run(32.0)
    return {
        "steady_used": used(world.carried, 22, 32, 28e6),
        "decline_people_ms": 1000 * late(world.echoes, 10, 20),
        "steady_people_ms": 1000 * late(world.echoes, 20, 32),
    }


def fluid(seed: int, *, ask: bool = True, adversary: float | None = None, **link: object) -> Figures:
    """One host over a link of 40 Mbit/s that falls to half and rises again; noise, spikes, and lost reports.

    `ask`: whether the way there is measured by itself; else only round trips are known. `adversary`: a program of
    another user reports such a wait of ten peers of its own, from 6 s on.
    """
    full, fall_s, rise_s, end_s = 40e6, 12.0 + shift_s(seed), 24.0 + shift_s(seed), 38.0
    noise = random.Random(seed)

    class Reported(World):
        def measurements(self) -> Measurements:
            measured = super().measurements()
            (sample,) = measured.interfaces
            if adversary is None:
                return measured
            wait_s = 0.0 if self.now_s < 6 else adversary * (1 + noise.random())
            flows = tuple(
                FlowSample(
                    f"x-{number}", f"10.9.0.{number}", "compute", "report", 0.0, rtt_s=0.01, rtt_s_min=0.01,
                    delivered_bytes=int(self.now_s * 1e4), sent_packets=int(self.now_s * 10), lost_packets=0,
                    one_way_s=7.0 + wait_s, one_way_age_s=0.05, uid=7,
                )
                for number in range(10)
            )  # fmt: skip
            return Measurements((replace(sample, flows=(*sample.flows, *flows)),))

    def rate(at_s: float) -> float:
        return full if at_s < fall_s or at_s >= rise_s else full / 2

    options: dict[str, object] = {
        "senders": [quic(), tcp(), tcp(port=874)], "jitter_s": 0.003, "spike_s": 0.05, "seed": seed, **link,
    }  # fmt: skip
    world = Reported(rate=rate, ask=ask, **options)  # type: ignore[arg-type]
    law = Controlled(load(egress(40)))
    law(world)
    world.run(end_s, law)
    return {
        "before_part": mean([r for at_s, r in world.rates if 6 < at_s < fall_s]) / full,
        "fall_s": followed_s(world.rates, fall_s, 0.15 * full, 0.54 * full, for_s=1.0),
        "fall_people_ms": 1000 * late(world.queues, fall_s + 2, rise_s),
        "fall_used": mean([min(r, full / 2) for at_s, r in world.rates if fall_s + 2 < at_s < rise_s]) / (full / 2),
        "rise_s": followed_s(world.rates, rise_s, FOLLOWED * full, full, for_s=1.0),
        "rise_people_ms": 1000 * late(world.queues, rise_s + 5, end_s),
        "rise_used": mean([r for at_s, r in world.rates if rise_s + 5 < at_s < end_s]) / full,
    }


def others_delay(seed: int) -> Figures:
    """Delay that stays whatever we send: it is somebody else's, from 5 s on."""
    senders = [tcp(), tcp(port=874)]
    world = World([quic(), *senders], lambda at_s: 40e6, training=False, seed=seed)
    law = Controlled(load(egress(40)))
    law(world)
    world.run(5.0, law)
    for sender in senders:
        sender.round_trip_s = 0.100
    world.run(35.0, law)
    return {
        "settled_part": mean([rate for at_s, rate in world.rates if at_s > 25]) / 40e6,
        "least_part": mean([rate for at_s, rate in world.rates if 5 < at_s < 25]) / 40e6,
    }


def inbound(
    seed: int, *, pause_s: float = 0.2, wants: float = 1e9, announces: bool = True, hosts: int = 2,
    window_bits: float | None = None, broker: str = "yes",
) -> Figures:  # fmt: skip
    """The way towards a host of 100 Mbit/s that falls to 30 and rises to 70, with storage hosts that can be held.

    With `window_bits` storage has congestion windows, so that what packets wait in front of the link says something;
    without a `broker` an IFB of ours is what holds it back.
    """
    fall_s, rise_s, end_s = 4.0 + shift_s(seed), 10.0 + shift_s(seed), 20.0
    world = Inflow(
        load('version = 1\n[[interface]]\nname = "a"\ningress = "100 Mbit/s"\n'),
        [Storage(f"10.0.0.{3 + number}", wants, broker=broker, window_bits=window_bits) for number in range(hosts)],
        pause_s=pause_s, announces=announces, burst_bytes=1_000_000, changes=((fall_s, 30e6), (rise_s, 70e6)),
        grows_per_s=0.0 if window_bits is None else 2.0, seed=seed,
    )  # fmt: skip
    world.run(end_s)
    rates = [
        (one.state.ingress[0].at_s or 0.0, one.allocation.ingress[0].capacity_bits_per_s / HEADROOM)
        for one in world.decisions
    ]
    risen = [rate for at_s, rate in rates if at_s > rise_s + 5]
    waits: Figures = {}
    if window_bits is not None:
        waits = {
            "fall_people_ms": 1000 * late(world.delays, fall_s + 2, rise_s),
            "rise_people_ms": 1000 * late(world.delays, rise_s + 5, end_s),
        }
    return {
        "fall_s": followed_s(rates, fall_s, 0.75 * 30e6, 1.1 * 30e6, for_s=1.0),
        "rise_s": followed_s(rates, rise_s, FOLLOWED * 70e6, 2 * 70e6, for_s=1.0),
        "rise_used": min(1.0, mean(risen) / 70e6),
        "storage_part": world.of_leftover,
        "step_s": mean([later - sooner for sooner, later in pairwise(world.begun)] or [0.0]),
        **waits,
    }


def mean(values: list[float]) -> float:
    return sum(values) / len(values)


SCENARIOS: Mapping[str, Callable[[int], Figures]] = {
    "large windows": lambda seed: changing(seed, window_bytes=1_200_000.0),
    "small windows": lambda seed: changing(seed, window_bytes=460_000.0),
    "late hosts": lambda seed: changing(seed, noise_s=0.02),
    "stalls": lambda seed: changing(seed, stall_every_s=2.0),
    "slow 10": lambda seed: slow(seed, 10),
    "slow 20": lambda seed: slow(seed, 20),
    "short buffer": short_buffer,
    "late probes": late_probes,
    "declining": declining,
    "noise": fluid,
    "reverse queue": lambda seed: fluid(seed, reverse_queue_s=0.15),
    "round trips": lambda seed: fluid(seed, ask=False),
    "round trips, reverse queue": lambda seed: fluid(seed, ask=False, reverse_queue_s=0.15),
    "loss without delay": lambda seed: fluid(seed, buffer_bytes=40_000),
    "liar sees none": lambda seed: fluid(seed, adversary=0.0),
    "liar sees much": lambda seed: fluid(seed, adversary=0.15),
    "others' delay": others_delay,
    "inbound": inbound,
    "inbound, unannounced": lambda seed: inbound(seed, announces=False),
    "inbound, storage alone": lambda seed: inbound(seed, pause_s=100.0, wants=140e6),
    "inbound, one host": lambda seed: inbound(seed, hosts=1),
    "inbound, windows": lambda seed: inbound(seed, window_bits=4e5),
    "inbound, windows in an IFB": lambda seed: inbound(seed, window_bits=4e5, broker="no"),
}
