"""`python -m tools.volatilebench`: measure training on machines that come and go, or compute a report again."""

from __future__ import annotations

import os
import shutil
import sys
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from tools.checkout import read_checkout
from tools.collectivesbench.budget import Budget
from tools.measure.reporting import EXIT_INTERRUPTED, console_of, fail, leave_report, say
from tools.measure.surroundings import terminated_like_interrupted, work_directory
from tools.volatilebench.settings import QUICK, SCENARIOS, Settings

if TYPE_CHECKING:
    from tools.volatilebench.run import Run

app = typer.Typer(add_completion=False, help=__doc__, pretty_exceptions_enable=False)
console = console_of(log_columns=220)


@app.command()
def bench(
    scenarios: Annotated[list[str] | None, typer.Argument(help=f"Any of {', '.join(SCENARIOS)}; all without.")] = None,
    output: Annotated[Path, typer.Option(help="Where records, report and plots go.")] = Path("out/bench-volatile"),
    quick: Annotated[bool, typer.Option("--quick", help="Within half an hour; says less.")] = False,
    minutes: Annotated[float | None, typer.Option(min=1.0, help="Of all scenarios; 120 without, 24 if quick.")] = None,
    workers: Annotated[int | None, typer.Option(min=2, help="Of the trainings of `loss`, an even number.")] = None,
    steps: Annotated[int | None, typer.Option(min=1, help="Of each of these trainings.")] = None,
    seeds: Annotated[int | None, typer.Option(min=1, help="How often everything is trained.")] = None,
    report_only: Annotated[
        bool, typer.Option("--report-only", help="Compute from the records that are there.")
    ] = False,
) -> None:
    """Measure, print the tables, and leave records.jsonl, report.json, report.md and plots."""
    names = scenarios or list(SCENARIOS)
    unknown = [name for name in names if name not in SCENARIOS]
    if unknown:
        fail(console, f"no scenario {', '.join(unknown)}; there are {', '.join(SCENARIOS)}")
    if workers is not None and workers % 2:
        fail(console, f"{workers} workers cannot be two equal sites")
    if not report_only:
        if names != ["checks"]:
            from tools.lab import privilege

            privilege.ensure([sys.executable, "-m", "tools.volatilebench", *sys.argv[1:]])
        settings = (QUICK if quick else Settings()).of(workers=workers, steps=steps, seeds=seeds).scaled(minutes)
        try:
            with terminated_like_interrupted():
                _measure([name for name in SCENARIOS if name in names], output, settings)
        except KeyboardInterrupt:
            console.print("interrupted; everything is taken down, and what was measured is reported", style="yellow")
            _report(output)
            raise typer.Exit(EXIT_INTERRUPTED) from None
    _report(output)


def _measure(names: Sequence[str], output: Path, settings: Settings) -> None:
    from tools.bench.contenders import versions  # the lab among what they import, which wants the privilege
    from tools.bench.records import HEAD, Writer
    from tools.volatilebench.run import Run

    head: Mapping[str, Any] = {
        "kind": HEAD,
        "settings": settings.as_record(),
        "scenarios": names,
        "versions": {**versions(), **read_checkout().as_record()},
        "machine": {"cores": os.cpu_count(), "kernel": os.uname().release, "load": os.getloadavg()},
    }
    seconds = sum(map(settings.seconds_of, names))
    writer, logs = Writer(output), Path(tempfile.mkdtemp(prefix="hive-bench-"))
    begin_s = time.monotonic()

    def progress(text: str) -> None:
        say(console, f"{time.monotonic() - begin_s:5.0f} of {seconds:.0f} s  {text}")

    try:
        writer.write(head)
        with work_directory("hq-vb-") as work:
            run = Run(settings, writer, progress, logs=logs, work=work, seconds=seconds)
            for name, part in Budget(seconds).parts(names, settings.seconds_of):
                progress(f"{name}: {part.left_s() / 60:.1f} minutes")
                _functions()[name](run, part)
    finally:
        writer.close()
        shutil.rmtree(output / "logs", ignore_errors=True)
        shutil.copytree(logs, output / "logs", dirs_exist_ok=True)
        shutil.rmtree(logs)


def _functions() -> Mapping[str, Callable[[Run, Budget], None]]:
    from tools.volatilebench import checks, churn, joiner, loss

    return {
        "checks": checks.hold,
        "loss": loss.trained,
        "churn": churn.under_churn,
        "joiner": joiner.under_flood,
    }


def _report(output: Path) -> None:
    from tools.volatilebench import plots, report, table  # matplotlib starts threads: no namespace after that

    leave_report(console, output, write=report.write, draw=plots.draw, markdown=table.markdown, show=table.print_report)


if __name__ == "__main__":
    sys.exit(app())
