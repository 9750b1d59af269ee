"""7: which congestion control for which path: random loss, a TCP flow on the same link, a deep buffer."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack, nullcontext
from typing import Any

from tools.bench import contenders
from tools.bench.flows import ends, record, tcp_beside, two_hosts
from tools.bench.pairs import Flow, Pair
from tools.bench.place import Place, python
from tools.bench.settings import BESIDE_TCP, DEEP_BUFFER, MIB, Settings
from tools.bench.side import Side
from tools.bench.turns import Measure, Run, lab_up
from tools.lab import Lab

SLACK_S = 5.0


def measure_of(
    flow: Flow, *, settings: Settings, first: Place, second: Place, probe: Side, beside_tcp: bool, run: Run
) -> Measure:
    """One flow, and what echoes and a TCP flow beside it saw, are one record.

    The TCP flow begins first, and fills the link for `congestion_lead_s`.
    """
    rate_bits_per_s = settings.loss_bits_per_s

    def measure(pair: Pair) -> Sequence[Mapping[str, Any]]:
        lead_s = settings.congestion_lead_s if beside_tcp else 0.0
        seconds = lead_s + flow.seconds
        log = run.folder / "logs" / "congestion-tcp.log"
        tcp: AbstractContextManager[dict[str, Any]] = (
            tcp_beside(first, second, seconds=seconds, log=log) if beside_tcp else nullcontext({})
        )
        with tcp as beside:
            probe.begin({"do": "probe", "address": second.address, "seconds": seconds})
            found = record(
                pair, dataclasses.replace(flow, lead_s=lead_s),
                warm_up_s=settings.congestion_warm_up_s, rate_bits_per_s=rate_bits_per_s,
            )  # fmt: skip
            echoes = probe.end(wait_s=seconds + SLACK_S)
        return [{**found, "echoes": echoes, **beside}]

    return measure


def congestion(run: Run) -> None:
    """Each control on each path. A link's buffer is made with it: the deep one is a lab of its own."""
    settings = run.settings
    flow = Flow(
        seconds=settings.congestion_s, bytes_max=settings.flow_bytes_max, message_bytes=MIB // 4, outstanding=32
    )  # 8 MiB: what is in flight at 200 Mbit/s and 40 ms, 200 ms of queue, and as much again
    for deep in (False, True):
        cases = [case for case in settings.congestion_cases if (case == DEEP_BUFFER) == deep]
        if not cases:
            continue
        lab = Lab("bench-congestion")
        two_hosts(lab)
        buffer_s = settings.congestion_deep_s if deep else 0.05
        link = lab.link(
            "a", "b", rate_bits_per_s=settings.loss_bits_per_s, delay_s=settings.loss_delay_s, buffer_s=buffer_s
        )
        with lab_up(lab), ExitStack() as stack:
            first, second = ends(lab)
            log = run.folder / "logs" / "congestion-probe.log"
            probe = Side(first, python("tools.bench.programs.probe"), log=log)
            stack.callback(probe.close)
            pairs = run.pairs(stack, "congestion", contenders.CONGESTION, first, second)
            for case in cases:
                link.set_loss(float(case.split()[0]) / 100 if case.endswith("loss") else 0.0)
                measure = measure_of(
                    flow, settings=settings, first=first, second=second, probe=probe, run=run,
                    beside_tcp=case == BESIDE_TCP,
                )  # fmt: skip
                run.turns("congestion", case, pairs, measure, repetitions=settings.congestion_repetitions, lab=lab)
