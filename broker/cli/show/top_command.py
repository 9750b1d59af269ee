"""`hive-qos top`: who sends and receives most, now."""

from __future__ import annotations

import enum
import json
import sys
from typing import Annotated, Any

import typer

from broker import client
from broker.cli.options import JsonOption, SocketOption


class Sort(enum.StrEnum):
    """By what the rows are sorted."""

    BOTH = "both"
    SENDS = "sends"
    RECEIVES = "receives"


def top(
    socket: SocketOption = None,
    connections: Annotated[
        bool, typer.Option("--connections", "-c", help="Show single connections instead of programs.")
    ] = False,
    sort: Annotated[Sort, typer.Option(help="The largest of this first.")] = Sort.BOTH,
    limit: Annotated[
        int | None, typer.Option("--limit", "-n", min=1, help="How many rows (default: what fits, or 20).")
    ] = None,
    once: Annotated[bool, typer.Option("--once", help="Print one table and end, as into a pipe.")] = False,
    as_json: JsonOption = False,
) -> None:
    """Show programs and connections by what they send and receive now.

    On a terminal it repeats every second, and q ends it. The keys s, r and b sort by sends, receives or both. The key c
    switches between programs and connections. Of more than 500 TCP connections the broker follows the largest.

    \b
    Examples:
      hive-qos top
      hive-qos top --connections --sort receives
      hive-qos top --once -n 5
      hive-qos top --json | jq '.programs[] | {command, pid, throughput_bits_per_s}'
    """
    from broker.cli.show.live import Latest, watch
    from broker.cli.show.screen import Output
    from broker.cli.show.top_table import View, render, rows_of

    console = Output()
    view = View(connections, sort.value, limit)

    def ask() -> dict[str, Any]:
        return client.status(None if socket is None else str(socket))

    def press(key: str) -> None:
        nonlocal view
        chosen = {"s": "sends", "r": "receives", "b": "both"}.get(key, view.sort)
        view = View(view.connections ^ (key == "c"), chosen, view.shown)

    if as_json:
        document = ask()
        found: dict[str, Any] = {"schema": document.get("schema"), "host": document.get("host")}
        for name, shown in (("programs", View(False, sort.value)), ("connections", View(True, sort.value))):
            found[name] = rows_of(document, shown)[:limit]
        found |= {key: document.get(key) for key in ("programs_total", "tcp_connections")}
        sys.stdout.write(json.dumps(found) + "\n")
    elif once or not console.is_terminal:
        console.print(render(ask(), view, console))
    else:
        watch(Latest(ask, lambda document: render(document, view, console)), console, press=press)
