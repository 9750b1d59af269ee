"""The report as tables in a terminal."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from rich import box
from rich.console import Console
from rich.table import Table

from hive_qos.units import format_rate

OF_LEFT = (
    "of left: storage's share of what training left of 97 % of the link, all that a shaper gives out; "
    "where nothing shapes, storage gets of the other 3 % too, and so more than 100 %."
)


def print_report(console: Console, report: Mapping[str, Any]) -> None:
    """Print phases, checks and goals."""
    settings = report["settings"]
    for half in ("full", "half"):
        rate = settings["rate_bits_per_s"] // (1 if half == "full" else 2)
        console.print(_phases(report, half, f"{'Full' if half == 'full' else 'Half'} rate: {format_rate(rate)}"))
    console.print(OF_LEFT, style="dim", highlight=False)
    console.print()
    console.print(_verdicts("What it must show", report["goals"]))
    console.print(_verdicts("And that it is not an artefact", report["checks"]))
    loss = report["loss"]
    if loss:
        same = "identical" if report["weights_identical"] else "DIFFERENT"
        if len(report["weights_sha256"]) < 2:
            same = "not compared"
        console.print(f"Loss {loss['first']:.3f} to {loss['last']:.3f}; weights on both hosts {same}.", highlight=False)
    if engine := report["training"].get("engine"):
        console.print(f"Training went over the {engine} engine.", highlight=False)
    if not report["complete"]:
        console.print(f"The run did not come to its end: {report['error']}", style="red", markup=False, highlight=False)


def _phases(report: Mapping[str, Any], half: str, title: str) -> Table:
    table = Table(title=title, title_justify="left", title_style="bold", box=box.SIMPLE_HEAD, pad_edge=False)
    table.add_column("phase", no_wrap=True)
    for column in ("step", "95th", "of idle", "storage", "of left", "steps", "CPU"):
        table.add_column(column, justify="right", no_wrap=True)
    for condition, halves in report["phases"].items():
        figures = halves[half]
        if not figures["steps"]:
            table.add_row(condition, *["-"] * 7)
            continue
        ratio = figures.get("step_median_of_idle")
        flows = condition != "idle"
        table.add_row(
            condition,
            f"{figures['step_s']['median']:.3f} s",
            f"{figures['step_s']['p95']:.3f} s",
            f"{ratio:.2f}" if ratio is not None else "-",
            format_rate(figures["storage_bits_per_s"]) if flows else "-",
            f"{100 * figures['storage_share_of_leftover']:.0f} %" if flows else "-",
            str(figures["steps"]),
            f"{100 * figures['cpu_share']:.0f} %",
            style="bold" if condition == "brokered" else None,
        )
    return table


def _verdicts(title: str, entries: list[dict[str, Any]]) -> Table:
    table = Table(title=title, title_justify="left", title_style="bold", box=box.SIMPLE_HEAD, pad_edge=False)
    table.add_column("")
    table.add_column("found", justify="right")
    table.add_column("has to be", justify="right")
    table.add_column("")
    for entry in entries:
        limit = f"≥ {entry['at_least']:.2f}" if "at_least" in entry else f"≤ {entry['at_most']:.2f}"
        verdict = "[green]yes[/green]" if entry["passed"] else "[red]NO[/red]"
        found = f"{entry['value']:.3f}" + (f" ± {entry['error']:.3f}" if "error" in entry else "")
        table.add_row(entry["name"], found, limit, verdict)
    return table
