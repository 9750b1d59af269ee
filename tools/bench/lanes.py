"""8: more connections to one peer: what they gain where a link or a processor limits, and what they take from others.

The numbers of lanes are given, not chosen: what is measured here is why `transport.mesh.lanes` opens one only where it
has shown that it gains. A link is divided by connections, so every further lane takes from whoever shares it.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from typing import Any

from hive_qos.units import format_rate
from tools.bench import contenders
from tools.bench.flows import ends, measure_of, record, tcp_beside, two_hosts
from tools.bench.pairs import Flow, Pair
from tools.bench.place import Place, loopback
from tools.bench.settings import BESIDE_TCP, MIB, OFFLOAD, Settings
from tools.bench.turns import Measure, Run, lab_up
from tools.lab import Lab

MESSAGE_BYTES, OUTSTANDING = MIB, 9
"""Whatever the number of lanes: with four, two on each and one that waits, as a collective's chunks do."""


def beside_tcp(flow: Flow, *, settings: Settings, first: Place, second: Place, run: Run) -> Measure:
    """One flow, and what a TCP flow that shares its link carried in its time, are one record. The TCP flow begins."""
    lead_s = settings.lanes_beside_lead_s
    log = run.folder / "logs" / "lanes-tcp.log"

    def measure(pair: Pair) -> Sequence[Mapping[str, Any]]:
        with tcp_beside(first, second, seconds=lead_s + flow.seconds, log=log) as beside:
            found = record(
                pair, dataclasses.replace(flow, lead_s=lead_s), warm_up_s=settings.lanes_beside_warm_up_s,
                rate_bits_per_s=settings.mixed_bits_per_s,
            )  # fmt: skip
        return [found | beside]

    return measure


def lanes(run: Run) -> None:
    """Each number over loopback, over a fast link as network cards see it, and beside a TCP flow on a slow one."""
    settings = run.settings
    flow = Flow(
        seconds=settings.loopback_s, bytes_max=settings.flow_bytes_max, message_bytes=MESSAGE_BYTES,
        outstanding=OUTSTANDING,
    )  # fmt: skip
    with ExitStack() as stack:
        pairs = run.pairs(stack, "lanes", contenders.LANES, loopback("a"), loopback("b"))
        measure = measure_of(flow, warm_up_s=settings.warm_up_s, rate_bits_per_s=None)
        run.turns("lanes", "loopback", pairs, measure, repetitions=settings.lanes_repetitions, lab=None)
    lab = Lab("bench-lanes")
    two_hosts(lab)
    lab.link("a", "b", rate_bits_per_s=settings.lan_bits_per_s, buffer_s=settings.lan_buffer_s, offload=True)
    with lab_up(lab), ExitStack() as stack:
        first, second = ends(lab)
        pairs = run.pairs(stack, "lanes", contenders.LANES, first, second)
        measure = measure_of(
            dataclasses.replace(flow, seconds=settings.lan_s),
            warm_up_s=settings.warm_up_s, rate_bits_per_s=settings.lan_bits_per_s,
        )  # fmt: skip
        run.turns("lanes", OFFLOAD, pairs, measure, repetitions=settings.lanes_repetitions, lab=lab)
    shared = dataclasses.replace(flow, seconds=settings.lanes_beside_s, message_bytes=MESSAGE_BYTES // 4)
    with lab_up(_slow_link(settings)) as lab, ExitStack() as stack:
        first, second = ends(lab)
        pairs = run.pairs(stack, "lanes", contenders.LANES, first, second)
        measure = beside_tcp(shared, settings=settings, first=first, second=second, run=run)
        slow = f"{format_rate(settings.mixed_bits_per_s)}, {2000 * settings.mixed_delay_s:g} ms"
        run.turns(
            "lanes", f"{slow}, {BESIDE_TCP}", pairs, measure, repetitions=settings.lanes_beside_repetitions, lab=lab
        )


def _slow_link(settings: Settings) -> Lab:
    """Frames as on a wire, so few that no processor limits: who gets how much is for the congestion controls to say."""
    lab = Lab("bench-lanes")
    two_hosts(lab)
    lab.link(
        "a", "b", rate_bits_per_s=settings.mixed_bits_per_s, delay_s=settings.mixed_delay_s,
        buffer_s=settings.lan_buffer_s,
    )  # fmt: skip
    return lab
