"""The report's tables."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeAlias

from tools.measure.tables import NONE, Column, Section, goals
from tools.volatilebench.bounds import BY_NAME

Cell: TypeAlias = Mapping[str, Any]


def sections(report: Mapping[str, Any]) -> list[Section]:
    """Title, heads and rows of each table."""
    found: list[Section] = []
    for scenario, (title, columns) in SECTIONS.items():
        rows = [[text(cell) for _, text in columns] for cell in report["cells"] if cell["scenario"] == scenario]
        if rows:
            found.append((title, [head for head, _ in columns], rows))
    return [*found, goals(report, ("worst", lambda goal: goal["where"] or NONE))]


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
