"""A simulated way towards a host, with storage that can be held at its sender or here."""

from __future__ import annotations

import statistics
from itertools import pairwise

from inflow_link import Inflow, Storage
from link_figures import FOLLOWED, HEADROOM, Figures, followed_s, late, shift_s

from broker.model.values import BrokerThere
from broker.policy.toml import load


def inbound(
    seed: int, *, pause_s: float = 0.2, wants: float = 1e9, announces: bool = True, hosts: int = 2,
    window_bits: float | None = None, broker: BrokerThere = BrokerThere.YES,
) -> Figures:  # fmt: skip
    """A way in of 100 Mbit/s that falls to 30 and rises to 70, with storage hosts that can be held.

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
    decided = [
        (one.state.ingress[0].at_s or 0.0, one.allocation.ingress[0].capacity_bits_per_s / HEADROOM)
        for one in world.decisions
    ]
    steps_s = [later - sooner for sooner, later in pairwise(world.begun)]
    figures = {
        "before_least": min(rate for at_s, rate in decided if 1 < at_s < fall_s) / 100e6,
        "fall_s": followed_s(decided, fall_s, 0.75 * 30e6, 1.1 * 30e6, for_s=1.0),
        "rise_s": followed_s(decided, rise_s, FOLLOWED * 70e6, 2 * 70e6, for_s=1.0),
        "rise_used": min(1.0, statistics.mean(rate for at_s, rate in decided if at_s > rise_s + 5) / 70e6),
        "storage_part": world.of_leftover,
        "step_s": statistics.mean(steps_s or [0.0]),
    }
    if window_bits is not None:
        figures["fall_people_ms"] = 1000 * late(world.delays, fall_s + 2, rise_s)
        figures["rise_people_ms"] = 1000 * late(world.delays, rise_s + 5, end_s)
    return figures
