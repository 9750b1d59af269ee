"""From outcomes to figures, and figures to a table."""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from typing import Any

from rich import box
from rich.console import Console
from rich.table import Table

from hive_qos.units import format_rate
from tools.simulate.scenario import Scenario
from tools.simulate.world import SETTLE_S, Outcome

SCHEMA = 1


def figures(scenario: Scenario, outcomes: Sequence[Outcome]) -> Mapping[str, Any]:
    """The report as plain values: one entry a control, ratios to the idle run where there is one."""
    idle = next((_medians(outcome) for outcome in outcomes if outcome.control == "idle"), {})
    return {
        "schema": SCHEMA,
        "hosts": len(scenario.host_sites()),
        "jobs": len(scenario.jobs),
        "copies": sum(copy.streams for copy in scenario.copies),
        "seconds": scenario.seconds,
        "settle_s": SETTLE_S,
        "controls": [_figures(scenario, outcome, idle) for outcome in outcomes],
    }


def _figures(scenario: Scenario, outcome: Outcome, idle: Mapping[str, float]) -> Mapping[str, Any]:
    counted_s = scenario.seconds - SETTLE_S
    medians = _medians(outcome)
    ratios = sorted(medians[name] / idle[name] for name in medians if idle.get(name))
    every = sorted(lasted_s for steps in outcome.steps.values() for at_s, lasted_s in steps if at_s > SETTLE_S)
    stuck = sum(1 for name in outcome.steps if name not in medians)
    return {
        "control": outcome.control,
        "steps": len(every),
        "jobs_without_a_step": stuck,
        "step_s_median": statistics.median(every) if every else None,
        "step_s_p95": _p95(every),
        "of_idle_median": statistics.median(ratios) if ratios else None,
        "of_idle_p95": _p95(ratios),
        "bits_per_s": {name: bits / counted_s for name, bits in outcome.delivered_bits.items()},
        "uplink_used": outcome.uplink_used,
        "uplink_delay_s_median": statistics.median(outcome.uplink_delay_s) if outcome.uplink_delay_s else None,
        "uplink_delay_s_p95": _p95(sorted(outcome.uplink_delay_s)),
        "decisions": outcome.decisions,
        "wall_s": outcome.wall_s,
    }


def _medians(outcome: Outcome) -> dict[str, float]:
    """Each job's median step after the settling time; jobs that made none are left out."""
    counted = {name: [lasted_s for at_s, lasted_s in steps if at_s > SETTLE_S] for name, steps in outcome.steps.items()}
    return {name: statistics.median(steps) for name, steps in counted.items() if steps}


def _p95(ordered: Sequence[float]) -> float | None:
    return ordered[min(len(ordered) - 1, int(0.95 * len(ordered)))] if ordered else None


def print_table(console: Console, report: Mapping[str, Any]) -> None:
    """One row a control."""
    title = (
        f"{report['hosts']} hosts, {report['jobs']} jobs, {report['copies']} copies; "
        f"{report['seconds']:g} s, of which {report['settle_s']:g} s settle"
    )
    table = Table(title=title, title_justify="left", title_style="bold", box=box.SIMPLE_HEAD, pad_edge=False)
    for name in ("control", "step (95 %)", "of idle (95 % of jobs)", "training", "storage", "uplinks used",
                 "queue there (95 %)", "decisions", "took"):  # fmt: skip
        table.add_column(name, justify="left" if name == "control" else "right", no_wrap=True)
    for entry in report["controls"]:
        table.add_row(
            entry["control"],
            f"{_seconds(entry['step_s_median'])} ({_seconds(entry['step_s_p95'])})",
            f"{_ratio(entry['of_idle_median'])} ({_ratio(entry['of_idle_p95'])})",
            format_rate(int(entry["bits_per_s"]["compute"])),
            format_rate(int(entry["bits_per_s"]["storage"])),
            f"{100 * entry['uplink_used']:.0f} %",
            f"{_ms(entry['uplink_delay_s_median'])} ({_ms(entry['uplink_delay_s_p95'])})",
            str(entry["decisions"]) if entry["decisions"] else "-",
            f"{entry['wall_s']:.1f} s",
        )
    console.print(table)
    for entry in report["controls"]:
        if entry["jobs_without_a_step"]:
            console.print(f"{entry['control']}: {entry['jobs_without_a_step']} jobs made no step", style="yellow")


def _seconds(value: float | None) -> str:
    return "-" if value is None else f"{value:.2f} s"


def _ratio(value: float | None) -> str:
    return "-" if value is None else f"{value:.2f}"


def _ms(value: float | None) -> str:
    return "-" if value is None else f"{1000 * value:.0f} ms"
