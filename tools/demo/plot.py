"""The picture: step times over time, throughput by class under the true rate, and the summary."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import matplotlib

matplotlib.use("Agg")
import matplotlib.pyplot as plt
from matplotlib.axes import Axes
from matplotlib.patches import Patch

from tools.demo.figures import Record, counters_of
from tools.demo.records import Records
from tools.demo.screen import NAMES
from tools.measure.series import Series

COLOURS = {"idle": "#5b8c5a", "flooded": "#c8553d", "static": "#e3a857", "brokered": "#3267a8", "other-link": "#9a8fb0"}
TRAINING, STORAGE, RATE, ESTIMATE = "#3267a8", "#b07d3c", "#222222", "#a3338f"
HALF_SHADE = "#d9d9d9"
SILENT_S = 2.0
"""Of the broker's estimate, which is asked for every half second: then there was no broker."""
TEXT_POINTS, TITLE_POINTS, HEADING_POINTS = 12, 14, 15
"""In a picture 15 inches wide, which the README shows at half its size."""
BIN_S = 0.6
"""Throughput is drawn over windows of this length: a step or two at full rate."""


def draw(records: Records, report: Mapping[str, Any], target: Path) -> None:
    """Draw a run into a PNG file."""
    plt.rc("font", size=TEXT_POINTS)
    plt.rc("axes", titlesize=TITLE_POINTS)
    plt.rc("figure", titlesize=HEADING_POINTS)
    steps = [step for step in records.steps if step["rank"] == 0]
    figure = plt.figure(figsize=(15, 11), layout="constrained")
    grid = figure.add_gridspec(3, 2, height_ratios=[1.15, 1.15, 1.0])
    times, rates = figure.add_subplot(grid[0, :]), figure.add_subplot(grid[1, :])
    rates.sharex(times)
    start_s = float(steps[0]["start_s"]) if steps else 0.0
    spans = _spans(steps)
    for axes in (times, rates):
        _shade(axes, spans, start_s)
    _draw_steps(times, steps, start_s)
    _draw_rates(rates, records, start_s, end_s=float(steps[-1]["end_s"]) if steps else 1.0)
    _draw_step_bars(figure.add_subplot(grid[2, 0]), report)
    _draw_share_bars(figure.add_subplot(grid[2, 1]), report)
    rate = report["settings"]["rate_bits_per_s"] / 1e6
    engine = report["training"].get("engine")
    figure.suptitle(
        f"Two hosts train over a {rate:g} Mbit/s link{f' ({engine} engine)' if engine else ''} while storage floods it "
        "(grey: the link has half its rate, and nobody was told)",
    )
    figure.savefig(target, dpi=110)
    plt.close(figure)


def _spans(steps: list[dict[str, Any]]) -> list[tuple[str, str, float, float]]:
    """Condition, half, begin and end of each block."""
    blocks: dict[int, list[dict[str, Any]]] = {}
    for step in steps:
        blocks.setdefault(step["block"], []).append(step)
    return [
        (rows[0]["condition"], rows[0]["half"], float(rows[0]["start_s"]), float(rows[-1]["end_s"]))
        for rows in blocks.values()
    ]


def _shade(axes: Axes, spans: list[tuple[str, str, float, float]], start_s: float) -> None:
    for condition, half, begin_s, end_s in spans:
        if half == "half":
            axes.axvspan(begin_s - start_s, end_s - start_s, color=HALF_SHADE, alpha=0.55, lw=0, zorder=0)
        axes.axvspan(begin_s - start_s, end_s - start_s, ymin=0.97, ymax=1.0, color=COLOURS[condition], lw=0, zorder=1)
    axes.spines[["top", "right"]].set_visible(False)
    axes.margins(x=0.005)


def _draw_steps(axes: Axes, steps: list[dict[str, Any]], start_s: float) -> None:
    for condition in dict.fromkeys(step["condition"] for step in steps):
        rows = [step for step in steps if step["condition"] == condition]
        places = [float(step["end_s"]) - start_s for step in rows]
        axes.scatter(
            places,
            [step["step_s"] for step in rows],
            s=11,
            color=COLOURS[condition],
            label=f"{condition}: {NAMES[condition]}",
        )
    axes.set_ylabel("step time [s]")
    axes.set_ylim(bottom=0)
    axes.legend(
        loc="lower right",
        bbox_to_anchor=(1, 1),
        ncols=5,
        markerscale=2,
        handletextpad=0.2,
        columnspacing=1.2,
        frameon=False,
        borderaxespad=0.1,
    )
    axes.set_title("Every training step", loc="left")


