"""Simulated links of one host, with noise, spikes, lost reports and peers that lie."""

from __future__ import annotations

import random
import statistics

from control_loop import Controlled
from fluid_link import World, quic, tcp
from link_figures import Figures, egress, followed_s
from msgspec.structs import replace

from broker.model.values import FlowSample, Measurements
from broker.policy.toml import load

FULL, HALF, THIRD = 40.0, 20.0, 40.0 / 3


class LiedTo(World):
    """A program of another user reports a wait of ten peers of its own, from 6 s on."""

    wait_s = 0.0

    def measurements(self) -> Measurements:
        measured = super().measurements()
        (sample,) = measured.interfaces
        noise = random.Random(int(self.now_s * 1000))
        wait_s = 0.0 if self.now_s < 6 else self.wait_s * (1 + noise.random())
        flows = tuple(
            FlowSample(
                f"x-{number}", f"10.9.0.{number}", "compute", "report", 0.0, rtt_s=0.01, rtt_s_min=0.01,
                delivered_bytes=int(self.now_s * 1e4), sent_packets=int(self.now_s * 10), lost_packets=0,
                one_way_s=7.0 + wait_s, one_way_age_s=0.05, uid=7,
            )
            for number in range(10)
        )  # fmt: skip
        return Measurements((replace(sample, flows=(*sample.flows, *flows)),))


def fluid(
    seed: int, *, end_s: float, low: float = HALF, high: float = HALF, rise_s: float = 1e9, noisy: bool = True,
    flows: int = 2, lie_s: float | None = None, **link: object,
) -> World:  # fmt: skip
    """A link of 40 Mbit/s that falls at 12 s and may rise later; rates in Mbit/s."""

    def rate(at_s: float) -> float:
        return 1e6 * (FULL if at_s < 12 else low if at_s < rise_s else high)

    noise = {"jitter_s": 0.003, "spike_s": 0.05} if noisy else {}
    kind = World if lie_s is None else LiedTo
    world = kind([quic(), *(tcp(port=873 + number) for number in range(flows))], rate, seed=seed, **noise, **link)  # type: ignore[arg-type]
    if isinstance(world, LiedTo):
        world.wait_s = lie_s or 0.0
    law = Controlled(load(egress(FULL)))
    law(world)
    world.run(end_s, law)
    return world


def rates(world: World, start_s: float, end_s: float) -> list[float]:
    return [rate / 1e6 for at_s, rate in world.rates if start_s < at_s <= end_s]


def queues_ms(world: World, start_s: float, end_s: float) -> list[float]:
    return [1000 * queue_s for at_s, queue_s in world.queues if start_s < at_s <= end_s]


def late_ms(world: World, start_s: float, end_s: float) -> float:
    """The 95th percentile of the queue."""
    return statistics.quantiles(queues_ms(world, start_s, end_s), n=20)[-1]


def fluid_half(seed: int) -> Figures:
    """A silent fall to half, a minute long."""
    world = fluid(seed, end_s=60)
    settled = rates(world, 15, 60)
    working = [rate for rate in settled if rate > 12]  # a drain is half the rate for a tick or two
    return {
        "before_least": min(rates(world, 6, 12)) / FULL,
        "at_1s_most": max(rates(world, 13.0, 14.0)),
        "at_1.5s_most": max(rates(world, 13.5, 14.5)),
        "people_ms": late_ms(world, 14, 30),
        "middle_ms": statistics.median(queues_ms(world, 14, 30)),
        "mean": statistics.mean(settled),
        "settled_most": max(settled),
        "working_part": len(working) / len(settled),
        "working_least": min(working),
    }


def fluid_third(seed: int) -> Figures:
    """A silent fall to a third."""
    world = fluid(seed, end_s=30, low=THIRD)
    return {
        "at_1.5s_most": max(rates(world, 13.5, 30)),
        "at_1.8s_most": max(rates(world, 13.8, 30)),
        "mean": statistics.mean(rates(world, 15, 30)),
        "people_ms": late_ms(world, 15, 30),
        "middle_ms": statistics.median(queues_ms(world, 15, 30)),
    }


