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
from tools.brokerbench.variants import HERE

COLOURS = {
    "idle": "#5b8c5a", "none": "#c8553d", "static": "#e3a857", "priority": "#9a8fb0", "quiet": "#7fa3d1",
    "brokered": "#3267a8",
}  # fmt: skip
COLOURS |= {"rebuilt": "#c8553d", "ours": "#3267a8"}
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


def _fresh(found: Mapping[str, Any]) -> Figure:
    """Step of idle (median, whisker to the 95th percentile) and storage of what is left, start by start."""
    figure, (steps, storage) = plt.subplots(1, 2, figsize=(10.4, 4.2), layout="constrained")
    for place, start in enumerate(found.values()):
        if start["of_idle"] is not None:
            steps.bar(place, start["of_idle"], color=COLOURS["brokered"])
            steps.errorbar(
                place, start["of_idle"], yerr=[[0.0], [max(0.0, start["p95"] - start["of_idle"])]], color="k"
            )
        storage.bar(place, start["storage_of_left"], color=COLOURS["brokered"])
    for axes in (steps, storage):
        axes.set_xlabel("start")
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


def _capacity(found: Mapping[str, Any]) -> Figure:
    """Delay of people and use of the link, part by part."""
    width = 0.8 / len(found)
    figure, (delay, used) = plt.subplots(1, 2, figsize=(10.4, 4.2), layout="constrained")
    for place, (name, figures) in enumerate(found.items()):
        for number, part in enumerate(figures["parts"].values()):
            at = number + (place - (len(found) - 1) / 2) * width
            for axes, value in ((delay, part["delay_s"] and 1e3 * part["delay_s"]), (used, part["used"])):
                if value is not None:
                    colour, hatch = COLOURS.get(name.removesuffix(HERE), OTHER), "//" if name.endswith(HERE) else None
                    label = name if not number else None
                    axes.bar(at, value, 0.94 * width, color=colour, hatch=hatch, label=label)
    labels = [f"{part['rate_bits_per_s'] / 1e6:g} Mbit/s" for part in next(iter(found.values()))["parts"].values()]
    for axes in (delay, used):
        axes.set_xticks(range(len(labels)), labels)
        axes.spines[["top", "right"]].set_visible(False)
    delay.axhline(30.0, color="#222222", linewidth=0.8, linestyle=":")
    delay.set_yscale("log")
    delay.set_ylabel("delay of people once settled, 95th percentile, ms")
    used.axhline(0.9, color="#222222", linewidth=0.8, linestyle=":")
    used.set_ylabel("use of the link once settled")
    delay.legend(fontsize=8, frameon=False)
    return figure


def _jobs(found: Mapping[str, Any]) -> Figure:
    """What each job got, and storage."""
    figure, (got, kept) = plt.subplots(1, 2, figsize=(10.4, 4.2), layout="constrained")
    for place, (name, figures) in enumerate(found.items()):
        for number, rate in enumerate(figures["got_bits_per_s"].values()):
            bar(got, place + (number - 0.5) * 0.38, name, rate / 1e6, low=rate / 1e6, high=rate / 1e6, width=0.36)
        share = figures["kept"]["storage"]
        bar(kept, place, name, share, low=share, high=share)
    for axes in (got, kept):
        axes.set_xticks(range(len(found)), list(found), fontsize=9)
        axes.spines[["top", "right"]].set_visible(False)
    got.set_ylabel("reduced by the small and the large job, Mbit/s")
    kept.axhline(1.0, color="#222222", linewidth=0.8, linestyle=":")
    kept.set_ylabel("storage, of what it is guaranteed")
    return figure


def _changes(found: Mapping[str, Any]) -> Figure:
    """What each way of changing loses, and the longest silence that it makes."""
    figure, (lost, gap) = plt.subplots(1, 2, figsize=(10.4, 4.2), layout="constrained")
    for place, (name, figures) in enumerate(found.items()):
        share = figures["lost"] / max(1, figures["datagrams"])
        bar(lost, place, name, share, low=share, high=share)
        gap_ms = 1e3 * figures["longest_gap_s"]
        bar(gap, place, name, gap_ms, low=gap_ms, high=gap_ms)
    for axes in (lost, gap):
        axes.set_xticks(range(len(found)), list(found))
        axes.spines[["top", "right"]].set_visible(False)
    lost.set_ylabel("datagrams lost, of all")
    gap.set_ylabel("longest gap between two datagrams, ms")
    return figure


def _flows(found: Mapping[str, Any]) -> Figure:
    """What watching flows costs the daemon."""
    figure, (cores, memory) = plt.subplots(1, 2, figsize=(10.4, 4.2), layout="constrained")
    for place, (name, figures) in enumerate(found.items()):
        bar(cores, place, name, figures["cores"], low=figures["cores"], high=figures["cores"])
        resident = figures["resident_bytes"] / 1e6
        bar(memory, place, name, resident, low=resident, high=resident)
    for axes, bound, label in ((cores, 0.05, "of a core"), (memory, 128.0, "resident, MB")):
        axes.set_xticks(range(len(found)), [name.replace(", ", "\n") for name in found], fontsize=8)
        axes.axhline(bound, color="#222222", linewidth=0.8, linestyle=":")
        axes.set_ylabel(label)
        axes.spines[["top", "right"]].set_visible(False)
    return figure


def _faults(found: Mapping[str, Any]) -> Figure:
    """How long each starves at the longest."""
    figure, axes = plt.subplots(figsize=(10.4, 4.2), layout="constrained")
    for place, figures in enumerate(found.values()):
        for number, (who, colour) in enumerate(
            (("storage", "#b07d3c"), ("training", "#3267a8"), ("people", "#5b8c5a"))
        ):
            label = who if not place else None
            axes.bar(place + (number - 1) * 0.26, figures[f"{who}_gap_s"], 0.24, color=colour, label=label)
    axes.axhline(1.0, color="#222222", linewidth=0.8, linestyle=":")
    axes.set_xticks(range(len(found)), list(found), fontsize=9)
    axes.set_ylabel("longest time without a byte, s")
    axes.spines[["top", "right"]].set_visible(False)
    axes.legend(fontsize=8, frameon=False)
    return figure


def _hold(found: Mapping[str, Any]) -> Figure:
    """How long holds took."""
    figure, axes = plt.subplots(figsize=(6.0, 4.2), layout="constrained")
    latency = found["brokered"]["latency_s"]
    for place, key in enumerate(("median", "p95", "high")) if latency else ():
        value = 1e3 * latency[key]
        bar(axes, place, "brokered", value, low=value, high=value)
    axes.set_xticks(range(3), ["median", "95 %", "longest"])
    axes.set_ylabel("from announcement to kernel beyond the way there, ms")
    axes.spines[["top", "right"]].set_visible(False)
    return figure


DRAWN: Mapping[str, Callable[[Mapping[str, Any]], Figure]] = {
    "sender": _shares,
    "receiver": _shares,
    "fresh": _fresh,
    "remote": _shares,
    "capacity": _capacity,
    "inbound": _capacity,
    "jobs": _jobs,
    "changes": _changes,
    "flows": _flows,
    "faults": _faults,
    "hold": _hold,
}
