"""Programs or connections by their rates, for `hive-qos top`. Pure.

programs      a row a program, class, protocol and peer, as the broker adds them up
connections   a row each, with its round trip
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from rich.console import Console, Group, RenderableType
from rich.text import Text

from broker.cli.show.program_table import CLASS, UNKNOWN, peer, receives, sends, who
from broker.cli.show.screen import COLUMN, Row, code_of, items, name_of, number, rate

SORTS: Mapping[str, tuple[str, ...]] = {
    "both": ("throughput_bits_per_s", "received_bits_per_s"),
    "sends": ("throughput_bits_per_s",),
    "receives": ("received_bits_per_s",),
}
"""What each order adds up, the largest first."""
FIRST = (1, 2, 0, 3)
"""Of a row's cells, where room is short: sends, receives, class, then what limits or the round trip."""
LIMIT = 11
"""Width of what limits ("processor") and of a round trip."""
SHOWN = 20
"""Rows in a pipe, where nobody says how many."""
FRAME = 5
"""Lines around the rows: two of a head, two of a foot, and the prompt."""


@dataclass(frozen=True)
class View:
    """What is asked for. `shown` is how many rows, None as many as there is room for."""

    connections: bool = False
    sort: str = "both"
    shown: int | None = None


def rows_of(document: Mapping[str, Any], view: View) -> list[Mapping[str, Any]]:
    """All rows that are known, in their order."""
    if view.connections:
        found = [one for one in items(document, "flows") if one.get("kind") in ("tcp", "connection", "udp")]
    else:
        found = items(document, "programs")
    return sorted(found, key=lambda row: (-sum(number(row.get(key)) for key in SORTS[view.sort]), who(row)))


def render(document: Mapping[str, Any], view: View, console: Console) -> RenderableType:
    """A head, the rows, and what is not shown."""
    rows = rows_of(document, view)
    room = max(1, console.height - FRAME) if console.is_terminal else SHOWN
    shown = rows[: view.shown if view.shown is not None else room]
    limits = _limits(document)
    fourth, of = ("round trip", _connection) if view.connections else ("limited by", _program)
    parts: list[RenderableType] = [
        _head(document, view),
        _row("connection" if view.connections else "program", "class", "sends", "receives", fourth, "peer", style=""),
        *(of(row, limits) for row in shown),
    ]
    if not rows:
        parts.append(Text("nobody sends or receives"))
    foot = _foot(document, view, rows=len(rows), shown=len(shown))
    if any(row.get("rate_source") == "unknown" for row in shown) and not foot:
        foot = UNKNOWN
    return Group(*parts, Text(foot)) if foot else Group(*parts)


def _head(document: Mapping[str, Any], view: View) -> Text:
    """Who, how much in all, whether something is wrong, and in which order the rows stand."""
    sends = sum(
        number(one.get("throughput_bits_per_s"))
        for link in items(document, "interfaces")
        if link.get("direction") == "egress"
        for one in items(link, "classes")
    )
    alarms = len(items(document, "alarms"))
    wrong = "no alarms" if not alarms else f"! {alarms} alarm{'s' if alarms > 1 else ''}: hive-qos status"
    order = "sends and receives" if view.sort == "both" else view.sort
    return Text.assemble(
        (name_of(document.get("host")), "bold"), f": sends {rate(int(sends))}, by {order}, ",
        (wrong, "bold red" if alarms else "green"),
    )  # fmt: skip


def _foot(document: Mapping[str, Any], view: View, *, rows: int, shown: int) -> str:
    """What is left out here, and what the broker itself does not follow."""
    total = document.get("flows_total" if view.connections else "programs_total")
    more = (total if isinstance(total, int) and not view.connections else rows) - shown
    text = f"and {more:,} more" if more > 0 else ""
    tcp, followed = document.get("tcp_connections"), sum(one.get("kind") == "tcp" for one in items(document, "flows"))
    if isinstance(tcp, int) and tcp > followed:
        known = f"the broker follows {followed:,} of {tcp:,} TCP connections: those that carry most"
        text = f"{text}; {known}" if text else known
    return text


def _program(row: Mapping[str, Any], limits: Mapping[tuple[object, object], str]) -> Row:
    limit = limits.get(("pid", row.get("pid"))) or limits.get(("class", row.get("class")), "-")
    return _row(who(row), name_of(row.get("class")), sends(row), receives(row), limit, peer(row))


def _connection(row: Mapping[str, Any], limits: Mapping[tuple[object, object], str]) -> Row:
    uncounted = row.get("kind") == "udp"
    rtt_s = row.get("rtt_s")
    rtt = f"{1000 * rtt_s:.3g} ms" if isinstance(rtt_s, (int, float)) else "-"
    far = name_of(row.get("flow")).rpartition("/")[2] if row.get("peer") else name_of(row.get("local"))
    rates = (rate(row.get(key)) for key in ("throughput_bits_per_s", "received_bits_per_s"))
    sent, received = ("unknown", "unknown") if uncounted else rates
    return _row(who(row), name_of(row.get("class")), sent, received, rtt, far)


def _row(name: str, of: str, sent: str, received: str, fourth: str, far: str, *, style: str = "bold") -> Row:
    cells = f"{of:<{CLASS}}", f"{sent:>{COLUMN}}", f"{received:>{COLUMN}}", f"{fourth:>{LIMIT}}"
    return Row(name, cells, FIRST, far, style, one_line=True)


def _limits(document: Mapping[str, Any]) -> dict[tuple[object, object], str]:
    """What limits the busiest place of each class, and each process that has a job."""
    found: dict[tuple[object, object], str] = {}
    entries = [one for link in items(document, "interfaces") for one in items(link, "classes") if one.get("limited_by")]
    for one in sorted(entries, key=lambda one: number(one.get("throughput_bits_per_s"))):
        found["class", one.get("name")] = code_of(one.get("limited_by"))
    jobs = {(one.get("uid"), one.get("job")): items(one, "shares") for one in items(document, "jobs")}
    for session in items(document, "sessions"):
        shares = jobs.get((session.get("uid"), session.get("job")), [])
        for share in sorted(shares, key=lambda one: number(one.get("throughput_bits_per_s"))):
            found["pid", session.get("pid")] = code_of(share.get("limited_by"))
    return found
