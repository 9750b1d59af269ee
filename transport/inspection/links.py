"""What a rank measured of its connections, as a document has it: one row for each other rank."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from transport.engine.base import ConnectionStatistics

LINKS_MAX = 256
"""Rows of 150 bytes, which some ten control messages carry. Of more links those with the longest round trips."""


def rows(connections: Iterable[tuple[int, ConnectionStatistics]]) -> list[dict[str, object]]:
    """A row for each rank, in rank order; where there are too many, of those with the longest round trips.

    Args:
        connections: by the rank that they lead to; a rank may have several.
    """
    by_rank: dict[int, list[ConnectionStatistics]] = {}
    for rank, one in connections:
        by_rank.setdefault(rank, []).append(one)
    slowest = sorted(by_rank, key=lambda rank: -min(one.rtt_s for one in by_rank[rank]))[:LINKS_MAX]
    return [_row(rank, by_rank[rank]) for rank in sorted(slowest)]


def totals(connections: Iterable[tuple[int, ConnectionStatistics]]) -> Mapping[str, int]:
    """Bytes over all connections that live, since each came up."""
    found = [one for _, one in connections]
    return {
        "sent_bytes": sum(one.sent_bytes for one in found),
        "received_bytes": sum(one.received_bytes + one.shared_received_bytes for one in found),
        "shared_bytes": sum(one.shared_sent_bytes for one in found),  # sent through memory, beside
    }


def _row(rank: int, connections: list[ConnectionStatistics]) -> dict[str, object]:
    sent = sum(one.sent_packets for one in connections)
    lost = sum(one.lost_packets for one in connections)
    return {
        "rank": rank,
        "rate_bits_per_s": sum(one.delivery_rate_bits_per_s for one in connections),
        "application_limited": all(one.application_limited for one in connections),
        "rtt_s": round(min(one.rtt_s for one in connections), 6),
        "loss": round(lost / sent, 6) if sent else 0.0,
        "sent_bytes": sum(one.sent_bytes + one.shared_sent_bytes for one in connections),
    }
