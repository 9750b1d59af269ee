"""What has to be, beside what was found: pure. The worst of several cells counts, and is named."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, TypeAlias

from tools.volatilebench.algorithms import REFERENCE
from tools.volatilebench.bounds import CHECKS

LOSSES = {"PartialMean": 1.01, "DiLoCo": 1.04, "StreamingDiLoCo": 1.045}
"""PartialMean's arithmetic is DDP's, and sums in another order change a loss by a percent at most. DiLoCo lost 3.7 %
with 4 workers, streaming no more than half a percent beside it (arXiv 2501.18512)."""
SELDOM = ("LocalSGD", "DiLoCo", "StreamingDiLoCo", "AsyncDiLoCo")
OVERHEAD = 1.25
"""Those exchange as much as one of DDP's steps does in `every` steps; and headers, acknowledgements and agreement."""

Cell: TypeAlias = Mapping[str, Any]
Found: TypeAlias = tuple[float, str]
GOODPUT, LOSS_GAP = 0.88, 0.02
"""Decoupled DiLoCo's goodput with eight learners (arXiv 2604.21428), and what a few lost rounds may cost."""
STEP, STEP_BESIDE_STORAGE, STORAGE = 1.05, 1.10, 1.0
"""A step while somebody fetches, of an idle one, in the median and in the mean: what the others may lose by it, and by
storage as well, as the demonstration allows training. Storage has its guarantee in any case."""


def goals(cells: Sequence[Cell], *, scenarios: Sequence[str], every: int) -> list[dict[str, Any]]:
    """Every goal in the order of the scenarios; `value` and `passed` are None where it was not measured.

    Args:
        scenarios: that were run: the others have none.
        every: inner steps between two meetings in `loss`.
    """
    entries = []
    for check in CHECKS:
        runs = [_judged(cell, "value", check.at_most) for cell in cells if cell["case"] == check.name]
        entries.append(_entry(f"checks  {check.what}", _worst(runs), at_most=check.at_most))
    for contender, most in LOSSES.items():
        found = [(_median(cell, "same_loss"), _what(cell)) for cell in _of(cells, "loss", contender)]
        name = f"loss  {contender}: of {REFERENCE.name}'s after as many tokens"
        entries.append(_entry(name, _worst(found), at_most=most))
    for contender in SELDOM:
        less = [(_ratio(cell, cells, "sent_bytes"), _what(cell)) for cell in _of(cells, "loss", contender)]
        name = f"loss  {contender}: bytes, of {REFERENCE.name}'s for as many tokens"
        entries.append(_entry(name, _worst(less), at_most=OVERHEAD / every))
    for cell in _of(cells, "churn"):
        names = [
            ("goodput, of live capacity", "goodput", "at_least", GOODPUT),
            ("members that failed", "failed", "at_most", 0.0),
        ]
        if "loss_gap" in cell["figures"]:
            names.append(("loss, beyond the undisturbed run's of as much compute", "loss_gap", "at_most", LOSS_GAP))
            names.append(("commits of which members hold different bits", "diverged", "at_most", 0.0))
            names.append(("runs begun anew, as all who held the state were lost", "anew", "at_most", 0.0))
        for what, figure, side, bound in names:
            value = _judged(cell, figure, bound)
            entries.append(_entry(f"churn  {cell['contender']}: {what}", value, **{side: bound}))
    for cell in _of(cells, "joiner"):
        figures = cell["figures"]
        if "joins" in cell["case"]:
            what = f"joiner  {cell['case']}: a step while somebody fetches, of an idle one"
            most = STEP_BESIDE_STORAGE if "storage" in figures else STEP
            longest = f"longest: {figures['longest']['high']:.3g}"
            entries.append(_entry(what, (figures["step"]["median"], longest), at_most=most))
            entries.append(_entry(f"{what}: the mean", (figures["mean"]["median"], longest), at_most=most))
        if "storage" in figures:
            what = f"joiner  {cell['case']}: storage, of its guarantee"
            entries.append(_entry(what, (figures["storage"]["median"], ""), at_least=STORAGE))
    return [entry for entry in entries if entry["name"].split()[0] in scenarios]


def _of(cells: Sequence[Cell], scenario: str, contender: str = "") -> list[Cell]:
    return [one for one in cells if one["scenario"] == scenario and contender in ("", one["contender"])]


def _ratio(cell: Cell, cells: Sequence[Cell], figure: str) -> float | None:
    """Beside the reference's of the same task and network."""
    for other in cells:
        if other["contender"] == REFERENCE.name and (other["case"], other["task"]) == (cell["case"], cell["task"]):
            mine, theirs = _median(cell, figure), _median(other, figure)
            return None if mine is None or theirs is None else mine / theirs
    return None


def _judged(cell: Cell, figure: str, bound: float) -> Found:
    """The median of all runs; the most where nothing is allowed: what must not be, must not be in any run."""
    return float(cell["figures"][figure]["median" if bound else "high"]), ""


def _median(cell: Cell, figure: str) -> float | None:
    """None where no seed of it has the reference's training beside it."""
    return float(cell["figures"][figure]["median"]) if figure in cell["figures"] else None


def _what(cell: Cell) -> str:
    return f"{cell['case']}: {cell['task']}"


def _worst(values: Iterable[tuple[float | None, str]]) -> Found | None:
    known = [(value, where) for value, where in values if value is not None]
    return max(known, key=lambda one: one[0], default=None)


def _entry(name: str, found: Found | None, **bound: float) -> dict[str, Any]:
    value, where = found or (None, "")
    ((side, limit),) = bound.items()
    passed = None if value is None else (value >= limit if side == "at_least" else value <= limit)
    return {"name": name, "value": value, "where": where, side: limit, "passed": passed}
