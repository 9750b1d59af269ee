"""Which command is where: one line each, and a command line of some of them.

A command's file is imported when that command is typed. All of them together take as long as `hive-qos status` may.
"""

from __future__ import annotations

import importlib
from collections.abc import Iterable, Mapping, Sequence
from typing import Annotated, Any, Final

import typer

from broker.cli.exits import EPILOG, guarded
from hive_qos import __version__

COMMANDS: Final[Mapping[str, str]] = {
    "broker": "broker.cli.broker_command:broker",
    "init": "broker.cli.changing.init_command:init",
    "check": "broker.cli.changing.check_command:check",
    "plan": "broker.cli.changing.plan_command:plan",
    "apply": "broker.cli.changing.apply_command:apply",
    "set": "broker.cli.changing.set_command:set_",
    "unset": "broker.cli.changing.set_command:unset",
    "pause": "broker.cli.changing.set_command:pause",
    "resume": "broker.cli.changing.set_command:resume",
    "status": "broker.cli.show.status_command:status",
    "why": "broker.cli.show.why_command:why",
    "top": "broker.cli.show.top_command:top",
    "log": "broker.cli.show.log_command:log",
    "report": "broker.cli.show.report_command:report",
    "reload": "broker.cli.reload_command:reload",
    "run": "broker.cli.run_command:run",
    "pods": "broker.cli.pods_command:pods",
    "adapter": "broker.cli.adapter_command:adapter",
    "clear": "broker.cli.broker_command:clear",
    "replay": "broker.cli.broker_command:replay",
    "doctor": "broker.cli.doctor.doctor_command:doctor",
    "job": "broker.cli.show.job_command:job",
    "explain-collective": "broker.cli.explain_command:explain_collective",
    "ca": "broker.cli.ca:app",
}
"""In the order of the help page: a module, and a function of it or a whole group of commands."""
SERVICES: Final = ("broker", "pods", "adapter")
"""What systemd or Kubernetes starts again by its exit code."""
_SETTINGS: Final[Mapping[str, dict[str, Any]]] = {
    "run": {"ignore_unknown_options": True, "allow_interspersed_args": False}
}


def wanted(arguments: Sequence[str]) -> Iterable[str]:
    """Name the command that these arguments are for; all where they name none, as for the help page."""
    return arguments[:1] if arguments and arguments[0] in COMMANDS else COMMANDS


def command_line(names: Iterable[str]) -> typer.Typer:
    """Make a command line that has these commands; no others are imported."""
    app = typer.Typer(
        name="hive-qos",
        help="Share this host's bandwidth between training, storage and people.",
        epilog=EPILOG,
        no_args_is_help=True,
        rich_markup_mode=None,
        pretty_exceptions_enable=False,
        context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 110},
    )
    app.callback()(_options)
    for name in names:
        module, _, member = COMMANDS[name].partition(":")
        command = getattr(importlib.import_module(module), member)
        if isinstance(command, typer.Typer):
            app.add_typer(command, name=name)
        else:
            run = guarded(command, service=name in SERVICES)
            app.command(name, epilog=EPILOG, context_settings=_SETTINGS.get(name, {}))(run)
    return app


def _show_version(shown: bool) -> None:
    if shown:
        typer.echo(f"hive-qos {__version__}")
        raise typer.Exit


def _options(
    version: Annotated[
        bool, typer.Option("--version", help="Show the version and exit.", callback=_show_version, is_eager=True)
    ] = False,
) -> None:
    """Options before the command; `--version` is all there is."""
