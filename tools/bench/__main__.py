"""`python -m tools.bench`: measure the engines beside what everybody has, or compute a report again."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from tools.bench.settings import QUICK, SCENARIOS, Settings
from tools.measure.records import head_of, recorded
from tools.measure.reporting import Output, ReportOnly, chosen, console_of, measure_and_report, say

if TYPE_CHECKING:
    from tools.bench.turns import Run

LABLESS = {"loopback", "memory"}

app = typer.Typer(add_completion=False, help=__doc__, pretty_exceptions_enable=False)
console = console_of(log_columns=150)


@app.command()
def bench(
    scenarios: Annotated[list[str] | None, typer.Argument(help=f"Any of {', '.join(SCENARIOS)}; all without.")] = None,
    output: Output = Path("out/bench"),
    quick: Annotated[bool, typer.Option("--quick", help="Within 2 minutes; says less.")] = False,
    repetitions: Annotated[int | None, typer.Option(min=1, help="Turns of the contenders in every scenario.")] = None,
    report_only: ReportOnly = False,
) -> None:
    """Measure, print the tables, and leave records.jsonl, report.json and report.md."""
    names = chosen(console, scenarios, SCENARIOS)
    settings = (QUICK if quick else Settings()).repeated(repetitions)
    measure = None if report_only else partial(_measure, names, output, settings)
    in_lab = not LABLESS.issuperset(names)
    measure_and_report(console, output, "tools.bench", measure=measure, in_lab=in_lab)


def _measure(names: list[str], output: Path, settings: Settings) -> None:
    from tools.bench import contenders, pairs  # the lab among them, which wants the privilege
    from tools.bench.turns import Run

    functions = _functions()
    everybody = {c.name: c for group in (contenders.LOOPBACK, contenders.LAN, contenders.LOSS, contenders.CONGESTION)
                 for c in group}  # fmt: skip
    missing = {name: c.missing() for name, c in everybody.items() if c.missing()}
    head = head_of(settings=settings.as_record(), scenarios=names, versions=contenders.versions(), missing=missing)
    begin_s = time.monotonic()
    with recorded(output, head) as (writer, folder):
        pairs.identities(folder)
        run = Run(settings, folder, writer, partial(say, console))
        for name in names:
            say(console, f"{name} ({time.monotonic() - begin_s:.0f} s so far)")
            functions[name](run)


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


if __name__ == "__main__":
    sys.exit(app())
