"""Which verdicts are worth an answer: each ask gets one, and whoever holds a lease is notified when its rate changes.

No input or output, no clock.
"""

from __future__ import annotations

from collections.abc import Sequence

from msgspec import Struct

from broker.model.leases import HoldOutcome, Lease
from broker.peers.protocol.wire import Answer

REPEAT_S = 0.1
"""Between two answers to the same ask: the rate of a lease may move with every tick."""
RATE_CHANGE = 0.05
"""A smaller change of the rate is not worth a message."""


class _Sent(Struct, frozen=True):
    verdict: HoldOutcome
    at_s: float


class Replies:
    """What was answered to the leases in force."""

    def __init__(self) -> None:
        self._sent: dict[tuple[str, str], _Sent] = {}

    def due(
        self, verdicts: Sequence[HoldOutcome], leases: Sequence[Lease], *, now_s: float
    ) -> list[tuple[Lease, Answer]]:
        """The answers to send now, each with the lease that it belongs to."""
        by_key = {(lease.peer, lease.address): lease for lease in leases}
        self._sent = {key: sent for key, sent in self._sent.items() if key in by_key}
        out = []
        for verdict in verdicts:
            key = (verdict.peer, verdict.address)
            lease, sent = by_key.get(key), self._sent.get(key)
            if lease is None or verdict.number > lease.number:
                continue
            if sent is not None and not _is_news(verdict, sent, now_s=now_s):
                continue
            self._sent[key] = _Sent(verdict, now_s)
            remaining_s = lease.remaining_s if verdict.granted else 0.0
            answer = Answer(verdict.number, verdict.granted, verdict.rate_bits_per_s, remaining_s, verdict.reason)
            out.append((lease, answer))
        return out


def _is_news(verdict: HoldOutcome, sent: _Sent, *, now_s: float) -> bool:
    before = sent.verdict
    if verdict.number != before.number or verdict.granted != before.granted:
        return True
    moved = abs(verdict.rate_bits_per_s - before.rate_bits_per_s) > RATE_CHANGE * before.rate_bits_per_s
    return now_s >= sent.at_s + REPEAT_S and (moved or verdict.reason.code != before.reason.code)
