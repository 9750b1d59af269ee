"""`python -m tools.bench`: measure the engines beside what everybody has, or compute a report again."""

from __future__ import annotations

import os
import shutil
import sys
import tempfile
import time
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from tools.bench.settings import QUICK, SCENARIOS, Settings
from tools.checkout import read_checkout
from tools.measure.reporting import EXIT_INTERRUPTED, console_of, fail, leave_report, say

if TYPE_CHECKING:
    from tools.bench.turns import Run

LABLESS = {"loopback", "memory"}

app = typer.Typer(add_completion=False, help=__doc__, pretty_exceptions_enable=False)
console = console_of(log_columns=150)


@app.command()
def bench(
    scenarios: Annotated[list[str] | None, typer.Argument(help=f"Any of {', '.join(SCENARIOS)}; all without.")] = None,
    output: Annotated[Path, typer.Option(help="Where records, report and plots go.")] = Path("out/bench"),
    quick: Annotated[bool, typer.Option("--quick", help="Within 2 minutes; says less.")] = False,
    repetitions: Annotated[int | None, typer.Option(min=1, help="Turns of the contenders in every scenario.")] = None,
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
        if not LABLESS.issuperset(names):
            from tools.lab import privilege

            privilege.ensure([sys.executable, "-m", "tools.bench", *sys.argv[1:]])
        try:
            settings = (QUICK if quick else Settings()).repeated(repetitions)
            _measure([name for name in SCENARIOS if name in names], output, settings)
        except KeyboardInterrupt:
            console.print("interrupted; everything is taken down", style="yellow")
            raise typer.Exit(EXIT_INTERRUPTED) from None
    _report(output)


def _measure(names: list[str], output: Path, settings: Settings) -> None:
    from tools.bench import contenders, pairs  # the lab among them, which wants the privilege
    from tools.bench.records import HEAD, Writer
    from tools.bench.turns import Run

    functions = _functions()
    everybody = {c.name: c for group in (contenders.LOOPBACK, contenders.LAN, contenders.LOSS, contenders.CONGESTION)
                 for c in group}  # fmt: skip
    missing = {name: c.missing() for name, c in everybody.items() if c.missing()}
    head: Mapping[str, Any] = {
        "kind": HEAD,
        "settings": settings.as_record(),
        "scenarios": names,
        "versions": {**contenders.versions(), **read_checkout().as_record()},
        "machine": {"cores": os.cpu_count(), "kernel": os.uname().release},
        "missing": missing,
    }
    writer = Writer(output)
    folder = Path(tempfile.mkdtemp(prefix="hive-bench-"))
    begin_s = time.monotonic()
    try:
        writer.write(head)
        (folder / "logs").mkdir()
        pairs.identities(folder)
        run = Run(settings, folder, writer, partial(say, console))
        for name in names:
            say(console, f"{name} ({time.monotonic() - begin_s:.0f} s so far)")
            functions[name](run)
    finally:
        writer.close()
        shutil.rmtree(output / "logs", ignore_errors=True)
        shutil.copytree(folder / "logs", output / "logs", dirs_exist_ok=True)
        shutil.rmtree(folder)


def _functions() -> Mapping[str, Callable[[Run], None]]:
    from tools.bench import congestion, flows, latency, memory

    return {
        "loopback": flows.loopback_flows,
        "lan": flows.lan_flows,
        "loss": flows.lossy_flows,
        "latency": latency.latencies,
        "memory": memory.memory,
        "congestion": congestion.congestion,
    }


def _report(output: Path) -> None:
    from tools.bench import plots, report, table  # matplotlib starts threads: then no namespace can be entered

    leave_report(console, output, write=report.write, draw=plots.draw, markdown=table.markdown, show=table.print_report)


if __name__ == "__main__":
    sys.exit(app())
