"""The report as pictures, one a scenario."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import matplotlib

matplotlib.use("Agg")
import matplotlib.pyplot as plt
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from tools.brokerbench.table import TITLES

COLOURS = {
    "idle": "#5b8c5a", "none": "#c8553d", "static": "#e3a857", "priority": "#9a8fb0", "quiet": "#7fa3d1",
    "brokered": "#3267a8",
}  # fmt: skip
OTHER = "#888888"


def draw(report: Mapping[str, Any], directory: Path) -> list[Path]:
    """Draw every scenario that was run into PNG files."""
    made = []
    for scenario, found in report["scenarios"].items():
        figure = DRAWN[scenario](found)
        figure.suptitle(TITLES[scenario])
        path = directory / f"{scenario}.png"
        figure.savefig(path, dpi=110)
        plt.close(figure)
        made.append(path)
    return made


def _shares(found: Mapping[str, Any]) -> Figure:
    """Step of idle (median, whiskers to the 95th percentile and to the best round), and storage of what is left."""
    figure, (steps, storage) = plt.subplots(1, 2, figsize=(10.4, 4.2), layout="constrained")
    for place, (name, figures) in enumerate(found.items()):
        ratio = figures.get("ratio")
        if ratio is not None:
            bar(steps, place, name, ratio["median"], low=ratio["low"], high=ratio["p95"])
        if name != "idle":
            share = figures["storage_of_left"]
            bar(storage, place, name, share["all"], low=share["low"], high=share["high"])
    for axes in (steps, storage):
        axes.set_xticks(range(len(found)), list(found), fontsize=9)
        axes.axhline(1.0, color="#222222", linewidth=0.8, linestyle=":")
        axes.spines[["top", "right"]].set_visible(False)
    steps.set_ylabel("step, of idle (whisker: 95th percentile)")
    storage.set_ylabel("storage, of what training leaves")
    return figure


def bar(axes: Axes, place: float, name: str, middle: float, *, low: float, high: float, width: float = 0.75) -> None:
    """One bar with a whisker and its figure."""
    axes.bar(place, middle, width, color=COLOURS.get(name.split(",")[0], OTHER))
    below, above = max(0.0, middle - low), max(0.0, high - middle)
    axes.errorbar(place, middle, yerr=[[below], [above]], color="#222222", linewidth=1, capsize=2)
    axes.annotate(
        f"{middle:.3g}",
        (place, middle),
        ha="center",
        va="bottom",
        fontsize=8,
        xytext=(9, 1),
        textcoords="offset points",
    )


DRAWN: Mapping[str, Callable[[Mapping[str, Any]], Figure]] = {
    "sender": _shares,
    "receiver": _shares,
    "remote": _shares,
}
