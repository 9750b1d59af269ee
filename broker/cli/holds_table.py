"""What brokers ask of each other, as tables: what we ask, what is asked of us, and who they are. As `status_table`."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from rich import box
from rich.console import RenderableType
from rich.table import Table
from rich.text import Text

from hive_qos.text import printable
from hive_qos.units import format_rate

SHOWN_MAX = 20
"""Of each kind: what fits on a screen. `--json` has all."""


def render_holds(document: Mapping[str, Any]) -> list[RenderableType]:
    """The tables of holds, leases and peers; nothing where there is none of them."""
    parts: list[RenderableType] = []
    holds, leases, peers = (_items(document, key) for key in ("holds", "leases", "peers"))
    if holds:
        parts += [Text(""), _rates(holds, "asked of", "address")]
    if leases:
        parts += [Text(""), _rates(leases, "asked of us by", "peer")]
    if peers:
        parts += [Text(""), _peers(peers)]
    return parts


def _rates(entries: list[Mapping[str, Any]], title: str, who: str) -> Table:
    table = Table(box=box.SIMPLE_HEAD, padding=(0, 0, 0, 1), pad_edge=False)
    table.add_column(title, overflow="fold")
    for name in ("class", "asked", "granted"):
        table.add_column(name, justify="right", no_wrap=True)
    table.add_column("why", overflow="fold")
    for entry in entries[:SHOWN_MAX]:
        said = entry.get("verdict") if isinstance(entry.get("verdict"), Mapping) else entry.get("reason")
        granted = _rate(entry.get("granted_bits_per_s")) if entry.get("granted") is not False else "refused"
        table.add_row(
            Text(printable(str(entry.get(who, "?"))), style="bold"),
            Text(printable(str(entry.get("class", "?")))),
            _rate(entry.get("rate_bits_per_s")),
            granted,
            Text(printable(str(said.get("text", "")) if isinstance(said, Mapping) else "", length_max=300)),
        )
    _say_more(table, entries)
    return table


def _peers(peers: list[Mapping[str, Any]]) -> Table:
    table = Table(box=box.SIMPLE_HEAD, padding=(0, 0, 0, 1), pad_edge=False)
    table.add_column("other brokers", overflow="fold")
    table.add_column("address", no_wrap=True)
    table.add_column("round trip", justify="right", no_wrap=True)
    table.add_column("state", overflow="fold")
    for peer in peers[:SHOWN_MAX]:
        rtt_s = peer.get("rtt_s")
        table.add_row(
            Text(printable(str(peer.get("peer") or "?")), style="bold"),
            Text(printable(str(peer.get("address", "?")))),
            f"{1000 * rtt_s:.1f} ms" if isinstance(rtt_s, (int, float)) else "-",
            Text(printable(str(peer.get("state", "?")), length_max=300)),
        )
    _say_more(table, peers)
    return table


def _say_more(table: Table, entries: list[Mapping[str, Any]]) -> None:
    if len(entries) > SHOWN_MAX:
        table.caption = f"and {len(entries) - SHOWN_MAX} more; --json has them"


def _items(document: Mapping[str, Any], key: str) -> list[Mapping[str, Any]]:
    value = document.get(key)
    return [item for item in value if isinstance(item, Mapping)] if isinstance(value, list) else []


def _rate(value: object) -> str:
    return format_rate(value) if isinstance(value, (int, float)) else "-"
