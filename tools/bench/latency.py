"""4: round trips of small messages, with and without a bulk transfer to the same peer at the same time."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from typing import Any

from tools.bench import contenders
from tools.bench.flows import ends, two_hosts
from tools.bench.pairs import Pair, Pings
from tools.bench.settings import FRAMES, OFFLOAD
from tools.bench.turns import Measure, Run, lab_up
from tools.lab import Lab

SIZES = (1000, 64_000)


def measure_of(settings_s: float, bulk_bytes: int) -> Measure:
    """Idle first, then loaded: two records of one turn."""

    def measure(pair: Pair) -> Sequence[Mapping[str, Any]]:
        records = []
        for load_bytes in (0, bulk_bytes):
            found = pair.ping(Pings(sizes=SIZES, seconds=settings_s, bulk_bytes=load_bytes))
            records.append({"kind": "latency", "loaded": bool(load_bytes), **found})
        return records

    return measure


def latencies(run: Run) -> None:
    """Over the fast link, where the processor is what takes time, and over one with a real delay and queue."""
    settings = run.settings
    links = (
        (FRAMES, settings.lan_bits_per_s, 0.0, settings.lan_buffer_s),
        (OFFLOAD, settings.lan_bits_per_s, 0.0, settings.lan_buffer_s),
        (settings.mixed_case, settings.mixed_bits_per_s, settings.mixed_delay_s, 0.05),
    )
    measure = measure_of(settings.latency_s, settings.bulk_bytes)
    for case, rate_bits_per_s, delay_s, buffer_s in links:
        lab = Lab("bench-latency")
        two_hosts(lab)
        offload = case == OFFLOAD
        lab.link("a", "b", rate_bits_per_s=rate_bits_per_s, delay_s=delay_s, buffer_s=buffer_s, offload=offload)
        with lab_up(lab), ExitStack() as stack:
            pairs = run.pairs(stack, "latency", contenders.LATENCY, *ends(lab))
            run.turns("latency", case, pairs, measure, repetitions=settings.latency_repetitions, lab=lab)
