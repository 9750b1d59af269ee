"""`python -m tools.simulate`: what the broker's decision would do on a network that is described in a file."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console
from rich.progress import BarColumn, Progress, TaskID, TextColumn, TimeRemainingColumn

from broker.policy.toml import ConfigurationErrors
from broker.policy.toml import load as load_policy
from broker.policy.types import Policy
from hive_qos.errors import ConfigurationError
from tools.simulate import report
from tools.simulate.scenario import Scenario, load
from tools.simulate.world import CONTROLS, Outcome, simulate

EXIT_USAGE, EXIT_INTERRUPTED = 2, 130
DEFAULT = Path(__file__).with_name("sites.toml")
NO_POLICY = 'version = 1\n[[interface]]\nname = "eth0"\negress = "1 Gbit/s"\n'
"""Each host's own rate takes the place of the one that is named here."""

app = typer.Typer(add_completion=False, help=__doc__, pretty_exceptions_enable=False)


@app.command()
def simulate_network(
    scenario: Annotated[Path, typer.Argument(help="The network; docs/reference/simulator.md has its form.")] = DEFAULT,
    control: Annotated[list[str] | None, typer.Option(help=f"Any of {', '.join(CONTROLS)}; all without.")] = None,
    policy: Annotated[
        Path | None, typer.Option(help="A broker.toml; its classes and tick hold on every host.", dir_okay=False)
    ] = None,
    seconds: Annotated[float | None, typer.Option(help="How long, instead of what the file says.", min=6.0)] = None,
    record: Annotated[
        Path | None, typer.Option(help="A folder for each host's decisions, which `hive-qos replay` reads.")
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Give the report as JSON.")] = False,
) -> None:
    """Simulate a network in virtual time, once under each control, and compare."""
    errors = Console(stderr=True)
    try:
        names = control or list(CONTROLS)
        for name in names:
            if name not in CONTROLS:
                raise ConfigurationError("--control", name, f"one of {', '.join(CONTROLS)}")
        what = load(scenario)
        if seconds is not None:
            what = replace(what, seconds=seconds)
        rules = _policy(policy)
        if record is not None:
            record.mkdir(parents=True, exist_ok=True)
        outcomes = _run(what, [name for name in CONTROLS if name in names], rules, record, errors)
    except (ConfigurationError, ConfigurationErrors, OSError) as problem:
        errors.print(f"simulate: {problem}", style="red", markup=False, highlight=False, soft_wrap=True)
        raise typer.Exit(EXIT_USAGE) from None
    except KeyboardInterrupt:
        errors.print("interrupted", style="yellow")
        raise typer.Exit(EXIT_INTERRUPTED) from None
    found = report.figures(what, outcomes)
    if as_json:
        typer.echo(json.dumps(found, indent=2))
        return
    console = Console()
    report.print_table(console if console.is_terminal else Console(width=160), found)


def _run(
    what: Scenario, controls: list[str], policy: Policy, record: Path | None, console: Console
) -> list[Outcome]:  # fmt: skip
    columns = (
        TextColumn("{task.description}"),
        BarColumn(),
        TextColumn("{task.completed:.0f} s"),
        TimeRemainingColumn(),
    )
    outcomes = []
    with Progress(*columns, console=console, transient=True, disable=not console.is_terminal) as bars:
        for name in controls:
            bar = bars.add_task(name, total=what.seconds)
            outcomes.append(simulate(what, name, policy=policy, record=record, progress=_towards(bars, bar)))
    return outcomes


def _towards(bars: Progress, bar: TaskID) -> Callable[[float], None]:
    return lambda now_s: bars.update(bar, completed=now_s)


def _policy(path: Path | None) -> Policy:
    if path is None:
        return load_policy(NO_POLICY)
    try:
        return load_policy(path.read_text(encoding="utf-8"))
    except UnicodeDecodeError as problem:
        raise ConfigurationError("--policy", str(path), "not UTF-8 text") from problem


if __name__ == "__main__":
    app()
