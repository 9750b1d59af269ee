"""What brokers ask of each other: what we ask, what is asked of us, and who they are. As `status_table`."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from rich.console import RenderableType
from rich.text import Text

from broker.cli.show.screen import COLUMN, NOTE_LENGTH_MAX, Note, Row, items, line, rate, reason_text
from hive_qos.text import printable

SHOWN_MAX = 20
"""Of each kind: what fits on a screen. `--json` has all."""
RATES_FIRST = (1, 2, 0)
"""Of their cells, where room is short: most and granted, then the class."""
PEER_WIDTH = 46
"""Of address and state beside name and round trip; a longer state has lines of its own."""


def render_holds(document: Mapping[str, Any], *, shown_max: int = SHOWN_MAX) -> list[RenderableType]:
    """Holds, leases and peers; nothing where there is none of them."""
    parts: list[RenderableType] = []
    holds, leases, peers = (items(document, key) for key in ("holds", "leases", "peers"))
    if holds:
        parts += [Text(""), *_rates(holds, "asked of", "address", shown_max)]
    if leases:
        parts += [Text(""), *_rates(leases, "asked of us by", "peer", shown_max)]
    if peers:
        parts += [Text(""), *_peers(peers, shown_max)]
    return parts


def _rates(entries: list[Mapping[str, Any]], title: str, who: str, shown_max: int) -> list[RenderableType]:
    """Who, at most how much of which class, what was granted of it, and why."""
    parts: list[RenderableType] = [line(title, "class", "at most", "granted", first=RATES_FIRST)]
    for entry in entries[:shown_max]:
        verdict = entry.get("verdict")
        granted = rate(entry.get("granted_bits_per_s")) if entry.get("granted") is not False else "refused"
        name, of = printable(str(entry.get(who, "?"))), printable(str(entry.get("class", "?")))
        parts.append(line(name, of, rate(entry.get("rate_bits_per_s")), granted, style="bold", first=RATES_FIRST))
        cause = verdict if isinstance(verdict, Mapping) else entry.get("reason")
        if (text := reason_text(cause)) and not (isinstance(cause, Mapping) and cause.get("code") == "held-for-peer"):
            parts.append(Note(text))
    return [*parts, *_more(entries, shown_max)]


def _peers(peers: list[Mapping[str, Any]], shown_max: int) -> list[RenderableType]:
    """Name, round trip, address and state; the state of one that cannot be reached is a sentence."""
    parts: list[RenderableType] = [Row("other brokers", (f"{'round trip':>{COLUMN}}",), (0,), "address")]
    for peer in peers[:shown_max]:
        rtt_s = peer.get("rtt_s")
        rtt = f"{1000 * rtt_s:.1f} ms" if isinstance(rtt_s, (int, float)) else "-"
        address = printable(str(peer.get("address", "?")))
        state = printable(str(peer.get("state", "?")), length_max=NOTE_LENGTH_MAX)
        name = printable(str(peer["peer"])) if peer.get("peer") else "not known yet"
        fits = len(address) + len(state) <= PEER_WIDTH
        where = f"{address}: {state}" if fits else address
        parts.append(Row(name, (f"{rtt:>{COLUMN}}",), (0,), where, style="bold"))
        if not fits:
            parts.append(Note(state))
    return [*parts, *_more(peers, shown_max)]


def _more(entries: list[Mapping[str, Any]], shown_max: int) -> list[RenderableType]:
    more = len(entries) - shown_max
    return [Text(f"and {more} more: hive-qos status --json")] if more > 0 else []
