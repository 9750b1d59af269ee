"""What a benchmark's command says, and the report that it leaves: JSON, Markdown, plots and tables."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import NoReturn, TypeVar

import typer
from rich.console import Console

EXIT_FAILED, EXIT_INTERRUPTED = 2, 130

Report = TypeVar("Report")


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


def leave_report(
    console: Console,
    output: Path,
    *,
    write: Callable[[Path], Report],
    draw: Callable[[Report, Path], object],
    markdown: Callable[[Report], str],
    show: Callable[[Console, Report], None],
) -> None:
    """Compute the report from the records in `output`, leave it there in all its forms, and show it.

    Args:
        write: computes it and leaves report.json.
        draw: leaves the plots.
        markdown: its text for report.md.
        show: prints its tables.
    """
    try:
        found = write(output)
    except (OSError, ValueError) as error:
        fail(console, f"{output}: {error}")
    draw(found, output)
    (output / "report.md").write_text(markdown(found), encoding="utf-8")
    show(console, found)
    console.print(f"Report: {output}/report.json   Plots: {output}/*.png", highlight=False)
