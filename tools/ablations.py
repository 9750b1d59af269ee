"""Run the simulated links that judge the capacity law over seeds, and compare two trees: what a mechanism is worth.

    python -m tools.ablations --output with.json
    python -m tools.ablations --output without.json --compare with.json

Run it before a mechanism is deleted and after. A figure counts as worse where its mean moved for the worse by more than
twice the standard error of the difference (5 % of figures that did not change do so by chance). The goals are those
that the tests ask of the same links.
"""

from __future__ import annotations

import importlib
import json
import math
import statistics
import sys
from collections.abc import Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.table import Table

SIMULATORS = Path(__file__).parents[1] / "tests" / "unit" / "broker"
LOW_IS_GOOD = ("_s", "_ms", "_most")
SURE, LEAST_CHANGE = 2.0, 0.01
"""Standard errors, as above; and a change of less than 1 % is felt by nobody."""

Results = dict[str, dict[str, list[float]]]
"""Scenario to figure to its value with each seed."""

app = typer.Typer(add_completion=False, help=__doc__)


@app.command()
def judge(
    seeds: Annotated[int, typer.Option(help="Seeds 0 to this, exclusive; as many as the tests take where 0.")] = 0,
    only: Annotated[list[str] | None, typer.Option(help="Scenarios whose name begins so; all without.")] = None,
    processes: Annotated[int, typer.Option(help="Runs side by side.", min=1)] = 1,
    output: Annotated[Path | None, typer.Option(help="Keep every figure here.")] = None,
    compare: Annotated[Path | None, typer.Option(help="Figures of another tree, kept by --output.")] = None,
    changed: Annotated[bool, typer.Option(help="Show only what changed and what misses its goal.")] = False,
) -> None:
    """Print each scenario's figures: mean, standard error, worst, and how many seeds keep each goal."""
    scenarios = _scenarios()
    names = [name for name in scenarios if not only or any(name.startswith(one) for one in only)]
    runs = [(name, seed) for name in names for seed in range(seeds or scenarios[name].seeds)]
    with ProcessPoolExecutor(processes) as pool:
        found = list(pool.map(_run, runs, chunksize=4))
    results: Results = {}
    for (name, _), figures in zip(runs, found, strict=True):
        for figure, value in figures.items():
            results.setdefault(name, {}).setdefault(figure, []).append(value)
    if output is not None:
        output.write_text(json.dumps(results))
    before: Results = json.loads(compare.read_text()) if compare is not None else {}
    Console(width=160).print(_table(results, before, changed=changed))


def _scenarios() -> Mapping[str, Any]:
    """The tests' simulators are no package: they are found by their folder."""
    if str(SIMULATORS) not in sys.path:
        sys.path.insert(0, str(SIMULATORS))
    scenarios: Mapping[str, Any] = importlib.import_module("judged_links").SCENARIOS
    return scenarios


def _run(run: tuple[str, int]) -> dict[str, float]:
    name, seed = run
    figures: dict[str, float] = _scenarios()[name].run(seed)
    return figures


def _table(results: Results, before: Results, *, changed: bool) -> Table:
    table = Table("scenario", "figure", "mean", "worst", "before", "worst", "change", "goals", box=None)
    for name, figures in results.items():
        for figure, values in figures.items():
            old = before.get(name, {}).get(figure, [])
            change = _change(figure, values, old) if old else ""
            goals = _goals(name, figure, values, old)
            if not changed or change or "missed" in goals:
                table.add_row(name, figure, *_cells(figure, values), *_cells(figure, old), change, goals)
    return table


def _goals(name: str, figure: str, values: Sequence[float], old: Sequence[float]) -> str:
    """Each goal of a figure, by how many seeds it is kept and was, and by how many it has to be."""
    said = []
    for goal in _scenarios()[name].goals:
        if goal.figure == figure:
            kept, before = (sum(goal.at_least <= value <= goal.at_most for value in found) for found in (values, old))
            missed = " missed" if kept < goal.share * len(values) - 1e-9 else ""
            said.append(f"{goal.words}: {kept}{f' was {before}' if old else ''} of {len(values)}{missed}")
    return "; ".join(said)


def _cells(figure: str, values: Sequence[float]) -> tuple[str, str]:
    if not values:
        return "", ""
    worst = max(values) if figure.endswith(LOW_IS_GOOD) else min(values)
    return f"{statistics.fmean(values):.3g} ± {_error(values):.2g}", f"{worst:.3g}"


def _error(values: Sequence[float]) -> float:
    return statistics.stdev(values) / math.sqrt(len(values)) if len(values) > 1 else 0.0


def _change(figure: str, values: Sequence[float], old: Sequence[float]) -> str:
    rises = statistics.fmean(values) - statistics.fmean(old)
    if abs(rises) <= max(SURE * math.hypot(_error(values), _error(old)), LEAST_CHANGE * abs(statistics.fmean(old))):
        return ""
    return "worse" if (rises > 0) is figure.endswith(LOW_IS_GOOD) else "better"


if __name__ == "__main__":
    app()
