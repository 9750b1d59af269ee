"""All commands in one place, each in a file of its own; what is heavy is imported by the command that needs it."""

from __future__ import annotations

from typing import Annotated

import typer

from broker.cli.broker_command import broker, clear, replay
from broker.cli.ca_command import app as ca
from broker.cli.doctor_command import doctor
from broker.cli.exits import EPILOG, guarded
from broker.cli.explain_command import explain_collective
from broker.cli.reload_command import confirm, reload
from broker.cli.report_command import report
from broker.cli.run_command import run
from broker.cli.status_command import status
from hive_qos import __version__

app = typer.Typer(
    name="hive-qos",
    help="Share this host's bandwidth between training, storage and people.",
    epilog=EPILOG,
    no_args_is_help=True,
    add_completion=False,
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 110},
)


def _show_version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"hive-qos {__version__}")
        raise typer.Exit


@app.callback()
def _options(
    version: Annotated[
        bool, typer.Option("--version", help="Show the version and exit.", callback=_show_version, is_eager=True)
    ] = False,
) -> None:
    """Options before the command; `--version` is all there is."""


app.command("broker", epilog=EPILOG)(guarded(broker))
app.command("status", epilog=EPILOG)(guarded(status))
app.command("report", epilog=EPILOG)(guarded(report))
app.command("reload", epilog=EPILOG)(guarded(reload))
app.command("confirm", epilog=EPILOG)(guarded(confirm))
app.command("run", epilog=EPILOG, context_settings={"ignore_unknown_options": True, "allow_interspersed_args": False})(
    guarded(run)
)
app.command("clear", epilog=EPILOG)(guarded(clear))
app.command("replay", epilog=EPILOG)(guarded(replay))
app.command("doctor", epilog=EPILOG)(guarded(doctor))
app.command("explain-collective", epilog=EPILOG)(guarded(explain_collective))
app.add_typer(ca, name="ca")
