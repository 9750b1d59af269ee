"""Round trips to other brokers, and how old the last one may be: the engine says which was the last, not when it was.

A figure that was another at the look before was measured since then. So it counts from there: one that was measured
while a queue was being drained is not taken for one of afterwards (`broker.law.capacity.inbound_delay`).
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from broker.peers.peer_status import PeerStatus

MEASURE_S = 0.1
"""A round trip is new with every message that goes: at least five a second while storage is held, one a second else.
How old one may be is known to this: a tick."""


class PeerRtt(NamedTuple):
    """The least and the last round trip to a broker, and the earliest time at which the last may have been measured."""

    least_s: float
    last_s: float
    since_s: float


class PeerRtts:
    """By address, as of the last look. For one thread; times come in."""

    def __init__(self) -> None:
        self._trips: dict[str, PeerRtt] = {}
        self._looked_s = float("-inf")

    def is_due(self, *, now_s: float) -> bool:
        """Whether the last look is long enough ago."""
        return now_s - self._looked_s >= MEASURE_S

    def look(self, peers: Iterable[PeerStatus], *, now_s: float) -> None:
        """Take in what the connections to all brokers say now."""
        before_s, self._looked_s = self._looked_s, now_s
        known, self._trips = self._trips, {}
        for peer in peers:
            if peer.rtt_s_min is None or peer.rtt_latest_s is None:
                continue
            before = known.get(peer.address)
            if before is None:  # the first says nothing yet: it is what later ones are compared with
                before = PeerRtt(peer.rtt_s_min, peer.rtt_latest_s, now_s)
            since_s = before.since_s if before.last_s == peer.rtt_latest_s else before_s
            self._trips[peer.address] = PeerRtt(peer.rtt_s_min, peer.rtt_latest_s, since_s)

    def get(self, address: str) -> PeerRtt | None:
        """Of one broker; None where there is no connection to one."""
        return self._trips.get(address)
