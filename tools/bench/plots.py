"""The report as pictures, one a scenario: bars with the spread over the repetitions."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, TypeAlias

import matplotlib

matplotlib.use("Agg")
import matplotlib.pyplot as plt
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import Patch

from tools.bench.table import TITLES

Cell: TypeAlias = Mapping[str, Any]
Panel: TypeAlias = tuple[str, Sequence[str], float, bool]
"""Label, names of figures (stacked side by side when there are several), factor to the unit, logarithmic."""

COLOURS = {
    "native": "#3267a8", "native 8900": "#7fa3d1", "native bbr": "#7fa3d1", "hive native": "#3267a8",
    "aioquic": "#e3a857", "aioquic 8900": "#f0cf9d", "hive aioquic": "#e3a857",
    "native cubic": "#6a4c93",
    "gloo": "#c8553d",
    "iperf3": "#5b8c5a", "iperf3 cubic": "#5b8c5a", "iperf3 bbr": "#9dbf9c", "tcp": "#5b8c5a",
}  # fmt: skip
OTHER = "#888888"

PANELS: Mapping[str, Sequence[Panel]] = {
    "loopback": [
        ("goodput, Gbit/s", ["goodput_bits_per_s"], 1e-9, False),
        ("CPU seconds a GB, sender", ["sender_cpu_s_per_gb"], 1, True),
        ("CPU seconds a GB, receiver", ["receiver_cpu_s_per_gb"], 1, True),
    ],
    "lan": [
        ("goodput, Mbit/s", ["goodput_bits_per_s"], 1e-6, False),
        ("CPU seconds a GB, sender", ["sender_cpu_s_per_gb"], 1, True),
        ("CPU seconds a GB, receiver", ["receiver_cpu_s_per_gb"], 1, True),
    ],
    "loss": [("goodput, Mbit/s", ["goodput_bits_per_s"], 1e-6, False)],
    "latency": [
        ("round trip of 1 kB, median, ms", ["median_s_1000"], 1e3, True),
        ("round trip of 1 kB, 99th percentile, ms", ["p99_s_1000"], 1e3, True),
    ],
    "memory": [
        ("sender, MiB", ["sender_memory_bytes"], 2**-20, False),
        ("receiver, MiB", ["receiver_memory_bytes"], 2**-20, False),
    ],
    "congestion": [
        ("goodput, Mbit/s", ["goodput_bits_per_s"], 1e-6, False),
        ("round trip of an echo, 95th percentile, ms", ["echo_p95_s"], 1e3, False),
    ],
}


def draw(report: Mapping[str, Any], directory: Path) -> list[Path]:
    """Draw every scenario that was run into PNG files."""
    made = []
    for scenario, panels in PANELS.items():
        cells = [c for c in report["cells"] if c["scenario"] == scenario and "connections" not in c["figures"]]
        if not cells:
            continue
        figure, axes = plt.subplots(
            1, len(panels), figsize=(5.2 * len(panels), 4.2), layout="constrained", squeeze=False
        )
        for place, (label, names, factor, logarithmic) in enumerate(panels):
            _bars(axes[0][place], cells, names[0], factor)
            axes[0][place].set_ylabel(label)
            if logarithmic:
                axes[0][place].set_yscale("log")
        _legend(figure, cells)
        figure.suptitle(TITLES[scenario])
        path = directory / f"{scenario}.png"
        figure.savefig(path, dpi=110)
        plt.close(figure)
        made.append(path)
    return made


def _bars(axes: Axes, cells: Sequence[Cell], name: str, factor: float) -> None:
    """One group of bars a case, one bar a contender; whiskers from the smallest to the largest repetition."""
    cases = list(dict.fromkeys(cell["case"] for cell in cells if name in cell["figures"]))
    contenders = list(dict.fromkeys(cell["contender"] for cell in cells))
    width = 0.8 / len(contenders)
    for cell in cells:
        values = cell["figures"].get(name)
        if values is None:
            continue
        x = cases.index(cell["case"]) + (contenders.index(cell["contender"]) - (len(contenders) - 1) / 2) * width
        middle, low, high = (factor * values[key] for key in ("median", "low", "high"))
        axes.bar(x, middle, width * 0.92, color=COLOURS.get(cell["contender"], OTHER))
        axes.errorbar(x, middle, yerr=[[middle - low], [high - middle]], color="#222222", linewidth=1, capsize=2)
        axes.annotate(_short(middle), (x, middle), ha="center", va="bottom", fontsize=7, xytext=(0, 1), **_POINTS)
    axes.set_xticks(range(len(cases)), cases, fontsize=8, rotation=12 if len(cases) > 3 else 0)
    axes.spines[["top", "right"]].set_visible(False)


_POINTS: dict[str, Any] = {"textcoords": "offset points"}


def _legend(figure: Figure, cells: Sequence[Cell]) -> None:
    contenders = list(dict.fromkeys(cell["contender"] for cell in cells))
    handles = [Patch(color=COLOURS.get(name, OTHER)) for name in contenders]
    figure.legend(handles, contenders, fontsize=8, frameon=False, loc="outside lower center", ncols=len(contenders))


def _short(value: float) -> str:
    return f"{value:.0f}" if value >= 1000 else f"{value:.3g}"
