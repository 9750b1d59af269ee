"""How long the way to a peer takes, apart from the way back.

A round trip says that there is a queue, not on which way. In an all-reduce everybody sends at once, so acknowledgements
wait behind the peer's own data just when it matters. So while a broker listens, a rank asks each peer that it sends to,
ten times a second, what the peer's clock says; the answer minus our clock when we asked is the way there, plus a
constant that nobody knows (two clocks) and nobody needs: only its change means anything (LEDBAT, RFC 6817, section 2).
Two small control messages, about 2 KB/s each way and connection; the peer answers from memory of nothing.

Either message also carries the peer's clock when it left, and comes when it comes: that is the way towards us, plus the
same kind of constant, for nothing.
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

Say = Callable[[int, Mapping[str, object]], None]


@dataclass(frozen=True)
class OutboundDelay:
    """One measurement: seconds on the way plus an unknown constant, and when it was begun (monotonic)."""

    delay_s: float
    asked_s: float


@dataclass(frozen=True)
class InboundDelay:
    """One measurement of the way towards us: seconds plus an unknown constant, and when it came (monotonic)."""

    delay_s: float
    came_s: float


@dataclass
class _Peer:
    latest: OutboundDelay | None = None
    here: InboundDelay | None = None
    next_ask_s: float = 0.0
    answered_s: float = -math.inf
    unanswered: int = 0


class OneWayDelay:
    """What one rank knows of the delays to and from its peers. Used from the transport's thread."""

    def __init__(self, say: Say) -> None:
        self._say = say
        self._peers: dict[int, _Peer] = {}

    def ask(self, ranks: Iterable[int], now_s: float) -> None:
        """Ask peers, the most important first, those whose turn it is."""
        for rank in list(ranks)[:PEERS_MAX]:
            peer = self._peers.setdefault(rank, _Peer())
            if now_s < peer.next_ask_s:
                continue
            peer.next_ask_s = now_s + (ASK_S if peer.unanswered < UNANSWERED_MAX else SLOW_ASK_S) - 0.005
            peer.unanswered += 1
            self._say(rank, {"op": "when", "at": now_s})

    def asked(self, rank: int, at: float, now_s: float) -> None:
        """A peer asks: answer with what it said and our clock."""
        peer = self._peers.setdefault(rank, _Peer())
        if not _is_clock(at):
            return
        peer.here = InboundDelay(now_s - at, now_s)
        if now_s - peer.answered_s >= ANSWER_S_MIN:
            peer.answered_s = now_s
            self._say(rank, {"op": "then", "at": at, "here": now_s})

    def answered(self, rank: int, at: float, here: float, now_s: float) -> None:
        """A peer answered. What we cannot have asked, or what is older than what we know, is ignored."""
        peer = self._peers.get(rank)
        if peer is None or not peer.unanswered or not _is_clock(here) or not now_s - 60.0 <= at <= now_s:
            return
        peer.unanswered = 0
        peer.here = InboundDelay(now_s - here, now_s)
        if peer.latest is None or at > peer.latest.asked_s:
            peer.latest = OutboundDelay(here - at, at)

    def latest(self, rank: int) -> OutboundDelay | None:
        """The last measurement to a peer."""
        peer = self._peers.get(rank)
        return None if peer is None else peer.latest

    def towards_us(self, rank: int) -> InboundDelay | None:
        """The last measurement from a peer."""
        peer = self._peers.get(rank)
        return None if peer is None else peer.here

    def forget(self, rank: int) -> None:
        """A peer is gone."""
        self._peers.pop(rank, None)


def _is_clock(shown_s: float) -> bool:
    return abs(shown_s) <= CLOCK_S_MAX  # and not NaN