def fluid_unasked(seed: int, **link: object) -> Figures:
    """No peer says when it got a packet: round trips alone."""
    world = fluid(seed, end_s=30, ask=False, **link)  # type: ignore[arg-type]
    return {
        "fall_s": followed_s(world.rates, 12.0, 0.15e6 * FULL, 1.08e6 * HALF, for_s=1.0),
        "at_4s_most": max(rates(world, 16, 17)),
        "mean": statistics.mean(rates(world, 17, 30)),
        "people_ms": late_ms(world, 17, 30),
    }


def fluid_rise(seed: int) -> Figures:
    """A fall to half and a rise to all of it."""
    world = fluid(seed, end_s=40, high=FULL, rise_s=25.0)
    return {
        "after_5s_least": min(rates(world, 30.0, 40)),
        "after_5.5s_least": min(rates(world, 30.5, 40)),
        "after_6s_least": min(rates(world, 31, 40)),
        "mean": statistics.mean(rates(world, 27, 40)),
    }


def fluid_rise_to_less(seed: int) -> Figures:
    """A rise to three quarters of what it was."""
    world = fluid(seed, end_s=45, high=30.0, rise_s=25.0)
    return {"mean": statistics.mean(rates(world, 31, 45)), "people_ms": late_ms(world, 26, 45)}


def fluid_settled(seed: int, **link: object) -> Figures:
    """What becomes of a fall to half under some hardship."""
    world = fluid(seed, end_s=40, **link)  # type: ignore[arg-type]
    return {
        "before_least": min(rates(world, 6, 12)) / FULL,
        "fall_s": followed_s(world.rates, 12.0, 0.15e6 * FULL, 1.08e6 * HALF, for_s=1.0),
        "after_2s_most": max(rates(world, 14, 40)),
        "mean": statistics.mean(rates(world, 15, 40)),
        "people_ms": late_ms(world, 15, 40),
    }


def unknown_uplink(seed: int, *, mbit: float, **link: object) -> Figures:
    """Nobody names a rate, so 1 Gbit/s is assumed; the link has far less, and 200 ms of buffer."""
    storage = [tcp(f"10.0.0.{3 + number % 2}", port=873 + number) for number in range(4)]
    world = World(
        [quic(), *storage], lambda at_s: 1e6 * mbit, buffer_bytes=int(25e3 * mbit), burst_bytes=int(40e3 * mbit),
        seed=seed, jitter_s=0.003, spike_s=0.05, **link,  # type: ignore[arg-type]  # of a case: any of its arguments
    )  # fmt: skip
    law = Controlled(load('version = 1\n[[interface]]\nname = "a"\negress = "auto"\n'))
    law(world)
    world.run(25.0, law)
    delivered = sum(sender.delivered_bytes * sender.header for sender in world.senders)
    return {
        "fall_s": followed_s(world.rates, 0.0, 0.0, 1.1e6 * mbit, for_s=1.0),
        "used": delivered * 8 / 25 / (1e6 * mbit),
        "people_ms": late_ms(world, 8, 25),
        "step_s": statistics.median(duration_s for start_s, duration_s in world.steps if start_s > 8),
    }


def others_delay(seed: int, *, training: bool = False) -> Figures:
    """Delay that stays whatever we send: it is somebody else's, from 5 s on."""
    senders = [quic(), tcp(), tcp(port=874)]
    world = World(senders, lambda at_s: 40e6, training=training, jitter_s=0.003 if training else 0.0, seed=seed)
    law = Controlled(load(egress(FULL)))
    law(world)
    world.run(5.0, law)
    for sender in senders:
        sender.round_trip_s = 0.110 if training else 0.100
    world.run(35.0, law)
    return {
        "settled_part": statistics.mean(rates(world, 25, 35)) / FULL,
        "mean_part": statistics.mean(rates(world, 5, 25)) / FULL,
    }
