"""Run the simulated links that judge the capacity law over seeds, and compare two trees: what a mechanism is worth.

    python -m tools.ablations --output with.json
    python -m tools.ablations --output without.json --compare with.json

Run it before a mechanism is deleted and after. A figure counts as worse where its mean moved for the worse by more than
twice the standard error of the difference (5 % of figures that did not change do so by chance).
"""

from __future__ import annotations

import importlib
import json
import math
import statistics
import sys
from collections.abc import Callable, Mapping
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console
from rich.table import Table

SIMULATORS = Path(__file__).parents[1] / "tests" / "unit" / "broker"
GOALS: Mapping[str, float] = {"fall_s": 1.5, "peers_fall_s": 1.5, "rise_s": 5.0, "people_ms": 30.0, "used": 0.95}
"""By the end of a figure's name: what the design promises."""
SURE = 2.0
"""Standard errors, as above."""

Results = dict[str, dict[str, list[float]]]
"""Scenario to figure to its value with each seed."""

app = typer.Typer(add_completion=False, help=__doc__)


@app.command()
def judge(
    seeds: Annotated[int, typer.Option(help="Seeds 0 to this, exclusive.", min=1)] = 10,
    only: Annotated[list[str] | None, typer.Option(help="Scenarios whose name begins so; all without.")] = None,
    processes: Annotated[int, typer.Option(help="Runs side by side.", min=1)] = 1,
    output: Annotated[Path | None, typer.Option(help="Keep every figure here.")] = None,
    compare: Annotated[Path | None, typer.Option(help="Figures of another tree, kept by --output.")] = None,
) -> None:
    """Print each scenario's figures: mean, standard error, worst, and with how many seeds the goal was missed."""
    names = [name for name in _scenarios() if not only or any(name.startswith(one) for one in only)]
    runs = [(name, seed) for name in names for seed in range(seeds)]
    with ProcessPoolExecutor(processes) as pool:
        found = list(pool.map(_run, runs))
    results: Results = {}
    for (name, _), figures in zip(runs, found, strict=True):
        for figure, value in figures.items():
            results.setdefault(name, {}).setdefault(figure, []).append(value)
    if output is not None:
        output.write_text(json.dumps(results))
    before: Results = json.loads(compare.read_text()) if compare is not None else {}
    Console(width=150).print(_table(results, before))


def _scenarios() -> Mapping[str, Callable[[int], dict[str, float]]]:
    """The tests' simulators are no package: they are found by their folder."""
    if str(SIMULATORS) not in sys.path:
        sys.path.insert(0, str(SIMULATORS))
    scenarios: Mapping[str, Callable[[int], dict[str, float]]] = importlib.import_module("ablation_runs").SCENARIOS
    return scenarios


def _run(run: tuple[str, int]) -> dict[str, float]:
    name, seed = run
    return _scenarios()[name](seed)


def _table(results: Results, before: Results) -> Table:
    table = Table("scenario", "figure", "mean", "worst", "missed", "before", "worst", "missed", "change", box=None)
    for name, figures in results.items():
        for figure, values in figures.items():
            old = before.get(name, {}).get(figure, [])
            table.add_row(name, figure, *_cells(figure, values), *(_cells(figure, old) if old else ("", "", "")),
                          _change(figure, values, old) if old else "")  # fmt: skip
    return table


def _is_bad_when_high(figure: str) -> bool:
    return figure.endswith(("_s", "_ms"))


def _cells(figure: str, values: list[float]) -> tuple[str, str, str]:
    worst = max(values) if _is_bad_when_high(figure) else min(values)
    goal = next((goal for ending, goal in GOALS.items() if figure.endswith(ending)), None)
    missed = ""
    if goal is not None:
        missed = str(sum((value > goal) if _is_bad_when_high(figure) else (value < goal) for value in values))
    return f"{statistics.fmean(values):.3g} ± {_error(values):.2g}", f"{worst:.3g}", missed


def _error(values: list[float]) -> float:
    return statistics.stdev(values) / math.sqrt(len(values)) if len(values) > 1 else 0.0


def _change(figure: str, values: list[float], old: list[float]) -> str:
    rises = statistics.fmean(values) - statistics.fmean(old)
    if abs(rises) <= max(SURE * math.hypot(_error(values), _error(old)), 0.005 * abs(statistics.fmean(old))):
        return ""
    return "worse" if (rises > 0) is _is_bad_when_high(figure) else "better"


if __name__ == "__main__":
    app()
