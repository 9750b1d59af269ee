"""`hive-qos status`: what the broker does now, and why."""

from __future__ import annotations

import json
import sys
import time
from typing import Annotated, Any

import typer

from broker import client
from broker.cli.options import SocketOption
from hive_qos.errors import BrokerUnavailableError

REFRESH_S = 1.0
"""As often as somebody can read it."""


def status(
    socket: SocketOption = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print the whole document as one line of JSON.")] = False,
    watch: Annotated[bool, typer.Option("--watch", "-w", help="Repeat every second until q or Ctrl-C.")] = False,
) -> None:
    """Show what each class and job gets, and why.

    Alarms come first. Then each class' guarantee and average, who lends to whom, what limits each job for how long,
    and who sends. On a terminal long lists are cut to its height; a pipe gets more.

    \b
    Examples:
      hive-qos status
      hive-qos status --watch
      hive-qos status --json | jq '.interfaces[].classes[] | {name, average_bits_per_s, promise}'
    """
    path = None if socket is None else str(socket)
    if as_json:
        _print_json(path, watch=watch)
    else:
        _show(path, watched=watch)


def _print_json(path: str | None, *, watch: bool) -> None:
    """One line a second; while a broker starts again there is none, and standard error says so once."""
    answered = lost = False
    while True:
        try:
            sys.stdout.write(json.dumps(client.status(path)) + "\n")
            sys.stdout.flush()
            answered, lost = True, False
        except BrokerUnavailableError as error:
            if not watch or not answered:
                raise
            if not lost:
                typer.echo(f"hive-qos: {error}; trying again", err=True)
            lost = True
        if not watch:
            return
        time.sleep(REFRESH_S)


def _show(path: str | None, *, watched: bool) -> None:
    from broker.cli.show.screen import Output
    from broker.cli.show.status_table import fitted

    console = Output()

    def ask() -> dict[str, Any]:
        return client.status(path)

    if watched:
        from broker.cli.show.live import Latest, watch

        watch(Latest(ask, lambda document: fitted(document, console)), console)
    else:
        console.print(fitted(ask(), console))
