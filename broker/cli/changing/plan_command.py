"""`hive-qos plan`: what a configuration would change, in words and as kernel operations. Changes nothing."""

from __future__ import annotations

import json
from typing import Annotated

import typer

from broker.cli.changing.apply_command import FileOption, broker_file
from broker.cli.configuration import read
from broker.cli.exits import ExitCode
from broker.cli.options import JsonOption, SocketOption


def plan(
    file: FileOption = None,
    socket: SocketOption = None,
    operations: Annotated[bool, typer.Option("--operations", help="Show every kernel operation.")] = False,
    exit_code: Annotated[bool, typer.Option("--exit-code", help="Exit with 9 where something would change.")] = False,
    as_json: JsonOption = False,
) -> None:
    """Show what a configuration would change, and what that means for packets and promises.

    It compares the file with the policy of the running broker; where none runs, with the kernel, as root. Rates are
    those at the capacity of now while every class wants its share. Nothing is changed.

    \b
    Examples:
      hive-qos plan
      hive-qos plan ./broker.toml --operations
      hive-qos plan --exit-code || hive-qos apply
    """
    from broker.cli.changing.planning import document_of, lines_of, plan_for

    file = file or broker_file(socket)
    made = plan_for(read(file), file=file, socket=socket)
    if as_json:
        typer.echo(json.dumps(document_of(made, file)))
    else:
        for line in lines_of(made, file=file, operations=operations):
            typer.echo(line)
    if exit_code and made.changes:
        raise typer.Exit(ExitCode.FOUND)
