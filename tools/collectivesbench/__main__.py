"""`python -m tools.collectivesbench`: measure collectives beside Gloo's, or compute a report again."""

from __future__ import annotations

import os
import shutil
import sys
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from tools.checkout import read_checkout
from tools.collectivesbench.budget import Budget
from tools.collectivesbench.settings import QUICK, Settings
from tools.measure.reporting import EXIT_INTERRUPTED, console_of, fail, leave_report, say

if TYPE_CHECKING:
    from tools.collectivesbench.sweep import Run

SCENARIOS = {"lan": 18, "uneven": 5, "sites": 6, "urgent": 4, "falling": 6, "training": 11, "host": 5}
"""In the order of a run, with the minutes of each in one of the ordinary length."""

app = typer.Typer(add_completion=False, help=__doc__, pretty_exceptions_enable=False)
console = console_of(log_columns=190)


@app.command()
def bench(
    scenarios: Annotated[list[str] | None, typer.Argument(help=f"Any of {', '.join(SCENARIOS)}; all without.")] = None,
    output: Annotated[Path, typer.Option(help="Where records, report and plots go.")] = Path("out/bench-collectives"),
    quick: Annotated[bool, typer.Option("--quick", help="Within 4 minutes; says less.")] = False,
    minutes: Annotated[float | None, typer.Option(min=1.0, help="Of the whole run; 55 without, 4 if quick.")] = None,
    repetitions: Annotated[int | None, typer.Option(min=1, help="Turns of the contenders.")] = None,
    algorithms: Annotated[str, typer.Option(help="Have hive compete with each of these forced, too: direct,tree")] = "",
    compressions: Annotated[str, typer.Option(help="The same with each of these: bfloat16,int8,int4")] = "",
    report_only: Annotated[
        bool, typer.Option("--report-only", help="Compute from the records that are there.")
    ] = False,
) -> None:
    """Measure, print the tables, and leave records.jsonl, report.json, report.md and a plot for each scenario."""
    names = scenarios or list(SCENARIOS)
    unknown = [name for name in names if name not in SCENARIOS]
    if unknown:
        fail(console, f"no scenario {', '.join(unknown)}; there are {', '.join(SCENARIOS)}")
    if not report_only:
        if names != ["host"]:
            from tools.lab import privilege

            privilege.ensure([sys.executable, "-m", "tools.collectivesbench", *sys.argv[1:]])
        settings = (QUICK if quick else Settings()).repeated(repetitions).within(minutes)
        variants = {
            "algorithms": [name for name in algorithms.split(",") if name],
            "compressions": [name for name in compressions.split(",") if name],
        }
        try:
            _measure([name for name in SCENARIOS if name in names], output, settings, variants)
        except KeyboardInterrupt:
            console.print("interrupted; everything is taken down, and what was measured is reported", style="yellow")
            _report(output)
            raise typer.Exit(EXIT_INTERRUPTED) from None
    _report(output)


def _measure(names: Sequence[str], output: Path, settings: Settings, variants: Mapping[str, Sequence[str]]) -> None:
    from tools.bench.contenders import versions  # the lab among what they import, which wants the privilege
    from tools.bench.records import HEAD, Writer
    from tools.collectivesbench.sweep import Run

    head: Mapping[str, Any] = {
        "kind": HEAD,
        "settings": settings.as_record(),
        "scenarios": names,
        "variants": variants,
        "versions": {**versions(), **read_checkout().as_record()},
        "machine": {"cores": os.cpu_count(), "kernel": os.uname().release},
    }
    writer, logs = Writer(output), Path(tempfile.mkdtemp(prefix="hive-bench-"))
    begin_s = time.monotonic()

    def progress(text: str) -> None:
        say(console, f"{time.monotonic() - begin_s:5.0f} of {settings.seconds:.0f} s  {text}")

    try:
        writer.write(head)
        run = Run(settings, logs, writer, progress, variants=variants)
        weight = sum(SCENARIOS[name] for name in names)
        plan = ", ".join(f"{name} {SCENARIOS[name] / weight * settings.seconds / 60:.1f}" for name in names)
        progress(f"minutes at most: {plan}")
        for name, part in Budget(settings.seconds).parts(names, SCENARIOS.__getitem__):
            progress(f"{name}: {part.left_s() / 60:.1f} minutes")
            _functions()[name](run, part)
    finally:
        writer.close()
        shutil.rmtree(output / "logs", ignore_errors=True)
        shutil.copytree(logs, output / "logs", dirs_exist_ok=True)
        shutil.rmtree(logs)


def _functions() -> Mapping[str, Callable[[Run, Budget], None]]:
    from tools.collectivesbench import training, urgent
    from tools.collectivesbench.sweep import NETWORKS, sweep

    sweeps = {name: partial(sweep, scenario=name) for name in NETWORKS}
    others = {urgent.URGENT: urgent.beside_a_large_one, training.FALLING: training.over_a_falling_link}
    return {**sweeps, **others, training.TRAINING: training.to_a_loss}


def _report(output: Path) -> None:
    from tools.collectivesbench import plots, report, table  # matplotlib starts threads: no namespace after that

    leave_report(console, output, write=report.write, draw=plots.draw, markdown=table.markdown, show=table.print_report)


if __name__ == "__main__":
    sys.exit(app())
