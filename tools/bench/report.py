"""Figures of every cell, ratios between contenders and the goals, as one JSON document made from raw records."""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from typing import Any, TypeAlias

from tools.bench import figures
from tools.bench.settings import FRAMES, OFFLOAD, OFFLOAD_DELAY, Settings
from tools.measure.records import Record

Key: TypeAlias = tuple[str, str, str]
"""Scenario, case, contender; idle and loaded round trips are different cases."""

REFERENCES = {
    "loopback": ("gloo", "iperf3"),
    "lan": ("iperf3", "gloo"),
    "loss": ("iperf3 cubic", "iperf3 bbr"),
}
"""Whom the others are divided by."""

BESIDE_BULK = {
    "1 kB beside bulk, of idle": "median_s_1000",
    "1 kB beside bulk, 99 %, of idle": "p99_s_1000",
    "64 kB beside bulk, of idle": "median_s_64000",
    "64 kB beside bulk, 99 %, of idle": "p99_s_64000",
}
"""Round trips that must not become more than twice as long."""


def compute(head: Record, records: Sequence[Record]) -> dict[str, Any]:
    """The report. Pure."""
    turns: dict[Key, dict[int, dict[str, float]]] = {}
    limits: dict[Key, list[str]] = {}
    for record in records:
        if record["kind"] == "failure":
            continue
        key = (record["scenario"], case_of(record), record["contender"])
        try:
            found = figures.BY_KIND[record["kind"]](record)
        except ValueError:
            continue  # nothing passed at all: the cell then has fewer repetitions, and says how many
        turns.setdefault(key, {})[record.get("repetition", 0)] = found
        if record["kind"] == "flow":
            limits.setdefault(key, []).append(figures.limit(found, link_bits_per_s=record["rate_bits_per_s"]))
    cells = [_cell(key, turns, limits.get(key, [])) for key in turns]
    return {
        "run": head,
        "cells": cells,
        "goals": goals(turns, scenarios=head["scenarios"]),
        "failures": [record for record in records if record["kind"] == "failure"],
    }


def case_of(record: Record) -> str:
    """The case with its load: round trips beside bulk are compared with idle ones."""
    case: str = record.get("case", "")
    if record["kind"] == "latency":
        return f"{case}, {'bulk' if record['loaded'] else 'idle'}"
    return case


def _cell(key: Key, turns: Mapping[Key, Mapping[int, Mapping[str, float]]], limits: Sequence[str]) -> dict[str, Any]:
    scenario, case, contender = key
    names = sorted({name for found in turns[key].values() for name in found})
    cell: dict[str, Any] = {"scenario": scenario, "case": case, "contender": contender}
    cell["figures"] = {name: figures.spread(list(_series(turns, key, name).values())) for name in names}
    cell["limit"] = statistics.mode(limits) if limits else ""
    cell["ratios"] = {}
    metric = "goodput_bits_per_s"
    for reference in REFERENCES.get(scenario, ()):
        found = figures.ratios(_series(turns, key, metric), _series(turns, (scenario, case, reference), metric))
        if found is not None and reference != contender:
            cell["ratios"][reference] = found
    if scenario == "latency" and case.endswith("bulk"):
        idle = (scenario, case.removesuffix("bulk") + "idle", contender)
        for name in names:
            if name.startswith(("median_s_", "p99_s_")):
                found = figures.ratios(_series(turns, key, name), _series(turns, idle, name))
                if found is not None:
                    cell["ratios"][f"{name} of idle"] = found
    return cell


def _series(turns: Mapping[Key, Mapping[int, Mapping[str, float]]], key: Key, name: str) -> dict[int, float]:
    return {turn: found[name] for turn, found in turns.get(key, {}).items() if name in found}


def goals(turns: Mapping[Key, Mapping[int, Mapping[str, float]]], *, scenarios: Sequence[str]) -> list[dict[str, Any]]:
    """What the native engine must reach; `value` and `passed` are None where it was not measured.

    Args:
        scenarios: of the run.
    """

    def ratio(scenario: str, case: str, ours: str, theirs: str, metric: str) -> float | None:
        found = figures.ratios(
            _series(turns, (scenario, case, ours), metric),
            _series(turns, (scenario, case, theirs), metric),
        )
        return found["median"] if found else None

    def value(scenario: str, case: str, ours: str, metric: str) -> float | None:
        values = list(_series(turns, (scenario, case, ours), metric).values())
        return statistics.median(values) if values else None

    rate = "goodput_bits_per_s"
    entries: list[tuple[str, float | None, str, float]] = [
        ("loopback: of Gloo, ordinary packets", ratio("loopback", "loopback", "native", "gloo", rate), "at_least", 0.6),
    ]
    for case in (FRAMES, OFFLOAD_DELAY):
        entries.append((f"{case}: of iperf3 TCP", ratio("lan", case, "native", "iperf3", rate), "at_least", 0.97))
    for case in (OFFLOAD, OFFLOAD_DELAY):
        for who in ("sender", "receiver"):
            used = value("lan", case, "native", f"{who}_cpu_s_per_gb")
            entries.append((f"{case}: {who}'s CPU s/GB", used, "at_most", 1.0))
    for link in (FRAMES, OFFLOAD, Settings().mixed_case) if "latency" in scenarios else ():
        for name, metric in BESIDE_BULK.items():
            beside = _series(turns, ("latency", f"{link}, bulk", "native"), metric)
            found = figures.ratios(beside, _series(turns, ("latency", f"{link}, idle", "native"), metric))
            entries.append((f"{link}: {name}", found["median"] if found else None, "at_most", 2.0))
    return [
        {
            "name": name,
            "value": got,
            side: bound,
            "passed": None if got is None else (got >= bound if side == "at_least" else got <= bound),
        }
        for name, got, side, bound in entries
    ]
