"""The report as tables in a terminal, 80 columns wide. The table of phases is also shown while it fills."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from rich import box
from rich.console import Console
from rich.table import Table

from hive_qos.units import format_rate
from tools.checkout import Checkout

OF_LEFT = (
    "of left: storage's share of what training left of 97 % of the link, all that a shaper gives out; "
    "where nothing shapes, storage gets of the other 3 % too, and so more than 100 %."
)


def print_report(console: Console, report: Mapping[str, Any], *, strict: bool = False) -> None:
    """Print phases, checks and goals."""
    console.print(phase_table(report["phases"], rate_bits_per_s=report["settings"]["rate_bits_per_s"]))
    console.print(OF_LEFT, style="dim", highlight=False)
    console.print()
    console.print(_verdicts("What has to hold", report["checks"]))
    console.print(
        _verdicts("What hive-qos has to reach" + ("" if strict else " (judged with --strict)"), report["goals"])
    )
    if loss := report["loss"]:
        console.print(f"Loss {loss['first']:.3f} to {loss['last']:.3f}.", highlight=False)
    if engine := report["training"].get("engine"):
        checkout = Checkout.from_record(report["versions"])
        console.print(f"Training went over the {engine} engine; sources: {checkout}.", highlight=False)
    if not report["complete"]:
        console.print(f"The run did not come to its end: {report['error']}", style="red", markup=False, highlight=False)


def phase_table(phases: Mapping[str, Any], *, rate_bits_per_s: int, current: tuple[str, str] | None = None) -> Table:
    """Every phase at both rates; what has no steps yet is empty.

    Args:
        current: condition and half that run now.
    """
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False)
    table.add_column("phase", no_wrap=True)
    for column in ("step", "95th", "of idle", "storage", "of left", "steps", "CPU"):
        table.add_column(column, justify="right", no_wrap=True)
    for half in ("full", "half"):
        rate = format_rate(rate_bits_per_s // (1 if half == "full" else 2))
        table.add_row(f"{rate}:", style="dim")
        for index, (condition, halves) in enumerate(phases.items()):
            last = index == len(phases) - 1
            table.add_row(
                f"{'▸' if (condition, half) == current else ' '} {condition}",
                *_cells(condition, halves[half]),
                style="bold" if condition == "brokered" else None,
                end_section=last and half == "full",
            )
    return table


def _cells(condition: str, figures: Mapping[str, Any]) -> list[str]:
    if not figures["steps"]:
        return [""] * 7
    ratio = figures.get("step_median_of_idle")
    flows = condition in ("flooded", "static", "brokered")
    return [
        f"{figures['step_s']['median']:.2f} s",
        f"{figures['step_s']['p95']:.2f} s",
        f"{ratio:.2f}" if ratio is not None else "-",
        format_rate(figures["storage_bits_per_s"]) if flows else "-",
        f"{100 * figures['storage_share_of_leftover']:.0f} %" if flows else "-",
        str(figures["steps"]),
        f"{100 * figures['cpu_share']:.0f} %",
    ]


def _verdicts(title: str, entries: list[dict[str, Any]]) -> Table:
    table = Table(title=title, title_justify="left", title_style="bold", box=box.SIMPLE_HEAD, pad_edge=False)
    table.add_column("")
    table.add_column("found", justify="right")
    table.add_column("has to be", justify="right")
    table.add_column("")
    for entry in entries:
        limit = f"≥ {entry['at_least']:.2f}" if "at_least" in entry else f"≤ {entry['at_most']:.2f}"
        verdict = "[green]yes[/green]" if entry["passed"] else "[red]NO[/red]"
        table.add_row(entry["name"], f"{entry['value']:.2f}", limit, verdict)
    return table
