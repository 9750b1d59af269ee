"""Figures of every cell, ratios between contenders and the goals, as one JSON document made from raw records."""

from __future__ import annotations

import json
import statistics
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple, TypeAlias

from tools.bench.figures import ratios, spread
from tools.bench.records import Record, read
from tools.collectivesbench import figures
from tools.collectivesbench.contenders import GLOOS
from tools.collectivesbench.goals import goals

FILE = "report.json"


class Key(NamedTuple):
    """What a cell is of."""

    scenario: str
    case: str
    operation: str
    bytes: int
    contender: str


Turns: TypeAlias = Mapping[Key, Mapping[int, Mapping[str, float]]]
"""The figures of each cell by repetition."""


def write(directory: Path) -> dict[str, Any]:
    """Compute a run's report from its records, and write it beside them."""
    head, records = read(directory)
    found = compute(head, records)
    (directory / FILE).write_text(json.dumps(found, indent=1) + "\n", encoding="utf-8")
    return found


def compute(head: Record, records: Sequence[Record]) -> dict[str, Any]:
    """The report. Pure."""
    turns: dict[Key, dict[int, dict[str, float]]] = {}
    for record in records:
        if record["kind"] == "collective" and record["repetition"] >= 0:
            names = (record["scenario"], record["case"], record["operation"], record["bytes"], record["contender"])
            turns.setdefault(Key(*names), {})[record["repetition"]] = figures.collective(record)
    cells = [_cell(key, turns) for key in turns]
    return {
        "run": head,
        "cells": cells,
        "goals": goals(cells),
        "failures": [record for record in records if record["kind"] == "failure"],
    }


def _cell(key: Key, turns: Turns) -> dict[str, Any]:
    """One cell. `times` is how many times as fast as each Gloo, `allowed` how many times the bound would be."""
    mine = turns[key]
    names = sorted({name for found in mine.values() for name in found})
    cell: dict[str, Any] = {**key._asdict(), "times": {}, "allowed": {}}
    cell["figures"] = {name: spread(list(_series(mine, name).values())) for name in names}
    for reference in GLOOS:
        theirs = turns.get(key._replace(contender=reference))
        found = ratios(_series(mine, "seconds"), _series(theirs, "seconds"), inverse=True) if theirs else None
        if found is not None and theirs is not None:
            cell["times"][reference] = found
            median_s = statistics.median(_series(theirs, "seconds").values())
            if cell["figures"]["bound_s"]["median"] > 0:
                cell["allowed"][reference] = median_s / cell["figures"]["bound_s"]["median"]
    return cell


def _series(turns: Mapping[int, Mapping[str, float]], name: str) -> dict[int, float]:
    return {turn: found[name] for turn, found in turns.items() if name in found}
