"""`python -m tools.demo`: run the demonstration, or recompute its report from the raw records."""

from __future__ import annotations

import dataclasses
import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Annotated, NoReturn, TypeVar

import typer
from rich.console import Console

from hive_qos.errors import ConfigurationError, HiveError
from hive_qos.units import parse_duration_s, parse_rate_bits_per_s
from tools.demo import report as reports
from tools.demo.records import read
from tools.demo.settings import Settings
from tools.demo.table import print_report

EXIT_GOAL_MISSED, EXIT_FAILED, EXIT_INTERRUPTED = 1, 2, 130
PROGRAMS = ("rsync", "ip", "tc")

T = TypeVar("T")

app = typer.Typer(add_completion=False, no_args_is_help=True, help=__doc__, pretty_exceptions_enable=False)
console = Console()
STRICT = Annotated[bool, typer.Option("--strict", help="Exit with 1 where a figure misses its goal, too.")]
DEFAULT = Settings()


@app.command()
def run(
    output: Annotated[Path, typer.Option(help="Where the report, the plot and the raw records go.")] = Path("out/demo"),
    rate: Annotated[str, typer.Option(help="Rate of every link.")] = "20 Mbit/s",
    rounds: Annotated[int, typer.Option(help="Turns of the four phases.")] = DEFAULT.rounds,
    half: Annotated[str, typer.Option(help="Each half of a phase: full rate, then half.")] = f"{DEFAULT.half_s:g} s",
    warm_up: Annotated[str, typer.Option(help="Training before everything.")] = f"{DEFAULT.warm_up_s:g} s",
    backend: Annotated[str, typer.Option(help="Of torch.distributed: hive, or gloo to compare.")] = DEFAULT.backend,
    engine: Annotated[str, typer.Option(help="Of hive: native, aioquic, or auto, native if it is built.")] = (
        DEFAULT.engine
    ),
    phases: Annotated[str, typer.Option(help="Which phases, in which order.")] = ",".join(DEFAULT.phases),
    width: Annotated[int, typer.Option(help="Width of the transformer.")] = DEFAULT.width,
    batch: Annotated[int, typer.Option(help="Texts of a step on each host; 0: as many as compute in about 40 ms.")] = (
        DEFAULT.batch
    ),
    user: Annotated[str, typer.Option(help="Who trains and copies.")] = DEFAULT.user,
    minutes_max: Annotated[float, typer.Option(help="The watchdog.")] = DEFAULT.run_seconds_max / 60,
    strict: STRICT = False,
) -> None:
    """Train on two hosts while storage floods their link, in four phases, and report.

    Exits with 0 where everything ran, both hosts hold the same weights and the flood harms training without control.
    """
    try:
        settings = dataclasses.replace(
            DEFAULT,
            rate_bits_per_s=_parsed("rate", rate, parse_rate_bits_per_s),
            rounds=rounds,
            half_s=_parsed("half", half, parse_duration_s),
            warm_up_s=_parsed("warm-up", warm_up, parse_duration_s),
            backend=backend,
            engine=engine,
            phases=tuple(phase.strip() for phase in phases.split(",")),
            width=width,
            batch=batch,
            user=user,
            run_seconds_max=60 * minutes_max,
        )
    except ConfigurationError as error:
        _fail(error)
    _need_programs()
    _need_privilege()
    from tools.demo.director import run as direct  # imports the lab, which wants the privilege
    from tools.demo.screen import Screen

    try:
        reports.clear(output)
    except OSError as error:
        _fail(error)
    screen = Screen(console, settings)
    try:
        direct(settings, output, screen)
    except KeyboardInterrupt:
        screen.end()
        console.print("interrupted; everything is taken down", style="yellow")
        raise typer.Exit(EXIT_INTERRUPTED) from None
    except (HiveError, ValueError, OSError, subprocess.SubprocessError) as error:
        screen.end()
        _say(error)
        _report(output, fresh=True, strict=strict)
        raise typer.Exit(EXIT_FAILED) from None
    screen.end()
    if not _report(output, fresh=True, strict=strict):
        raise typer.Exit(EXIT_GOAL_MISSED)


@app.command()
def report(
    directory: Annotated[Path, typer.Argument(help="Where a run left its records.")], strict: STRICT = False
) -> None:
    """Recompute every figure from the raw records, print the tables, draw the plot again."""
    if not _report(directory, fresh=False, strict=strict):
        raise typer.Exit(EXIT_GOAL_MISSED)


def _parsed(option: str, text: str, parse: Callable[[str], T]) -> T:
    try:
        return parse(text)
    except ValueError as error:
        raise ConfigurationError(option, text, str(error)) from error


def _say(error: Exception) -> None:
    console.print(str(error), style="red", markup=False, highlight=False)


def _fail(error: Exception) -> NoReturn:
    """Before a run begins: nothing of it is there to report."""
    _say(error)
    raise typer.Exit(EXIT_FAILED) from None


def _report(directory: Path, *, fresh: bool, strict: bool) -> bool:
    from tools.demo.plot import draw  # its libraries start threads, and then no user namespace can be entered

    try:
        found = reports.write(directory)
        draw(read(directory), found, directory / reports.PLOT)
    except (OSError, ValueError) as error:
        if not fresh:
            console.print(f"{directory}: {error}", style="red", markup=False)
        return False
    print_report(console, found, strict=strict)
    console.print(f"Report: {directory / reports.FILE}   Plot: {directory / reports.PLOT}", highlight=False)
    return reports.passed(found, strict=strict)


def _need_programs() -> None:
    from tools.lab.kernel import command_path

    missing = [name for name in PROGRAMS if shutil.which(name, path=command_path()) is None]
    if missing:
        console.print(f"missing: {', '.join(missing)}; install them with apt-get install iproute2 rsync", style="red")
        raise typer.Exit(EXIT_FAILED)


def _need_privilege() -> None:
    from tools.lab import privilege

    privilege.ensure([sys.executable, "-m", "tools.demo", *sys.argv[1:]])


if __name__ == "__main__":
    os.environ.setdefault("PYTHONDONTWRITEBYTECODE", "1")
    sys.exit(app())
