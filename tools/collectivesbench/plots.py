"""A plot for each scenario: time over payload with its spread and what the links allow, or the loss over time."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, TypeAlias

import matplotlib

matplotlib.use("Agg")
import matplotlib.pyplot as plt
from matplotlib.axes import Axes

from tools.collectivesbench.table import TITLES

Cell: TypeAlias = Mapping[str, Any]
COLOURS = {"hive": "#3267a8", "gloo cubic": "#c8553d", "gloo bbr": "#e3a857"}
OTHER = "#6a4c93"


def draw(report: Mapping[str, Any], directory: Path) -> list[Path]:
    """Draw every scenario that was run into PNG files: a row for each operation, a column for each network."""
    made = []
    for scenario, title in TITLES.items():
        cells = [cell for cell in report["cells"] if cell["scenario"] == scenario]
        if not cells:
            continue
        curves = [curve for curve in report["curves"] if curve["scenario"] == scenario]
        cases, operations = (list(dict.fromkeys(cell[name] for cell in cells)) for name in ("case", "operation"))
        size = (4.6 * len(cases), 3.2 * len(operations) + 0.8)
        figure, axes = plt.subplots(len(operations), len(cases), figsize=size, layout="constrained", squeeze=False)
        for row, operation in enumerate(operations):
            for column, case in enumerate(cases):
                panel = axes[row][column]
                shown = [c for c in curves or cells if (c["operation"], c["case"]) == (operation, case)]
                (_losses if curves else _lines)(panel, shown)
                panel.set_title(f"{operation}, {case}", fontsize=9)
        figure.legend(*axes[0][0].get_legend_handles_labels(), frameon=False, loc="outside lower center", ncols=5)
        figure.suptitle(title)
        made.append(directory / f"{scenario}.png")
        figure.savefig(made[-1], dpi=110)
        plt.close(figure)
    return made


def _lines(axes: Axes, cells: list[Cell]) -> None:
    for contender in dict.fromkeys(cell["contender"] for cell in cells):
        mine = sorted((cell for cell in cells if cell["contender"] == contender), key=lambda cell: int(cell["bytes"]))
        sizes = [cell["bytes"] / 2**20 for cell in mine]
        low, middle, high = ([c["figures"]["seconds"][key] for c in mine] for key in ("low", "median", "high"))
        below, above = ([abs(m - e) for m, e in zip(middle, ends, strict=True)] for ends in (low, high))
        style = {"color": COLOURS.get(contender, OTHER), "marker": "o", "markersize": 4, "capsize": 2}
        axes.errorbar(sizes, middle, yerr=[below, above], label=contender, **style)  # type: ignore[arg-type]
        if contender == "hive" and any(cell["figures"]["links_s"]["median"] for cell in mine):
            bound_s = [cell["figures"]["links_s"]["median"] for cell in mine]
            axes.plot(sizes, bound_s, color="#888888", linestyle=":", marker=".", label="links' bound")
    axes.set_xscale("log", base=2)
    axes.set_yscale("log")
    axes.set_xlabel("MiB")
    axes.set_ylabel("seconds")
    axes.spines[["top", "right"]].set_visible(False)


def _losses(axes: Axes, curves: list[Cell]) -> None:
    """Every training's loss; a dotted line where the link fell."""
    for curve in curves:
        seconds, losses = zip(*curve["points"], strict=True)
        label = curve["contender"] if curve["repetition"] == 0 else None
        axes.plot(seconds, losses, color=COLOURS.get(curve["contender"], OTHER), linewidth=1, label=label)
        if curve["fell_s"] is not None:
            axes.axvline(curve["fell_s"], color="#888888", linestyle=":", linewidth=1)
    axes.set_xlabel("seconds")
    axes.set_ylabel("loss")
    axes.spines[["top", "right"]].set_visible(False)
