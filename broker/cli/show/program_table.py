"""Programs that send and receive, as rows of a screen: for `hive-qos status` and `hive-qos top`."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from rich.console import RenderableType
from rich.text import Text

from broker.cli.show.screen import COLUMN, Row, count, items, name_of, rate

FIRST = (1, 2, 0)
"""Of a program's cells, where room is short: sends, receives, class."""
CLASS = 8
"""Width of the class' column: the longest name is "compute"."""
UNKNOWN = "unknown: the kernel counts no bytes of a UDP socket that is not registered with the broker"


def program_rows(document: Mapping[str, Any], *, shown_max: int) -> list[RenderableType]:
    """The busiest programs below a title, and how many more there are."""
    programs = items(document, "programs")
    if not programs:
        return []
    parts: list[RenderableType] = [
        Text(""),
        Row("program", (f"{'class':<{CLASS}}", f"{'sends':>{COLUMN}}", f"{'receives':>{COLUMN}}"), FIRST, "peer"),
        *map(_program, programs[:shown_max]),
    ]
    total, connections = document.get("programs_total"), document.get("tcp_connections")
    more = (total if isinstance(total, int) else len(programs)) - shown_max
    if more > 0:
        known = f", {connections:,} TCP connections in all" if isinstance(connections, int) else ""
        parts.append(Text(f"and {more:,} more{known}: hive-qos top"))
    if any(row.get("rate_source") == "unknown" for row in programs[:shown_max]):
        parts.append(Text(UNKNOWN))
    return parts


def who(row: Mapping[str, Any]) -> str:
    """A program's name and process; its user where the process is not known."""
    pid, name = row.get("pid"), row.get("command")
    text = f"user {count(row.get('uid'))}" if name is None else name_of(name)
    return f"{text} {pid}" if isinstance(pid, int) else text


def sends(row: Mapping[str, Any]) -> str:
    """What it sends: a tilde stands before an estimate."""
    if row.get("rate_source") == "unknown":
        return "unknown"
    return ("~" if row.get("rate_source") == "rest-of-class" else "") + rate(row.get("throughput_bits_per_s"))


def receives(row: Mapping[str, Any]) -> str:
    """What it receives."""
    received = row.get("received_bits_per_s")
    return "unknown" if received is None and row.get("protocol") == "udp" else rate(received)


def peer(row: Mapping[str, Any]) -> str:
    """With whom it talks, over how many connections."""
    shown = name_of(row["peer"]) if row.get("peer") is not None else f"UDP port {count(row.get('port'))}"
    connections = row.get("connections")
    return f"{shown}, {connections} connections" if isinstance(connections, int) and connections > 1 else shown


def _program(row: Mapping[str, Any]) -> RenderableType:
    of = name_of(row.get("class"))
    return Row(
        who(row),
        (f"{of:<{CLASS}}", f"{sends(row):>{COLUMN}}", f"{receives(row):>{COLUMN}}"),
        FIRST,
        peer(row),
        style="bold",
    )
