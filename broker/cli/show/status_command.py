"""`hive-qos status`: what the broker does now, and why."""

from __future__ import annotations

import json
import sys
import time
from typing import Annotated, Any

import typer

from broker import client
from broker.cli.options import SocketOption

REFRESH_S = 1.0
"""As often as somebody can read it."""

def status(
    socket: SocketOption = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print the whole document as one line of JSON.")] = False,
    watch: Annotated[bool, typer.Option("--watch", "-w", help="Repeat every second until Ctrl-C.")] = False,
) -> None:
    """Show what each class and job gets, and why.

    The table has each class' guarantee and average, who lends to whom, what limits each job, who sends, and alarms.

    \b
    Examples:
      hive-qos status
      hive-qos status --watch
      hive-qos status --json | jq '.interfaces[].classes[] | {name, average_bits_per_s, promise}'
    """
    path = None if socket is None else str(socket)
    if as_json:
        _print_json(path, watch=watch)
    elif watch:
        _watch(path)
    else:
        _print_table(client.status(path))


def _print_json(path: str | None, *, watch: bool) -> None:
    while True:
        sys.stdout.write(json.dumps(client.status(path)) + "\n")
        sys.stdout.flush()
        if not watch:
            return
        time.sleep(REFRESH_S)


def _print_table(document: dict[str, Any]) -> None:
    from rich.console import Console

    from broker.cli.show.status_table import render

    Console(highlight=False).print(render(document))


def _watch(path: str | None) -> None:
    from rich.console import Console
    from rich.live import Live

    from broker.cli.show.status_table import render

    console = Console(highlight=False)
    while not console.is_terminal:  # a pipe or a file: there is nothing to paint over
        console.print(render(client.status(path)))
        sys.stdout.flush()
        time.sleep(REFRESH_S)
    with Live(render(client.status(path)), console=console, auto_refresh=False) as live:
        while True:
            time.sleep(REFRESH_S)
            live.update(render(client.status(path)), refresh=True)
