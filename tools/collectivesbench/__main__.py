"""`python -m tools.collectivesbench`: measure collectives beside Gloo's, or compute a report again."""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from tools.collectivesbench.budget import Budget
from tools.collectivesbench.settings import QUICK, Settings
from tools.measure.records import head_of, recorded
from tools.measure.reporting import Output, ReportOnly, chosen, console_of, measure_and_report, progress_of

if TYPE_CHECKING:
    from tools.collectivesbench.sweep import Run

SCENARIOS = {"lan": 20, "uneven": 5, "sites": 6, "urgent": 4, "falling": 6, "training": 10, "host": 4}
"""In the order of a run, with the minutes of each in one of the ordinary length."""

app = typer.Typer(add_completion=False, help=__doc__, pretty_exceptions_enable=False)
console = console_of(log_columns=190)


@app.command()
def bench(
    scenarios: Annotated[list[str] | None, typer.Argument(help=f"Any of {', '.join(SCENARIOS)}; all without.")] = None,
    output: Output = Path("out/bench-collectives"),
    quick: Annotated[bool, typer.Option("--quick", help="Within 4 minutes; says less.")] = False,
    minutes: Annotated[float | None, typer.Option(min=1.0, help="Of the whole run; 55 without, 4 if quick.")] = None,
    repetitions: Annotated[int | None, typer.Option(min=1, help="Turns of the contenders.")] = None,
    algorithms: Annotated[str, typer.Option(help="Have hive compete with each of these forced, too: direct,tree")] = "",
    compressions: Annotated[str, typer.Option(help="The same with each of these: bfloat16,int8,int4")] = "",
    device: Annotated[
        str, typer.Option(help="Where the tensors of lan, uneven, sites and host lie: cpu, cuda.")
    ] = "cpu",
    report_only: ReportOnly = False,
) -> None:
    """Measure, print the tables, and leave records.jsonl, report.json and report.md."""
    names = chosen(console, scenarios, SCENARIOS)
    settings = replace(QUICK if quick else Settings(), device=device).repeated(repetitions).within(minutes)
    variants = {
        "algorithms": [name for name in algorithms.split(",") if name],
        "compressions": [name for name in compressions.split(",") if name],
    }
    measure = None if report_only else partial(_measure, names, output, settings, variants)
    measure_and_report(console, output, "tools.collectivesbench", measure=measure, in_lab=names != ["host"])


def _measure(names: Sequence[str], output: Path, settings: Settings, variants: Mapping[str, Sequence[str]]) -> None:
    from tools.bench.contenders import versions  # the lab among what they import, which wants the privilege
    from tools.collectivesbench.sweep import Run

    head = head_of(settings=settings.as_record(), scenarios=names, versions=versions(), variants=variants)
    progress = progress_of(console, seconds=settings.seconds)
    with recorded(output, head) as (writer, folder):
        run = Run(settings, folder / "logs", writer, progress, variants=variants)
        weight = sum(SCENARIOS[name] for name in names)
        plan = ", ".join(f"{name} {SCENARIOS[name] / weight * settings.seconds / 60:.1f}" for name in names)
        progress(f"minutes at most: {plan}")
        for name, part in Budget(settings.seconds).parts(names, SCENARIOS.__getitem__):
            progress(f"{name}: {part.left_s() / 60:.1f} minutes")
            _functions()[name](run, part)


def _functions() -> Mapping[str, Callable[[Run, Budget], None]]:
    from tools.collectivesbench import training, urgent
    from tools.collectivesbench.networks import SWEPT
    from tools.collectivesbench.sweep import sweep

    sweeps = {name: partial(sweep, scenario=name) for name in SWEPT}
    others = {urgent.URGENT: urgent.beside_a_large_one, training.FALLING: training.over_a_falling_link}
    return {**sweeps, **others, training.TRAINING: training.to_a_loss}


if __name__ == "__main__":
    sys.exit(app())
