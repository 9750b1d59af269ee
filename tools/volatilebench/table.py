"""The report as tables, in a terminal and as Markdown."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeAlias

from rich import box
from rich.console import Console
from rich.table import Table

from tools.measure.reporting import failed
from tools.volatilebench.bounds import BY_NAME

Cell: TypeAlias = Mapping[str, Any]
Section: TypeAlias = tuple[str, Sequence[str], list[list[str]]]

NONE = "-"
GOAL_HEADS = ("goal", "found", "has to be", "", "worst")


def print_report(console: Console, report: Mapping[str, Any]) -> None:
    """Print every scenario that was run, the goals, and what failed."""
    for title, heads, rows in sections(report):
        table = Table(title=title, title_justify="left", title_style="bold", box=box.SIMPLE_HEAD, pad_edge=False)
        for place, head in enumerate(heads):
            table.add_column(head, no_wrap=True, justify="left" if place == 0 or head in LEFT else "right")
        for row in rows:
            table.add_row(*row)
        console.print(table)
    for failure in report["failures"]:
        console.print(failed(failure), style="red", markup=False, highlight=False)


def markdown(report: Mapping[str, Any]) -> str:
    """The same for a document."""
    lines = []
    for title, heads, rows in sections(report):
        lines += [f"### {title}", "", f"| {' | '.join(heads)} |", "|---" * len(heads) + "|"]
        lines += [f"| {' | '.join(row)} |" for row in rows] + [""]
    return "\n".join([*lines, *(f"- {failed(failure)}" for failure in report["failures"]), ""])


def sections(report: Mapping[str, Any]) -> list[Section]:
    """Title, heads and rows of each table."""
    found: list[Section] = []
    for scenario, (title, columns) in SECTIONS.items():
        rows = [[text(cell) for _, text in columns] for cell in report["cells"] if cell["scenario"] == scenario]
        if rows:
            found.append((title, [head for head, _ in columns], rows))
    return [*found, ("Goals", GOAL_HEADS, [_goal(goal) for goal in report["goals"]])]


def figure(name: str, *, per: float = 1.0, digits: int = 3, spread: bool = True) -> Callable[[Cell], str]:
    """A figure's median with the lowest and the highest, divided by `per`."""

    def text(cell: Cell) -> str:
        values = cell["figures"].get(name)
        if values is None:
            return NONE
        low, middle, high = (f"{values[key] / per:.{digits}g}" for key in ("low", "median", "high"))
        return f"{middle} ({low} … {high})" if spread and values["n"] > 1 else middle

    return text


def _of(name: str) -> Callable[[Cell], str]:
    return lambda cell: str(cell[name])


def _repetitions(cell: Cell) -> str:
    return str(max(values["n"] for values in cell["figures"].values()))


def _check(cell: Cell) -> str:
    return BY_NAME[cell["case"]].what if cell["case"] in BY_NAME else str(cell["case"])


def _bound(cell: Cell) -> str:
    return f"{BY_NAME[cell['case']].at_most:g}" if cell["case"] in BY_NAME else NONE


def _source(cell: Cell) -> str:
    return BY_NAME[cell["case"]].source if cell["case"] in BY_NAME else NONE


LEFT = ("check", "task", "algorithm", "case", "contender", "worst", "because")
Column: TypeAlias = tuple[str, Callable[[Cell], str]]
SECTIONS: Mapping[str, tuple[str, Sequence[Column]]] = {
    "checks": (
        "Checks of the papers' results, in one process",
        (
            ("check", _check),
            ("found", figure("value", digits=5)),
            ("at most", _bound),
            ("because", _source),
            ("seeds", _repetitions),
            ("CPU s", figure("cpu_s", spread=False)),
        ),
    ),
    "loss": (
        "Loss, beside DDP over Gloo after as many tokens",
        (
            ("network", _of("case")),
            ("task", _of("task")),
            ("algorithm", _of("contender")),
            ("loss / DDP's", figure("same_loss", digits=4)),
            ("s", figure("seconds")),
            ("s to DDP's loss", figure("reached_s", spread=False)),
            ("MB sent", figure("sent_bytes", per=1e6)),
            ("last loss", figure("end_loss", spread=False)),
            ("after tokens", figure("end_tokens", spread=False, digits=6)),
            ("CPU s a step", figure("cpu_s_per_step", spread=False)),
            ("seeds", _repetitions),
        ),
    ),
    "churn": (
        "Members come and go",
        (
            ("case", _of("case")),
            ("contender", _of("contender")),
            ("goodput", figure("goodput")),
            ("loss, apart", figure("loss_gap")),
            ("diverged", figure("diverged")),
            ("of commits", figure("compared", digits=6)),
            ("begun anew", figure("anew")),
            ("longest s without one", figure("longest_s")),
            ("s to come back", figure("join_s")),
            ("tokens/s a member, undisturbed", figure("rate", digits=4)),
        ),
    ),
    "joiner": (
        "Somebody joins while storage floods",
        (
            ("case", _of("case")),
            ("step / idle", figure("step")),
            ("mean", figure("mean")),
            ("longest", figure("longest")),
            ("idle s", figure("idle_s")),
            ("s to join", figure("fetch_s")),
            ("storage / guarantee", figure("storage")),
        ),
    ),
}
"""Of each scenario: title, and the columns of its table."""


def _goal(goal: Mapping[str, Any]) -> list[str]:
    side = "at least" if "at_least" in goal else "at most"
    bound = goal["at_least" if "at_least" in goal else "at_most"]
    value = NONE if goal["value"] is None else f"{goal['value']:.4g}"
    verdict = {None: "not measured", True: "reached", False: "missed"}[goal["passed"]]
    return [goal["name"], value, f"{side} {bound:g}", verdict, goal["where"] or NONE]
