"""Figures of every cell, ratios between contenders and the goals, as one JSON document made from raw records."""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple, TypeAlias

from tools.bench.figures import ratios, spread
from tools.collectivesbench import figures
from tools.collectivesbench.contenders import GLOO, GLOOS
from tools.collectivesbench.goals import BOUNDS, goals
from tools.measure.records import Record


class Key(NamedTuple):
    """What a cell is of."""

    scenario: str
    case: str
    operation: str
    bytes: int
    contender: str


Turns: TypeAlias = Mapping[Key, Mapping[int, Mapping[str, float]]]
"""The figures of each cell by repetition."""


def compute(head: Record, records: Sequence[Record]) -> dict[str, Any]:
    """The report. Pure."""
    turns: dict[Key, dict[int, dict[str, float]]] = {}
    curves: dict[tuple[Key, int], Record] = {}
    for record in records:
        if record["kind"] not in figures.BY_KIND or record["repetition"] < 0:
            continue
        try:
            found = figures.BY_KIND[record["kind"]](record)
        except ValueError:
            continue  # it says nothing: the cell then has fewer repetitions, and says how many
        turns.setdefault(_key(record), {})[record["repetition"]] = found
        if "curve" in record["ranks"][0]:
            curves[_key(record), record["repetition"]] = record
    for (key, turn), record in curves.items():
        other = curves.get((key._replace(contender=GLOO.name), turn))
        if other is not None:
            turns[key][turn]["loss_gap"] = figures.loss_gap(record, other)
    cells = [_cell(key, turns) for key in turns]
    return {
        "run": head,
        "cells": cells,
        "goals": goals(cells, head),
        "failures": [record for record in records if record["kind"] == "failure"],
    }


def _key(record: Record) -> Key:
    """What is trained stands for the operation of a training, which has no bytes."""
    operation = record["operation"] if record["kind"] == "collective" else record["task"]
    return Key(record["scenario"], record["case"], operation, record.get("bytes", 0), record["contender"])


def _cell(key: Key, turns: Turns) -> dict[str, Any]:
    """One cell. `times` is how many times as fast as each Gloo, `allowed` how many times each bound would be.

    `turns` are those that count: of one alone nobody knows how far another would be.
    """
    mine = turns[key]
    names = sorted({name for found in mine.values() for name in found})
    cell: dict[str, Any] = {**key._asdict(), "turns": len(mine), "times": {}, "allowed": {}}
    cell["figures"] = {name: spread(list(_series(mine, name).values())) for name in names}
    metric = "after_s" if key.scenario == "falling" else "seconds"
    for reference in GLOOS:
        theirs = turns.get(key._replace(contender=reference))
        found = ratios(_series(mine, metric), _series(theirs, metric), inverse=True) if theirs else None
        if found is not None and theirs is not None:
            cell["times"][reference] = found
            median_s = statistics.median(_series(theirs, metric).values())
            bounds_s = {name: cell["figures"].get(f"{name}_s", {"median": 0.0})["median"] for name in BOUNDS}
            cell["allowed"][reference] = {name: median_s / bounds_s[name] for name in BOUNDS if bounds_s[name]}
    return cell


def _series(turns: Mapping[int, Mapping[str, float]], name: str) -> dict[int, float]:
    return {turn: found[name] for turn, found in turns.items() if name in found}
