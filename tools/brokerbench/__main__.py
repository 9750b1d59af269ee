"""`python -m tools.brokerbench`: measure what the broker does, or compute a report again."""

from __future__ import annotations

import dataclasses
import platform
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from hive_qos import __version__
from hive_qos.errors import ConfigurationError
from tools.brokerbench.records import read, read_one
from tools.brokerbench.settings import QUICK, SCENARIOS, VARIANTS, Settings
from tools.checkout import read_checkout
from tools.measure.compare import print_comparison
from tools.measure.records import Record, Writer, head_of
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
    add: Annotated[bool, typer.Option("--add", help="Add rounds to the records that are there.")] = False,
    engine: Annotated[str, typer.Option(help="Of the transport: auto, native or aioquic.")] = Settings().engine,
    busy: Annotated[bool, typer.Option("--busy", help="Ranks compute on a core, not asleep.")] = False,
    report_only: ReportOnly = False,
    by_commit: Annotated[
        bool, typer.Option("--by-commit", help="Show the records' versions side by side; measure nothing.")
    ] = False,
) -> None:
    """Measure, print the tables, and leave records.jsonl, report.json, report.md and a plot for each scenario.

    Everything takes an hour and three quarters on a machine with two cores: 15 minutes each for sender, receiver,
    remote and inbound, 12 for fresh, 10 for capacity and jobs, 2 to 6 for the others. A scenario that is not done after
    40 minutes ends, and the next one begins; the report says what is missing. With --quick everything takes 27 minutes.
    """
    if by_commit:
        _side_by_side(output)
        return
    names, measure = chosen(console, scenarios, SCENARIOS), None
    if not report_only:
        try:
            settings = _settings(quick=quick, variants=variants, rounds=rounds, steps=steps, engine=engine, busy=busy)
            before = _rounds_to_add_to(output) if add else []
        except (ConfigurationError, OSError, ValueError) as error:
            fail(console, str(error))
        measure = partial(_measure, names, output, settings, before=before, add=add)
    measure_and_report(console, output, "tools.brokerbench", measure=measure, plots=True, read=_read)


def _read(output: Path) -> tuple[Sequence[Record], Sequence[Record]]:
    pool = read_one(output)
    return pool.heads, pool.records


def _rounds_to_add_to(output: Path) -> Sequence[Record]:
    """The records that this run's rounds can be pooled with.

    Raises:
        OSError, ValueError: there are none; the text says why.
    """
    pool, now = read_one(output), read_checkout()
    if not now.reproducible or pool.checkout != now:
        raise ValueError(f"--add pools runs of one clean commit: {output} has {pool.checkout}, and this is {now}")
    return pool.records


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


def _measure(names: list[str], output: Path, settings: Settings, *, before: Sequence[Record], add: bool) -> None:
    from tools.brokerbench.run import Run  # the lab among what it imports, which wants the privilege

    functions = _functions()
    versions = {"hive-qos": __version__, "python": platform.python_version()}
    writer = Writer(output, add=add)
    begin_s = time.monotonic()
    writer.write(head_of(settings=settings.as_record(), scenarios=names, versions=versions))
    try:
        with console.status("") as status:
            run = Run(settings, writer, before=before, say=partial(say, console), show=status.update)
            for name in names:
                say(console, f"{name} ({time.monotonic() - begin_s:.0f} s so far)")
                run.begin()
                with run.guarded(name, "all"):
                    functions[name](run)
    finally:
        writer.close()


def _functions() -> Mapping[str, Callable[[Run], None]]:
    from tools.brokerbench.scenarios import changes, changing, faults, fresh, holding, inbound, jobs, many_flows, shares

    return {
        "sender": lambda run: shares.measure(run, "sender"),
        "receiver": lambda run: shares.measure(run, "receiver"),
        "fresh": fresh.measure,
        "remote": lambda run: shares.measure(run, "remote"),
        "capacity": changing.measure,
        "inbound": inbound.measure,
        "jobs": jobs.measure,
        "changes": changes.measure,
        "flows": many_flows.measure,
        "faults": faults.measure,
        "hold": holding.measure,
    }


def _side_by_side(output: Path) -> None:
    from tools.brokerbench import report

    try:
        pools = read(output)
    except (OSError, ValueError) as error:
        fail(console, str(error))
    print_comparison(console, [report.compute(pool.heads, pool.records) for pool in pools])


if __name__ == "__main__":
    sys.exit(app())
