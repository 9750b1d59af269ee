"""Reports of several runs side by side: figures of different sources.

Only what was measured within one run on one machine says much by itself: goals, and ratios to a contender of the same
run. These are compared, and never absolute rates, which differ from day to day on a shared machine.

A figure is called worse only where it is of our own, both runs repeated it `REPETITIONS_MIN` times, the best repetition
of the last run is worse than the worst of the first, and the medians differ by more than `MARGIN`.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeAlias

from rich import box
from rich.console import Console
from rich.table import Table

from tools.checkout import Checkout

FILE = "report.json"
REPETITIONS_MIN = 5
"""Two runs of the same sources with 5 repetitions each have disjoint spreads, on the bad side, in 1 of 252 figures."""

OURS = ("native", "aioquic", "hive")
"""What the names of our own contenders begin with. How others do beside each other is shown and not judged."""

MARGIN = 0.05
"""Of the first run's median. Some figures repeat within a percent in one run and move by more between two runs."""

Report: TypeAlias = Mapping[str, Any]


@dataclass(frozen=True, kw_only=True)
class Figure:
    """Median and spread of one figure over the repetitions of a run."""

    median: float
    low: float
    high: float
    repetitions: int
    higher_is_better: bool
    ours: bool


def figures(report: Report) -> dict[str, Figure]:
    """What can be compared between runs: ratios within the run, and goals."""
    return dict([*_ratios(report), *_goals(report)])


def worse(first: Figure, last: Figure) -> bool:
    """Whether `last` is worse than `first` by more than both spreads and the margin."""
    if not first.ours or min(first.repetitions, last.repetitions) < REPETITIONS_MIN:
        return False
    if first.higher_is_better:
        return last.high < first.low and last.median < (1 - MARGIN) * first.median
    return last.low > first.high and last.median > (1 + MARGIN) * first.median


def regressions(first: Report, last: Report) -> list[str]:
    """Names of the figures that got worse, and of repeated ones that were measured at first and are no more."""
    before, after = figures(first), figures(last)
    return [
        name
        for name, figure in before.items()
        if (worse(figure, after[name]) if name in after else figure.ours and figure.repetitions >= REPETITIONS_MIN)
    ]


def checkout_of(report: Report) -> Checkout:
    """The sources that a report's run measured."""
    return Checkout.from_record(report["run"]["versions"])


def print_comparison(console: Console, reports: Sequence[Report]) -> None:
    """Print a column for each report, and how the last one's medians relate to the first one's."""
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False)
    table.add_column("")
    for report in reports:
        table.add_column(str(checkout_of(report)), justify="right")
    table.add_column("last of first", justify="right")
    table.add_column("")
    columns = [figures(report) for report in reports]
    found_worse = regressions(reports[0], reports[-1])
    for name in dict.fromkeys(name for column in columns for name in column):
        first, last = columns[0].get(name), columns[-1].get(name)
        ratio = f"{last.median / first.median:.2f}" if first and last and first.median else "-"
        verdict = "[red]WORSE[/red]" if name in found_worse else ""
        table.add_row(name, *(_cell(column.get(name)) for column in columns), ratio, verdict)
    console.print(table)


def read_report(directory: Path) -> Report:
    """The report that a run left.

    Raises:
        OSError, ValueError: there is none, or it is no JSON.
    """
    found: Report = json.loads((directory / FILE).read_text(encoding="utf-8"))
    return found


def _cell(figure: Figure | None) -> str:
    if figure is None:
        return "-"
    if figure.repetitions == 1:
        return f"{figure.median:.3g}"
    return f"{figure.median:.3g} ({figure.low:.3g} to {figure.high:.3g})"


def _ratios(report: Report) -> Iterator[tuple[str, Figure]]:
    """Of the engines: throughput beside others', round trips beside bulk of idle ones. Of collectives: times Gloo."""
    for cell in report.get("cells", ()):
        of = f" {cell['operation']} {cell['bytes']} bytes:" if "operation" in cell else ""
        for reference, spread in (cell["times"] if "times" in cell else cell["ratios"]).items():
            yield (
                f"{cell['scenario']}, {cell['case']}:{of} {cell['contender']} of {reference}",
                Figure(
                    median=spread["median"],
                    low=spread["low"],
                    high=spread["high"],
                    repetitions=spread["n"],
                    higher_is_better=cell["scenario"] != "latency",
                    ours=cell["contender"].startswith(OURS),
                ),
            )


def _goals(report: Report) -> Iterator[tuple[str, Figure]]:
    for goal in report.get("goals", ()):
        if (value := goal["value"]) is not None:
            yield (
                f"goal: {goal['name']}",
                Figure(
                    median=value, low=value, high=value, repetitions=1, higher_is_better="at_least" in goal, ours=True
                ),
            )
