"""A benchmark's report as tables, the same in a terminal and for a document, with what was not measured below them.

The benchmark's own `table.sections` has the cells.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeAlias

from rich import box
from rich.console import Console
from rich.table import Table

Section: TypeAlias = tuple[str, Sequence[str], Sequence[Sequence[str]]]
"""Title, heads, and the cells of each row."""
Column: TypeAlias = tuple[str, Callable[[Mapping[str, Any]], str]]
"""Head, and what makes a cell of a row's figures."""

NONE = "-"
LEFT = ("case", "contender", "operation", "trained", "task", "algorithm", "worst", "because")
"""Heads of columns of words, beside the first one."""
OURS = ("native", "hive", "brokered")
"""A row that begins so is set in bold; so is one whose second or third cell does."""
VERDICTS = {True: "yes", False: "NO"}
STYLES = {VERDICTS[True]: "green", VERDICTS[False]: "red"}


def goals(report: Mapping[str, Any], *more: Column) -> Section:
    """The last table; `more` columns come before the verdict."""
    heads = ("goal", "found", "has to be", *(head for head, _ in more), "")
    rows = [[*_goal(goal), *(cell(goal) for _, cell in more), _verdict(goal)] for goal in report["goals"]]
    return "Goals", heads, rows


def print_report(console: Console, sections: Sequence[Section], report: Mapping[str, Any]) -> None:
    """Print every table, and what was not measured."""
    for title, heads, rows in sections:
        table = Table(title=title, title_justify="left", title_style="bold", box=box.SIMPLE_HEAD, pad_edge=False)
        for place, head in enumerate(heads):
            table.add_column(head, no_wrap=True, justify="left" if place == 0 or head in LEFT else "right")
        for row in rows:
            ours = any(cell.startswith(OURS) for cell in row[:3])
            table.add_row(*row, style=STYLES.get(row[-1], "bold" if ours else None))
        console.print(table)
    for line in _remarks(report):
        console.print(line, style="yellow", markup=False, highlight=False)


def markdown(sections: Sequence[Section], report: Mapping[str, Any]) -> str:
    """The same for a document."""
    lines = []
    for title, heads, rows in sections:
        lines += [f"### {title}", "", f"| {' | '.join(heads)} |", "|---" * len(heads) + "|"]
        lines += [f"| {' | '.join(row)} |" for row in rows] + [""]
    return "\n".join([*lines, *(f"- {line}" for line in _remarks(report)), ""])


def _goal(goal: Mapping[str, Any]) -> tuple[str, str, str]:
    bound = f"≥ {goal['at_least']:g}" if "at_least" in goal else f"≤ {goal['at_most']:g}"
    return goal["name"], NONE if goal["value"] is None else f"{goal['value']:.4g}", bound


def _verdict(goal: Mapping[str, Any]) -> str:
    return VERDICTS.get(goal["passed"]) or ("one turn" if goal.get("turns") else "not measured")


def _remarks(report: Mapping[str, Any]) -> list[str]:
    lines = [f"Not measured: {name}: {why}" for name, why in report["run"].get("missing", {}).items()]
    lines += [f"Not tried: {one['condition']}: {one['why']}" for one in report.get("not_tried", ())]
    for one in report["failures"]:
        who = one["contender"] if "contender" in one else one["what"]
        lines.append(f"Failed: {one['scenario']}: {who}: {' '.join(one['error'].split())}")
    return lines
