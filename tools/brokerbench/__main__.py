"""`python -m tools.brokerbench`: measure what the broker does, or compute a report again."""

from __future__ import annotations

import dataclasses
import platform
import sys
import time
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from hive_qos import __version__
from hive_qos.errors import ConfigurationError
from tools.brokerbench.settings import QUICK, SCENARIOS, VARIANTS, Settings
from tools.measure.records import Writer, head_of
from tools.measure.reporting import Output, ReportOnly, chosen, console_of, fail, measure_and_report, say

if TYPE_CHECKING:
    from tools.brokerbench.run import Run


app = typer.Typer(add_completion=False, help=__doc__, pretty_exceptions_enable=False)
console = console_of(log_columns=170)


@app.command()
def bench(
    scenarios: Annotated[list[str] | None, typer.Argument(help=f"Any of {', '.join(SCENARIOS)}; all without.")] = None,
    output: Output = Path("out/broker"),
    quick: Annotated[bool, typer.Option("--quick", help="One short round; says less.")] = False,
    variants: Annotated[str, typer.Option(help="Which take turns.")] = ",".join(VARIANTS),
    rounds: Annotated[int | None, typer.Option(help="Turns of the variants.")] = None,
    steps: Annotated[int | None, typer.Option(help="Of each variant in each round, settling ones included.")] = None,
    engine: Annotated[str, typer.Option(help="Of the transport: auto, native or aioquic.")] = Settings().engine,
    busy: Annotated[bool, typer.Option("--busy", help="Ranks compute on a core, not asleep.")] = False,
    report_only: ReportOnly = False,
) -> None:
    """Measure, print the tables, and leave records.jsonl, report.json and report.md.

    Everything takes an hour and three quarters on a machine with two cores: 15 minutes each for sender, receiver,
    remote and inbound, 12 for fresh, 10 for capacity and jobs, 2 to 6 for the others. A scenario that is not done after
    40 minutes ends, and the next one begins; the report says what is missing. With --quick everything takes 27 minutes.
    """
    names, measure = chosen(console, scenarios, SCENARIOS), None
    if not report_only:
        try:
            settings = _settings(quick=quick, variants=variants, rounds=rounds, steps=steps, engine=engine, busy=busy)
        except ConfigurationError as error:
            fail(console, str(error))
        measure = partial(_measure, names, output, settings)
    measure_and_report(console, output, "tools.brokerbench", measure=measure)


def _settings(
    *, quick: bool, variants: str, rounds: int | None, steps: int | None, engine: str, busy: bool
) -> Settings:
    settings = dataclasses.replace(QUICK if quick else Settings(), engine=engine, busy=busy)
    settings = dataclasses.replace(settings, variants=tuple(name.strip() for name in variants.split(",")))
    if rounds is not None:
        settings = dataclasses.replace(
            settings, rounds=rounds, fresh_rounds=rounds, capacity_rounds=rounds, jobs_rounds=rounds
        )
    if steps is not None:
        settings = dataclasses.replace(settings, steps=steps, settling_steps=min(settings.settling_steps, steps // 3))
    return settings


def _measure(names: list[str], output: Path, settings: Settings) -> None:
    from tools.brokerbench.run import Run  # the lab among what it imports, which wants the privilege

    functions = _functions()
    versions = {"hive-qos": __version__, "python": platform.python_version()}
    writer = Writer(output)
    begin_s = time.monotonic()
    writer.write(head_of(settings=settings.as_record(), scenarios=names, versions=versions))
    try:
        with console.status("") as status:
            run = Run(settings, writer, say=partial(say, console), show=status.update)
            for name in names:
                say(console, f"{name} ({time.monotonic() - begin_s:.0f} s so far)")
                run.begin()
                with run.guarded(name, "all"):
                    functions[name](run)
    finally:
        writer.close()


def _functions() -> Mapping[str, Callable[[Run], None]]:
    from tools.brokerbench.scenarios import changing, faults, fresh, holding, inbound, jobs, many_flows, shares

    return {
        "sender": lambda run: shares.measure(run, "sender"),
        "receiver": lambda run: shares.measure(run, "receiver"),
        "fresh": fresh.measure,
        "remote": lambda run: shares.measure(run, "remote"),
        "capacity": changing.measure,
        "inbound": inbound.measure,
        "jobs": jobs.measure,
        "flows": many_flows.measure,
        "faults": faults.measure,
        "hold": holding.measure,
    }


if __name__ == "__main__":
    sys.exit(app())
