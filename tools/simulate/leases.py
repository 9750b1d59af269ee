"""What simulated brokers ask of each other: on its way, in force, and what was answered.

A receiver's holds arrive at the sender's broker one way later and are leases there; verdicts come back as late. What
is asked is said again with each decision, so a lease ends only where it is no longer asked for, or nobody decides.
Messages are neither lost nor held up by queues.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from broker.model.leases import Hold, HoldOutcome, Lease


@dataclass(order=True, frozen=True)
class _Message:
    """What one host says to another. Without a hold: of the leases asked for, this one is given back."""

    at_s: float
    number: int
    sender: int
    to: int
    said: Hold | HoldOutcome | None


@dataclass(frozen=True)
class _Kept:
    hold: Hold
    number: int
    since_s: float
    until_s: float


class Leases:
    """Of all hosts.

    Args:
        addresses: of the hosts, by number.
        way_s: one way from a host to another.
    """

    def __init__(self, addresses: Sequence[str], way_s: Callable[[int, int], float]) -> None:
        self._addresses, self._way_s = addresses, way_s
        self._host = {address: host for host, address in enumerate(addresses)}
        self._under_way: list[_Message] = []
        self._asked: dict[int, set[int]] = {}
        self._kept: dict[int, dict[int, _Kept]] = {}
        self._answers: dict[int, dict[str, HoldOutcome]] = {}
        self._messages = 0

    def ask(self, host: int, holds: Sequence[Hold], *, now_s: float) -> None:
        """A host wants these of their senders, and nothing else any more."""
        wanted = {self._host[hold.address]: hold for hold in holds}
        for other in sorted(self._asked.get(host, set()) | wanted.keys()):
            self._send(host, other, wanted.get(other), now_s=now_s)
        self._asked[host] = set(wanted)

    def answer(self, host: int, verdicts: Sequence[HoldOutcome], *, now_s: float) -> None:
        """A host says to each that asked what became of it."""
        for verdict in verdicts:
            self._send(host, self._host[verdict.address], verdict, now_s=now_s)

    def deliver(self, now_s: float) -> set[int]:
        """Take in what has arrived; the hosts that are held otherwise now, and should decide."""
        concerned = set()
        while self._under_way and self._under_way[0].at_s <= now_s:
            message = heapq.heappop(self._under_way)
            if isinstance(message.said, HoldOutcome):
                self._answers.setdefault(message.to, {})[self._addresses[message.sender]] = message.said
            elif self._take(message, now_s=now_s):
                concerned.add(message.to)
        return concerned

    def of(self, host: int, *, now_s: float) -> tuple[Lease, ...]:
        """What others have asked of a host and is in force."""
        return tuple(
            Lease(
                peer=self._addresses[asker],
                address=self._addresses[asker],
                number=kept.number,
                traffic_class=kept.hold.traffic_class,
                rate_bits_per_s=kept.hold.rate_bits_per_s,
                capacity_bits_per_s=kept.hold.capacity_bits_per_s,
                age_s=now_s - kept.since_s,
                remaining_s=kept.until_s - now_s,
            )
            for asker, kept in sorted(self._kept.get(host, {}).items())
            if kept.until_s > now_s
        )

    def verdict(self, host: int, address: str) -> HoldOutcome | None:
        """What the broker at an address said last to a host, while that asks; None before it has."""
        asked = self._host[address] in self._asked.get(host, ())
        return self._answers.get(host, {}).get(address) if asked else None

    def _send(self, host: int, to: int, said: Hold | HoldOutcome | None, *, now_s: float) -> None:
        self._messages += 1
        heapq.heappush(self._under_way, _Message(now_s + self._way_s(host, to), self._messages, host, to, said))

    def _take(self, message: _Message, *, now_s: float) -> bool:
        """Keep, renew or end a lease; whether that changes anything for its host."""
        kept = self._kept.setdefault(message.to, {})
        before = kept.get(message.sender)
        if not isinstance(message.said, Hold):
            return kept.pop(message.sender, None) is not None
        until_s = now_s + message.said.lease_s
        if before is not None and before.until_s > now_s and _same(before.hold, message.said):
            kept[message.sender] = replace(before, until_s=until_s)
            return False
        kept[message.sender] = _Kept(message.said, message.number, now_s, until_s)
        return True


def _same(first: Hold, second: Hold) -> bool:
    return (first.rate_bits_per_s, first.capacity_bits_per_s) == (second.rate_bits_per_s, second.capacity_bits_per_s)
