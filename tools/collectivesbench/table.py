"""The report's tables."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeAlias

from hive_qos.units import format_size
from tools.collectivesbench.contenders import GLOOS, HIVE
from tools.collectivesbench.goals import BOUNDS
from tools.collectivesbench.settings import KIB, MIB
from tools.measure.tables import NONE, Column, Section, goals

Cell: TypeAlias = Mapping[str, Any]

TITLES = {
    "lan": "1  1 Gbit/s to each rank",
    "uneven": "2  One rank behind a quarter of the others' rate",
    "sites": "3  Two sites of two, 100 Mbit/s, 40 ms, 0.5 % loss",
    "urgent": "7  An urgent all-reduce beside one of 64 MiB",
    "falling": "4  A link of 100 Mbit/s falls to 25 while four ranks train",
    "training": "5  Training to a fixed loss",
    "host": "6  Ranks of one host",
}
TIMES = tuple(f"times {name}" for name in GLOOS)
HEADS = ("network", "operation", "contender", "turns", "ms (lowest … highest)", *TIMES)
HEADS += ("links' bound", "processors'", "CPU s/GB a rank", "Python's")
URGENT_HEADS = (*HEADS[:4], "ms alone", "ms beside (lowest … highest)", "the longest", *TIMES)
URGENT_HEADS += ("times alone", "less a chunk")
TRAINING_HEADS = ("network", "trained", "contender", "seeds", "s to the loss (lowest … highest)", *TIMES)
TRAINING_HEADS += ("reached", "steps", "CPU s a step a rank", "loss, apart")
FALLING_HEADS = ("network", "trained", "contender", "falls", "s a step before", "s a step after", "expected", *TIMES)
FALLING_HEADS += ("s until it follows", "loss, apart")
ALLOWED = ("links allow", "processors allow at hive's CPU time")
SHORT_HEADS = ("network", "all_reduce of", "turns", "hive", "Gloo", "Gloo's time / hive's", *ALLOWED)


def sections(report: Mapping[str, Any]) -> list[Section]:
    """Title, heads and rows of each table: a few figures for the documents first, the goals last."""
    found: list[Section] = []
    if short := [_short(cell) for cell in report["cells"] if _is_typical(cell, report["cells"])]:
        found.append(("In short", SHORT_HEADS, short))
    for scenario, title in TITLES.items():
        heads, row = KINDS.get(scenario, (HEADS, _row))
        rows = [row(cell) for cell in report["cells"] if cell["scenario"] == scenario]
        if rows:
            found.append((title, heads, rows))
    return [*found, goals(report, *GOAL_COLUMNS)]


def _is_typical(cell: Cell, cells: Sequence[Cell]) -> bool:
    """Of hive's all-reduces on each network: a small one, 1 MiB, and the largest of at most 64 MiB."""
    sizes = [one["bytes"] for one in cells if (one["scenario"], one["case"]) == (cell["scenario"], cell["case"])]
    if (cell["contender"], cell["operation"]) != (HIVE.name, "all_reduce") or "processors_s" not in cell["figures"]:
        return False
    typical = (16 * KIB, MIB, max((size for size in sizes if size <= 64 * MIB), default=0))
    return bool(cell["times"]) and cell["bytes"] in typical


def _short(cell: Cell) -> list[str]:
    """Beside the faster Gloo."""
    name, times = min(cell["times"].items(), key=lambda item: item[1]["median"])
    hive_s = cell["figures"]["seconds"]["median"]
    row = [cell["case"], format_size(cell["bytes"]), str(times["n"]), f"{_ms(hive_s)} ms"]
    return [*row, f"{_ms(hive_s * times['median'])} ms", f"{times['median']:.2f}", *_allowed(cell["allowed"][name])]


def _row(cell: Cell) -> list[str]:
    values = cell["figures"]
    row = [cell["case"], f"{cell['operation']} {format_size(cell['bytes'])}", cell["contender"], str(cell["turns"])]
    row.append(_ms_spread(values["seconds"]))
    row += _times(cell)
    row += [_ms(values["links_s"]["median"]), _ms(values["processors_s"]["median"])]
    row.append(f"{values['cpu_s_per_gb']['median']:.2f}")
    return [*row, f"{values['python_share']['median']:.2f}" if "python_share" in values else NONE]


def _urgent_row(cell: Cell) -> list[str]:
    values = cell["figures"]
    row = [cell["case"], f"{cell['operation']} {format_size(cell['bytes'])}", cell["contender"], str(cell["turns"])]
    row += [_ms(values["alone_s"]["median"]), _ms_spread(values["seconds"]), _ms(values["worst_s"]["high"])]
    return [*row, *_times(cell), *(_figure(cell, name) for name in ("times_alone", "after_chunk"))]


def _training_row(cell: Cell) -> list[str]:
    row = [cell["case"], cell["operation"], cell["contender"], str(cell["turns"])]
    row += [_figure(cell, "seconds", spread=True), *_times(cell)]
    return [*row, *(_figure(cell, name) for name in ("reached", "steps", "cpu_s_per_step", "loss_gap"))]


def _falling_row(cell: Cell) -> list[str]:
    row = [cell["case"], cell["operation"], cell["contender"], str(cell["turns"])]
    row += [_figure(cell, name) for name in ("before_s", "after_s", "expected_s")]
    return [*row, *_times(cell), _figure(cell, "follow_s", spread=True), _figure(cell, "loss_gap")]


KINDS: Mapping[str, tuple[Sequence[str], Callable[[Cell], list[str]]]] = {
    "urgent": (URGENT_HEADS, _urgent_row),
    "training": (TRAINING_HEADS, _training_row),
    "falling": (FALLING_HEADS, _falling_row),
}
"""Scenarios that are no sweeps, with their tables' heads and rows."""


def _times(cell: Cell) -> list[str]:
    times = cell["times"]
    return [f"{times[name]['median']:.2f}" if name in times and name != cell["contender"] else NONE for name in GLOOS]


def _figure(cell: Cell, name: str, *, spread: bool = False) -> str:
    values = cell["figures"].get(name)
    if values is None:
        return NONE
    text = f"{values['median']:.3g}"
    return f"{text} ({values['low']:.3g} … {values['high']:.3g})" if spread else text


def _allowed(allowed: Mapping[str, float]) -> list[str]:
    return [_number(allowed.get(name)) for name in BOUNDS]


def _number(value: float | None) -> str:
    return NONE if value is None else f"{value:.2f}"


def _allows(bound: str) -> Callable[[Mapping[str, Any]], str]:
    return lambda goal: _number(goal["allowed"].get(bound))


GOAL_COLUMNS: Sequence[Column] = (
    ("worst", lambda goal: str(goal["where"])),
    ("turns", lambda goal: str(goal["turns"])),
    *((head, _allows(bound)) for head, bound in zip(ALLOWED, BOUNDS, strict=True)),
)


def _ms(seconds: float) -> str:
    return f"{1e3 * seconds:.3g}" if seconds < 1 else f"{1e3 * seconds:.0f}"


def _ms_spread(values: Mapping[str, float]) -> str:
    return f"{_ms(values['median'])} ({_ms(values['low'])} … {_ms(values['high'])})"
