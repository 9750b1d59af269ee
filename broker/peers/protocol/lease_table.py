"""What other brokers have asked of us: the leases in force, and what keeps them from asking for too much.

Rules
- A lease belongs to a peer (the name in its certificate), an address (the connection's, proved and certified) and a
  class; a further ask for the same replaces it. It ends by itself at most `LEASE_S_MAX` after the latest ask.
- Numbers grow: an ask or a release whose number is not above all before it, from that peer and address, is stale. It
  was overtaken on its way, or somebody repeats it. Numbers are of one start of the peer's broker (its run); those of
  an earlier run are stale as soon as a later one has sent its hello.
- At most `PEERS_MAX` peers hold leases at once.
- Each change may have us decide at once, but no peer more than `SOON_PER_S` times a second, nor all together more than
  `SOON_OF_ALL_PER_S`: what changes beyond that is reported at the next tick.

No input or output, no clock: times come in as seconds of one monotonic clock.
"""

from __future__ import annotations

from dataclasses import dataclass

from msgspec import Struct

from broker.model.leases import LEASE_S_MAX, Lease
from broker.model.token_bucket import TokenBucket, TokenBuckets
from broker.peers.protocol.wire import Ask, Refusal, Release

PEERS_MAX = 64
"""Hosts of a site that one storage host serves at once; a lease costs the decision a leaf (`DESTINATION_LEAVES`)."""

SOON_PER_S, SOON_AT_ONCE = 20.0, 20.0
"""As of a user: a burst's begin and end ten times a second. A decision takes a few milliseconds."""
SOON_OF_ALL_PER_S, SOON_OF_ALL_AT_ONCE = 50.0, 50.0
"""A fifth of a core at most; peers whose bursts begin together share a decision."""


@dataclass
class _Run:
    """What is remembered of a peer at an address: which start of its broker, and its highest number so far."""

    run: bytes
    number: int = 0


class _Entry(Struct, frozen=True):
    ask: Ask
    began_s: float
    ends_s: float


class LeaseTable:
    """Leases of everybody. `changed` is for its owner to clear: what is in force is not what it was then, and that is
    worth a decision now."""

    def __init__(self) -> None:
        self.changed = False
        self._soon = TokenBuckets[str](per_s=SOON_PER_S, at_once=SOON_AT_ONCE, remembered=2 * PEERS_MAX)
        self._soon_of_all = TokenBucket(per_s=SOON_OF_ALL_PER_S, at_once=SOON_OF_ALL_AT_ONCE, now_s=0.0)
        self._runs: dict[tuple[str, str], _Run] = {}
        self._entries: dict[tuple[str, str, str], _Entry] = {}

    def met(self, peer: str, address: str, *, run: bytes) -> None:
        """A connection of a peer came up; a run that differs from the one before begins its numbers anew."""
        known = self._runs.get((peer, address))
        if known is None or known.run != run:
            self._runs[peer, address] = _Run(run)

    def left(self, peer: str, address: str) -> None:
        """The last connection of a peer from an address ended. Its leases stay until they run out."""
        self._runs.pop((peer, address), None)

    def ask(self, peer: str, address: str, ask: Ask, *, run: bytes, now_s: float) -> Refusal | None:
        """Enter an ask; why not, where it is not entered."""
        if not self._is_next(peer, address, run=run, number=ask.number):
            return Refusal.STALE
        self.expire(now_s=now_s)
        key = (peer, address, ask.traffic_class)
        before = self._entries.get(key)
        holders = {name for name, _, _ in self._entries}
        if peer not in holders and len(holders) >= PEERS_MAX:
            return Refusal.FULL
        began_s = now_s if before is None else before.began_s
        self._entries[key] = _Entry(ask, began_s, now_s + min(ask.lease_s, LEASE_S_MAX))
        if before is None or _terms(before.ask) != _terms(ask):
            self._note_change(peer, now_s)
        return None

    def release(self, peer: str, address: str, release: Release, *, run: bytes, now_s: float) -> None:
        """End a lease, unless the release is stale."""
        if not self._is_next(peer, address, run=run, number=release.number):
            return
        if self._entries.pop((peer, address, release.traffic_class), None) is not None:
            self._note_change(peer, now_s)

    def forget(self, peer: str, address: str, *, now_s: float) -> None:
        """End what a peer asked for from an address that it has left: nobody knows whose that is now."""
        for key in [key for key in self._entries if key[:2] == (peer, address)]:
            del self._entries[key]
            self._note_change(peer, now_s)

    def expire(self, *, now_s: float) -> None:
        """End what has run out."""
        for key in [key for key, entry in self._entries.items() if entry.ends_s <= now_s]:
            del self._entries[key]
            self._note_change(key[0], now_s)

    def leases(self, *, now_s: float) -> tuple[Lease, ...]:
        """What is in force, sorted by peer, address and class; `age_s` counts from the first of an unbroken row."""
        self.expire(now_s=now_s)
        return tuple(
            Lease(
                peer=peer,
                address=address,
                number=entry.ask.number,
                traffic_class=traffic_class,
                rate_bits_per_s=entry.ask.rate_bits_per_s,
                capacity_bits_per_s=entry.ask.capacity_bits_per_s,
                age_s=now_s - entry.began_s,
                remaining_s=entry.ends_s - now_s,
            )
            for (peer, address, traffic_class), entry in sorted(self._entries.items(), key=lambda item: item[0])
        )

    def _note_change(self, peer: str, now_s: float) -> None:
        if self.changed:  # reported with what changed before it
            return
        self.changed = self._soon.take(peer, now_s=now_s) and self._soon_of_all.take(now_s=now_s)

    def _is_next(self, peer: str, address: str, *, run: bytes, number: int) -> bool:
        known = self._runs.get((peer, address))
        if known is None or known.run != run or number <= known.number:
            return False
        known.number = number
        return True


def _terms(ask: Ask) -> tuple[int, int]:
    """What of an ask the decision looks at; the rest differs with each renewal."""
    return ask.rate_bits_per_s, ask.capacity_bits_per_s
