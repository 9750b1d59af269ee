"""Every figure of the report, computed from the raw records alone: a pure function of three lists.

Definitions
- A block is the steps of one condition at one link rate in one round, from the first: what the change of conditions
  costs is in every figure. Step times are those of rank 0, on the flooded host.
- A block's interval runs from the start of its first step to the end of its last. Bytes of an interval are the
  difference of a wire counter, interpolated linearly between the two samples around each end.
- storage_bits_per_s: storage's wire bits over the intervals, divided by their length; storage_bits_per_s_min: the least
  of any one interval.
- storage_share_of_leftover: storage's wire bytes, divided by the shaped capacity in the intervals minus the wire bytes
  of training in the same intervals. Shaped capacity is 97 % of the link's real rate then, as the router enforces it:
  what a shaper that knew the truth would give out, in every condition alike, whatever the one at work believes. Bytes
  are from counters of the router, after the bottleneck, with Ethernet headers, like the rate itself.
- storage_share_of_link_leftover: the same against the link's whole real rate; no shaper can reach 1 there.
- cpu_share: busy CPU seconds of the whole machine in the intervals, divided by all there were.
"""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

from tools.measure.fixed import SHAPED_SHARE
from tools.measure.series import Series, percentile

Record: TypeAlias = Mapping[str, Any]

LOSS_STEPS = 10
"""First and last loss are means over so many steps of rank 0: one batch alone is noise."""


@dataclass(frozen=True)
class Counters:
    """The series that the figures need."""

    compute_bytes: Series
    storage_bytes: Series
    cpu_busy_s: Series
    cpu_total_s: Series


def counters_of(samples: Sequence[Record], topology: Record) -> Counters:
    """Build the series: `topology` names host, interface and column of each."""
    machine = [sample for sample in samples if sample["host"] == topology["compute"][0]]
    times = tuple(float(sample["t_s"]) for sample in machine)
    return Counters(
        compute_bytes=_series(samples, topology["compute"]),
        storage_bytes=_series(samples, topology["storage"]),
        cpu_busy_s=Series(times, tuple(float(sample["cpu"]["busy_s"]) for sample in machine)),
        cpu_total_s=Series(times, tuple(float(sample["cpu"]["total_s"]) for sample in machine)),
    )


def _series(samples: Sequence[Record], where: Sequence[Any]) -> Series:
    host, interface, column = where
    rows = [(float(s["t_s"]), float(s["interfaces"][interface][column])) for s in samples if s["host"] == host]
    return Series(tuple(t_s for t_s, _ in rows), tuple(value for _, value in rows))


def blocks_of(steps: Sequence[Record], *, condition: str, half: str) -> list[list[Record]]:
    """Rank 0's steps of a phase and a half, one list a block, in order."""
    blocks: dict[int, list[Record]] = {}
    for step in steps:
        if step["rank"] == 0 and (step["kind"], step["condition"], step["half"]) == ("phase", condition, half):
            blocks.setdefault(int(step["block"]), []).append(step)
    return list(blocks.values())


def interval_of(block: Sequence[Record]) -> tuple[float, float]:
    """Start of the first step to the end of the last."""
    return float(block[0]["start_s"]), float(block[-1]["end_s"])


def cell(blocks: Sequence[Sequence[Record]], counters: Counters, *, rate_bits_per_s: int) -> dict[str, Any]:
    """One condition at one rate: the figures of the report's table."""
    seconds = [float(step["step_s"]) for block in blocks for step in block]
    if not seconds:
        return {"steps": 0}
    intervals = [interval_of(block) for block in blocks]
    total_s = sum(end - begin for begin, end in intervals)
    stored = [counters.storage_bytes.delta(interval) for interval in intervals]
    storage_bytes = sum(stored)
    compute_bytes = sum(counters.compute_bytes.delta(interval) for interval in intervals)
    link_bytes = rate_bits_per_s / 8 * total_s
    machine_s = sum(counters.cpu_total_s.delta(interval) for interval in intervals)
    return {
        "step_s": {"median": statistics.median(seconds), "p95": percentile(seconds, 0.95)},
        "storage_bits_per_s": 8 * storage_bytes / total_s,
        "storage_bits_per_s_min": min(
            8 * moved / (end - begin) for moved, (begin, end) in zip(stored, intervals, strict=True)
        ),
        "compute_bits_per_s": 8 * compute_bytes / total_s,
        "storage_share_of_leftover": _share(storage_bytes, SHAPED_SHARE * link_bytes - compute_bytes),
        "storage_share_of_link_leftover": _share(storage_bytes, link_bytes - compute_bytes),
        "steps": len(seconds),
        "seconds": total_s,
        "cpu_share": sum(counters.cpu_busy_s.delta(interval) for interval in intervals) / machine_s if machine_s else 0,
        "trainer_cpu_s_per_step": statistics.mean(float(step["cpu_s"]) for block in blocks for step in block),
    }


def _share(part: float, whole: float) -> float:
    return part / whole if whole > 0 else 0.0


def phase_figures(steps: Sequence[Record], counters: Counters, settings: Record) -> dict[str, dict[str, Any]]:
    """`phases` of the report: condition, then half, each with its ratio to idle at the same rate."""
    full = int(settings["rate_bits_per_s"])
    rates = {"full": full, "half": full // 2}
    phases: dict[str, dict[str, Any]] = {}
    for condition in settings["phases"]:
        phases[condition] = {
            half: cell(blocks_of(steps, condition=condition, half=half), counters, rate_bits_per_s=rates[half])
            for half in ("full", "half")
        }
    for halves in phases.values():
        for half, figures in halves.items():
            idle = phases.get("idle", {}).get(half, {"steps": 0})
            if idle["steps"] and figures["steps"]:
                figures["step_median_of_idle"] = figures["step_s"]["median"] / idle["step_s"]["median"]
                figures["step_p95_of_idle"] = figures["step_s"]["p95"] / idle["step_s"]["p95"]
    return phases


def loss_figures(steps: Sequence[Record]) -> dict[str, float]:
    """Mean loss of rank 0 over the first and the last steps of the whole run."""
    losses = [float(step["loss"]) for step in steps if step["rank"] == 0]
    if not losses:
        return {}
    return {"first": statistics.mean(losses[:LOSS_STEPS]), "last": statistics.mean(losses[-LOSS_STEPS:])}


def cores_used(steps: Sequence[Record], events: Sequence[Record]) -> dict[str, dict[str, dict[str, float]]]:
    """By condition and half: how many cores each program had, over all blocks of phases."""
    labels = {int(step["block"]): (step["condition"], step["half"]) for step in steps if step["kind"] == "phase"}
    marks: dict[int, list[Record]] = {}
    for event in events:
        if event["event"] == "cpu":
            marks.setdefault(int(event["block"]), []).append(event)
    sums: dict[tuple[str, str], dict[str, float]] = {}
    seconds: dict[tuple[str, str], float] = {}
    for block, pair in marks.items():
        if block not in labels or len(pair) != 2:
            continue
        begin, end = pair
        seconds[labels[block]] = seconds.get(labels[block], 0.0) + end["t_s"] - begin["t_s"]
        used = sums.setdefault(labels[block], {})
        for name, cpu_s in end["cpu_s"].items():
            used[name] = used.get(name, 0.0) + cpu_s - begin["cpu_s"].get(name, 0.0)
    table: dict[str, dict[str, dict[str, float]]] = {}
    for (condition, half), used in sums.items():
        per_s = seconds[condition, half]
        table.setdefault(condition, {})[half] = {name: cpu_s / per_s for name, cpu_s in used.items()}
    return table
