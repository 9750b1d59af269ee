"""One-way delay to and from each peer, up to a constant (LEDBAT, RFC 6817, section 2).

A round trip shows a queue, but not in which direction. In an all-reduce everybody sends at once, so acknowledgements
wait behind the peer's own data just when it matters. So while a broker listens, a rank asks each peer that it sends to
for the peer's clock, ten times a second. The answer minus our clock at the question is the delay to the peer, plus the
offset of two clocks. Nobody knows that offset, and nobody needs it: only changes mean anything. That costs two small
control messages, about 2 KB/s each way and connection.

Either message also carries the peer's clock when it left. Our clock at its arrival minus that is the delay towards us,
with an offset alike.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass

ASK_S = 0.1
"""The broker decides ten times a second."""
ANSWER_S_MIN = 0.03
"""A peer that asks more often than three times as often as we do is not answered each time."""
UNANSWERED_MAX, SLOW_ASK_S = 8, 1.0
"""A peer that does not answer is asked once a second: what is asked waits in memory until it is acknowledged."""
PEERS_MAX = 8
"""At once; those that we send most to. A ring has two, and more say nothing new about one uplink."""
CLOCK_S_MAX = 1e9
"""Thirty years: a clock that shows more counts something else, and what it makes the way cannot be reported."""

SendControl = Callable[[int, Mapping[str, object]], None]


@dataclass(frozen=True)
class OutboundDelay:
    """Delay to a peer in seconds plus an unknown constant, and when it was asked for (monotonic)."""

    delay_s: float
    asked_s: float


@dataclass(frozen=True)
class InboundDelay:
    """Delay from a peer in seconds plus an unknown constant, and when it was received (monotonic)."""

    delay_s: float
    received_s: float


@dataclass
class _Peer:
    outbound: OutboundDelay | None = None
    inbound: InboundDelay | None = None
    next_ask_s: float = 0.0
    answered_s: float = -math.inf
    unanswered: int = 0


class OneWayDelay:
    """What one rank knows of the delays to and from its peers. Used from the transport's thread."""

    def __init__(self, send_control: SendControl) -> None:
        self._send_control = send_control
        self._peers: dict[int, _Peer] = {}

    def ask(self, ranks: Iterable[int], now_s: float) -> None:
        """Ask peers, the most important first, those whose turn it is."""
        for rank in list(ranks)[:PEERS_MAX]:
            peer = self._peers.setdefault(rank, _Peer())
            if now_s < peer.next_ask_s:
                continue
            peer.next_ask_s = now_s + (ASK_S if peer.unanswered < UNANSWERED_MAX else SLOW_ASK_S) - 0.005
            peer.unanswered += 1
            self._send_control(rank, {"op": "when", "at": now_s})

    def asked(self, rank: int, at: float, now_s: float) -> None:
        """A peer asks: answer with what it said and our clock."""
        peer = self._peers.setdefault(rank, _Peer())
        if not _is_clock(at):
            return
        peer.inbound = InboundDelay(now_s - at, now_s)
        if now_s - peer.answered_s >= ANSWER_S_MIN:
            peer.answered_s = now_s
            self._send_control(rank, {"op": "then", "at": at, "here": now_s})

    def answered(self, rank: int, at: float, here: float, now_s: float) -> None:
        """A peer answered. What we cannot have asked, or what is older than what we know, is ignored."""
        peer = self._peers.get(rank)
        if peer is None or not peer.unanswered or not _is_clock(here) or not now_s - 60.0 <= at <= now_s:
            return
        peer.unanswered = 0
        peer.inbound = InboundDelay(now_s - here, now_s)
        if peer.outbound is None or at > peer.outbound.asked_s:
            peer.outbound = OutboundDelay(here - at, at)

    def outbound(self, rank: int) -> OutboundDelay | None:
        """The last measurement to a peer."""
        peer = self._peers.get(rank)
        return None if peer is None else peer.outbound

    def inbound(self, rank: int) -> InboundDelay | None:
        """The last measurement from a peer."""
        peer = self._peers.get(rank)
        return None if peer is None else peer.inbound

    def forget(self, rank: int) -> None:
        """A peer is gone."""
        self._peers.pop(rank, None)


def _is_clock(shown_s: float) -> bool:
    return abs(shown_s) <= CLOCK_S_MAX  # and not NaN
