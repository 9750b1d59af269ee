"""Figures of every cell and the goals, as one JSON document made from raw records."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from tools.bench.figures import spread
from tools.measure.records import Record
from tools.volatilebench import figures
from tools.volatilebench.algorithms import REFERENCE
from tools.volatilebench.goals import goals


class Key(NamedTuple):
    """What a cell is of."""

    scenario: str
    case: str
    task: str
    contender: str


def compute(head: Record, records: Sequence[Record]) -> dict[str, Any]:
    """The report. Pure."""
    turns: dict[Key, list[dict[str, float]]] = {}
    for record in records:
        if record["kind"] == "check":
            key = Key("checks", record["case"], "", record["contender"])
            turns.setdefault(key, []).append({"value": record["value"], "cpu_s": record["cpu_s"]})
    for key, points, reference, record in _trainings(records):
        found = figures.beside(points, reference)
        cpu_s = sum(rank["cpu_s"] for rank in record["ranks"])
        turns.setdefault(key, []).append(found | {"cpu_s_per_step": cpu_s / figures.steps(record)})
    for key, values in (*_churn(records), *_joiner(records)):
        turns.setdefault(key, []).append(values)
    cells = [_cell(key, found) for key, found in turns.items()]
    return {
        "run": head,
        "cells": cells,
        "goals": goals(cells, scenarios=head["scenarios"], every=head["settings"]["every"]),
        "failures": [record for record in records if record["kind"] == "failure"],
    }


def _cell(key: Key, turns: Sequence[Mapping[str, float]]) -> dict[str, Any]:
    names = sorted({name for found in turns for name in found})
    return {
        **key._asdict(),
        "figures": {name: spread([found[name] for found in turns if name in found]) for name in names},
    }


def _trainings(
    records: Sequence[Record],
) -> list[tuple[Key, list[figures.Point], list[figures.Point] | None, Record]]:
    """Each training with its curve, and with that of the reference of the same seed, if there is one."""
    curves: dict[tuple[Key, int], tuple[list[figures.Point], Record]] = {}
    for record in records:
        if record["kind"] == "loss":
            key = Key("loss", record["case"], record["task"], record["contender"])
            try:
                curves[key, record["repetition"]] = figures.curve(record), record
            except ValueError:
                continue  # it says nothing: the cell then has fewer repetitions, and says how many
    found = []
    for (key, seed), (points, record) in curves.items():
        reference, _ = curves.get((key._replace(contender=REFERENCE.name), seed), (None, None))
        found.append((key, points, reference, record))
    return found


def _churn(records: Sequence[Record]) -> list[tuple[Key, dict[str, float]]]:
    runs = [record for record in records if record["kind"] == "churn"]
    undisturbed = {record["contender"]: record for record in runs if not record["disturbed"]}
    found = []
    for record in runs:
        other = undisturbed.get(record["contender"])
        if record["disturbed"] and other is not None:
            try:
                values = figures.churn(record, other)
            except (ValueError, ZeroDivisionError):
                continue
            found.append((Key("churn", record["case"], record["task"], record["contender"]), values))
    return found


def _joiner(records: Sequence[Record]) -> list[tuple[Key, dict[str, float]]]:
    blocks = [record for record in records if record["kind"] == "joiner"]
    idle = next((one for one in blocks if not one["storage"] and not one["joining"]), None)
    found = []
    for record in blocks:
        storage = "storage floods" if record["storage"] else "no storage"
        case = f"{storage}, {'somebody joins' if record['joining'] else 'nobody'}"
        if idle is not None:
            try:
                found.append((Key("joiner", case, "", record["contender"]), figures.joiner(record, idle)))
            except ValueError:
                continue
    return found
