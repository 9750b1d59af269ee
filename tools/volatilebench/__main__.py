"""`python -m tools.volatilebench`: measure training on machines that come and go, or compute a report again."""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from tools.collectivesbench.budget import Budget
from tools.measure.records import head_of, recorded
from tools.measure.reporting import Output, ReportOnly, chosen, console_of, fail, measure_and_report, progress_of
from tools.measure.surroundings import work_directory
from tools.volatilebench.settings import QUICK, SCENARIOS, Settings

if TYPE_CHECKING:
    from tools.volatilebench.run import Run

app = typer.Typer(add_completion=False, help=__doc__, pretty_exceptions_enable=False)
console = console_of(log_columns=220)


@app.command()
def bench(
    scenarios: Annotated[list[str] | None, typer.Argument(help=f"Any of {', '.join(SCENARIOS)}; all without.")] = None,
    output: Output = Path("out/bench-volatile"),
    quick: Annotated[bool, typer.Option("--quick", help="Within half an hour; says less.")] = False,
    minutes: Annotated[float | None, typer.Option(min=1.0, help="Of all scenarios; 120 without, 24 if quick.")] = None,
    workers: Annotated[int | None, typer.Option(min=2, help="Of the trainings of `loss`, an even number.")] = None,
    steps: Annotated[int | None, typer.Option(min=1, help="Of each of these trainings.")] = None,
    seeds: Annotated[int | None, typer.Option(min=1, help="How often everything is trained.")] = None,
    each: Annotated[
        bool, typer.Option("--each", help="Churn: each worker is lost every minute, not one of all.")
    ] = False,
    churn_s: Annotated[float | None, typer.Option(min=60.0, help="Of each run of churn; 360 without.")] = None,
    report_only: ReportOnly = False,
) -> None:
    """Measure, print the tables, and leave records.jsonl, report.json and report.md."""
    names = chosen(console, scenarios, SCENARIOS)
    if workers is not None and workers % 2:
        fail(console, f"{workers} workers cannot be two equal sites")
    settings = (
        (QUICK if quick else Settings())
        .of(workers=workers, steps=steps, seeds=seeds, churn_s=churn_s, each=each)
        .scaled(minutes)
    )
    measure = None if report_only else partial(_measure, names, output, settings)
    measure_and_report(console, output, "tools.volatilebench", measure=measure, in_lab=names != ["checks"])


def _measure(names: Sequence[str], output: Path, settings: Settings) -> None:
    from tools.bench.contenders import versions  # the lab among what they import, which wants the privilege
    from tools.volatilebench.run import Run

    head = head_of(settings=settings.as_record(), scenarios=names, versions=versions())
    seconds = sum(map(settings.seconds_of, names))
    progress = progress_of(console, seconds=seconds)
    with recorded(output, head) as (writer, folder), work_directory("hq-vb-") as work:
        run = Run(settings, writer, progress, logs=folder / "logs", work=work, seconds=seconds)
        for name, part in Budget(seconds).parts(names, settings.seconds_of):
            progress(f"{name}: {part.left_s() / 60:.1f} minutes")
            _functions()[name](run, part)


def _functions() -> Mapping[str, Callable[[Run, Budget], None]]:
    from tools.volatilebench import checks, churn, joiner, loss

    return {
        "checks": checks.hold,
        "loss": loss.trained,
        "churn": churn.under_churn,
        "joiner": joiner.under_flood,
    }


if __name__ == "__main__":
    sys.exit(app())
