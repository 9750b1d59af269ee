"""Plots: loss over tokens, seconds and bytes; commits under churn."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, TypeAlias

import matplotlib

matplotlib.use("Agg")
import matplotlib.pyplot as plt
from matplotlib.axes import Axes

Values: TypeAlias = Mapping[str, Any]
AXES = (("tokens", 1e3, "thousand tokens"), ("seconds", 1.0, "seconds"), ("sent_bytes", 1e6, "MB sent"))
TOKENS, SECONDS, SENT_BYTES, LOSS = range(4)


def draw(report: Mapping[str, Any], directory: Path) -> list[Path]:
    """Draw what was measured into PNG files."""
    made = []
    if report["curves"]:
        made.append(directory / "loss.png")
        _losses(report["curves"], made[-1])
    if report["timelines"]:
        made.append(directory / "churn.png")
        _timelines(report["timelines"], made[-1])
    return made


def _losses(curves: Sequence[Values], path: Path) -> None:
    """A row for each network and task; the first seed."""
    rows = list(dict.fromkeys((curve["case"], curve["task"]) for curve in curves))
    names = list(dict.fromkeys(curve["contender"] for curve in curves))
    size = (13.0, 3.2 * len(rows) + 0.8)
    figure, axes = plt.subplots(len(rows), len(AXES), figsize=size, layout="constrained", squeeze=False)
    for panels, row in zip(axes, rows, strict=True):
        first: dict[str, Values] = {}
        for curve in curves:
            if (curve["case"], curve["task"]) == row:
                first.setdefault(curve["contender"], curve)
        for column, (panel, (_, per, label)) in enumerate(zip(panels, AXES, strict=True)):
            for name, curve in first.items():
                xs = [point[column] / per for point in curve["points"]]
                ys = [point[LOSS] for point in curve["points"]]
                panel.plot(xs, ys, color=f"C{names.index(name)}", marker=".", linewidth=1, label=name)
            if column == SENT_BYTES:
                panel.set_xscale("log")
            _finish(panel, label, "loss")
            panel.set_title(", ".join(row), fontsize=9)
    figure.legend(*axes[0][0].get_legend_handles_labels(), frameon=False, loc="outside lower center", ncols=5)
    figure.suptitle("Loss on text and pictures that nobody trains on")
    figure.savefig(path, dpi=110)
    plt.close(figure)


def _timelines(timelines: Sequence[Values], path: Path) -> None:
    """Members of each commit; grey where somebody was lost."""
    figure, axes = plt.subplots(len(timelines), 1, figsize=(10.0, 2.6 * len(timelines)), layout="constrained")
    for panel, each in zip([axes] if len(timelines) == 1 else axes, timelines, strict=True):
        for outage in each["outages"]:
            panel.axvspan(outage["begin_s"], outage["end_s"], color="#dddddd")
            panel.text(outage["begin_s"], 0.2, f" {outage['how']}", fontsize=7)
        seconds, members = [point[0] for point in each["points"]], [point[1] for point in each["points"]]
        panel.plot(seconds, members, linestyle="", marker="|", color="C0")
        panel.set_xlim(0, each["seconds"])
        panel.set_ylim(bottom=0)
        panel.set_title(each["contender"], fontsize=9)
        _finish(panel, "seconds", "members of a commit")
    figure.savefig(path, dpi=110)
    plt.close(figure)


def _finish(panel: Axes, x: str, y: str) -> None:
    panel.set_xlabel(x)
    panel.set_ylabel(y)
    panel.spines[["top", "right"]].set_visible(False)
