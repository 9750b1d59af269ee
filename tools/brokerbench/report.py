"""Figures of every scenario and the goals, as one JSON document made from raw records."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, TypeAlias

from tools.brokerbench import figures
from tools.brokerbench.records import Record, read
from tools.brokerbench.settings import SCENARIOS

FILE = "report.json"

Goal: TypeAlias = tuple[str, float | None, str, float]
"""What it is about, what was found, `at_least` or `at_most`, the bound."""

FIGURES: Mapping[str, Callable[[Sequence[Record]], Mapping[str, Any]]] = {
    "sender": figures.shares,
    "receiver": figures.shares,
    "remote": figures.shares,
}

STEP_GOALS = {"sender": (1.05, 1.15, 0.95), "receiver": (1.10, None, 0.85), "remote": (1.10, None, 0.85)}
"""Step of idle: median and 95th percentile, at most; storage of what is left, at least."""


def write(directory: Path) -> dict[str, Any]:
    """Compute a run's report from its records, and write it beside them."""
    heads, records = read(directory)
    found = compute(heads, records)
    (directory / FILE).write_text(json.dumps(found, indent=1) + "\n", encoding="utf-8")
    return found


def compute(heads: Sequence[Record], records: Sequence[Record]) -> dict[str, Any]:
    """The report. Pure."""
    scenarios = {}
    for scenario in SCENARIOS:
        blocks = [record for record in records if record["scenario"] == scenario and record["kind"] == "block"]
        if blocks:
            scenarios[scenario] = dict(FIGURES[scenario](blocks))
    return {
        "schema": 1,
        "runs": list(heads),
        "scenarios": scenarios,
        "goals": [
            {
                "name": name,
                "value": value,
                side: bound,
                "passed": None if value is None else (value >= bound if side == "at_least" else value <= bound),
            }
            for name, value, side, bound in goals(scenarios)
        ],
        "failures": [record for record in records if record["kind"] == "failure"],
    }


def goals(scenarios: Mapping[str, Mapping[str, Any]]) -> list[Goal]:
    """What our own must reach; None where it was not measured."""
    found: list[Goal] = []
    for scenario, (median, p95, storage) in STEP_GOALS.items():
        if scenario in scenarios:
            ours = scenarios[scenario].get("brokered", {})
            ratio = ours.get("ratio", {})
            found.append((f"{scenario}: step of idle, median", ratio.get("median"), "at_most", median))
            if p95 is not None:
                found.append((f"{scenario}: step of idle, 95th percentile", ratio.get("p95"), "at_most", p95))
            of_left = ours.get("storage_of_left", {}).get("all")
            found.append((f"{scenario}: storage of what is left", of_left, "at_least", storage))
    return found