def _draw_rates(axes: Axes, records: Records, start_s: float, *, end_s: float) -> None:
    counters = counters_of(records.counters, records.last("topology")["counters"])
    for series, colour, label in (
        (counters.storage_bytes, STORAGE, "storage"),
        (counters.compute_bytes, TRAINING, "training"),
    ):
        places, values = _binned(series, start_s, end_s)
        axes.plot(places, values, color=colour, lw=1.0, label=label)
    full = records.last("settings")["settings"]["rate_bits_per_s"]
    changes = [(start_s, full), *((float(e["t_s"]), e["rate_bits_per_s"]) for e in records.all("link-rate"))]
    changes.append((end_s, changes[-1][1]))
    axes.step(
        [t_s - start_s for t_s, _ in changes],
        [rate / 1e6 for _, rate in changes],
        where="post",
        color=RATE,
        lw=1.4,
        label="the link's real rate",
    )
    _draw_estimate(axes, records.status, start_s)
    axes.set_ylabel("wire rate [Mbit/s]")
    axes.set_xlabel("time [s]")
    axes.set_ylim(0, full / 1e6 * 1.25)
    axes.legend(loc="lower right", bbox_to_anchor=(1, 1), ncols=4, frameon=False, borderaxespad=0.1)
    axes.set_title("What crossed host a's uplink, counted in the router", loc="left")


def _binned(series: Series, start_s: float, end_s: float) -> tuple[list[float], list[float]]:
    places, values = [], []
    at_s = start_s
    while at_s + BIN_S <= end_s:
        places.append(at_s + BIN_S / 2 - start_s)
        values.append(8 * series.delta((at_s, at_s + BIN_S)) / BIN_S / 1e6)
        at_s += BIN_S
    return places, values


def _draw_estimate(axes: Axes, status: list[dict[str, Any]], start_s: float) -> None:
    """The capacity that host a's broker believes in; a gap where there was no broker."""
    places: list[float] = []
    values: list[float] = []
    for entry in status:
        egress = [i for i in entry.get("interfaces") or [] if i.get("direction", "egress") == "egress"]
        if entry["host"] != "a" or not egress:
            continue
        at_s = float(entry["t_s"]) - start_s
        if places and at_s - places[-1] > SILENT_S:
            places.append(at_s)
            values.append(float("nan"))
        places.append(at_s)
        values.append(egress[0]["capacity_bits_per_s"] / 1e6)
    if places:
        axes.plot(places, values, color=ESTIMATE, lw=1.4, ls="--", label="the broker's estimate")


def _draw_step_bars(axes: Axes, report: Mapping[str, Any]) -> None:
    def median(figures: Record) -> float:
        return float(figures["step_s"]["median"])

    _bars(axes, report, median, unit="s", digits=2, inside=True)
    for place, (_, figures) in enumerate(_cells(report)):
        if figures["steps"]:
            axes.plot([place, place], [median(figures), figures["step_s"]["p95"]], color="#444444", lw=1.2)
    axes.set_ylabel("step time [s]")
    axes.set_title("Median step (line: up to the 95th percentile)", loc="left")


def _draw_share_bars(axes: Axes, report: Mapping[str, Any]) -> None:
    _bars(axes, report, lambda figures: 100 * float(figures["storage_share_of_leftover"]), unit="%", digits=0)
    axes.set_ylim(0, 115)
    axes.set_ylabel("[%]")
    axes.set_title("Storage's share of what training leaves", loc="left")


def _cells(report: Mapping[str, Any]) -> list[tuple[tuple[str, str], Mapping[str, Any]]]:
    return [
        ((condition, half), halves[half]) for half in ("full", "half") for condition, halves in report["phases"].items()
    ]


def _bars(axes: Axes, report: Mapping[str, Any], value: Any, *, unit: str, digits: int, inside: bool = False) -> None:
    cells = _cells(report)
    values = [value(figures) if figures["steps"] else 0.0 for _, figures in cells]
    colours = [COLOURS[condition] for (condition, _), _ in cells]
    bars = axes.bar(range(len(cells)), values, color=colours, width=0.75)
    labels = [f"{number:.{digits}f} {unit}" for number in values]
    if inside:
        axes.bar_label(bars, labels=labels, label_type="center", color="white", fontweight="bold")
    else:
        axes.bar_label(bars, labels=labels, padding=2)
    axes.set_xticks(range(len(cells)), [condition for (condition, _), _ in cells])
    middle = len(cells) / 2 - 0.5
    axes.axvspan(middle, len(cells) - 0.5, color=HALF_SHADE, alpha=0.55, lw=0, zorder=0)
    axes.legend(
        handles=[Patch(color=HALF_SHADE, label="half rate")],
        loc="lower right",
        bbox_to_anchor=(1, 1),
        frameon=False,
        borderaxespad=0.1,
    )
    axes.spines[["top", "right"]].set_visible(False)
    axes.margins(x=0.01, y=0.15)
