"""What a benchmark's command takes and says, and the report that it leaves: JSON, Markdown and tables."""

from __future__ import annotations

import importlib
import json
import sys
import time
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Annotated, NoReturn, TypeAlias

import typer
from rich.console import Console

from tools.measure import tables
from tools.measure.records import read
from tools.measure.surroundings import terminated_like_interrupted

EXIT_FAILED, EXIT_INTERRUPTED = 2, 130

Output: TypeAlias = Annotated[Path, typer.Option(help="Where records and report go.")]
ReportOnly: TypeAlias = Annotated[bool, typer.Option("--report-only", help="Compute from the records that are there.")]


def console_of(log_columns: int) -> Console:
    """The terminal; a log has no width, and its tables get this one."""
    console = Console()
    return console if console.is_terminal else Console(width=log_columns)


def say(console: Console, text: str) -> None:
    """A line of what goes on."""
    console.print(text, style="dim", highlight=False, markup=False, soft_wrap=True)


def fail(console: Console, text: str) -> NoReturn:
    """Say what is wrong, and end the command."""
    console.print(text, style="red", markup=False, highlight=False)
    raise typer.Exit(EXIT_FAILED)


def progress_of(console: Console, *, seconds: float) -> Callable[[str], None]:
    """What says lines of what goes on, each with the time since now, of so many seconds."""
    begin_s = time.monotonic()
    return lambda text: say(console, f"{time.monotonic() - begin_s:5.0f} of {seconds:.0f} s  {text}")


def chosen(console: Console, scenarios: Sequence[str] | None, known: Iterable[str]) -> list[str]:
    """The named scenarios in the order of a run, or all of them; an unknown one ends the command."""
    known = list(known)
    if unknown := [name for name in scenarios or () if name not in known]:
        fail(console, f"no scenario {', '.join(unknown)}; there are {', '.join(known)}")
    return [name for name in known if not scenarios or name in scenarios]


def measure_and_report(
    console: Console,
    output: Path,
    package: str,
    *,
    measure: Callable[[], None] | None,
    in_lab: bool = True,
) -> None:
    """Measure, and leave the report, also where Ctrl-C or SIGTERM ends the measuring; the command then ends with 130.

    Args:
        package: the benchmark's. Its `report.compute` makes the report of what was read, `table.sections` its
            tables.
        measure: leaves the records; None where they are there already.
        in_lab: it needs the privilege of a lab.
    """
    interrupted = False
    if measure is not None:
        if in_lab:
            from tools.lab import privilege

            privilege.ensure([sys.executable, "-m", package, *sys.argv[1:]])
        try:
            with terminated_like_interrupted():
                measure()
        except KeyboardInterrupt:
            console.print("interrupted; everything is taken down, and what was measured is reported", style="yellow")
            interrupted = True
    _leave_report(console, output, package)
    if interrupted:
        raise typer.Exit(EXIT_INTERRUPTED)


def _leave_report(console: Console, output: Path, package: str) -> None:
    report, table = (importlib.import_module(f"{package}.{name}") for name in ("report", "table"))
    try:
        found = report.compute(*read(output))
        (output / "report.json").write_text(json.dumps(found, indent=1) + "\n", encoding="utf-8")
    except (OSError, ValueError) as error:
        fail(console, f"{output}: {error}")
    sections = table.sections(found)
    (output / "report.md").write_text(tables.markdown(sections, found), encoding="utf-8")
    tables.print_report(console, sections, found)
    console.print(f"Report: {output}/report.json", highlight=False)
