"""How much of each peer is read: a few messages ahead, then as many as it may send. No input or output, no clock.

What is beyond that stays with the engine, whose flow control stops the peer: a flood costs the peer its own messages,
and us the few that are read.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable

from broker.model.token_bucket import TokenBucket

AHEAD = 8
MESSAGES_PER_S, MESSAGES_AT_ONCE = 50.0, 20.0
"""Of a peer: its ticks are ten a second, bursts begin and end between them, and each renewal is one message."""


class Reading:
    """Operations that are posted for the messages of each peer that is connected."""

    def __init__(self) -> None:
        self._allowances: dict[str, TokenBucket] = {}
        self._posts: dict[int, str] = {}

    def begin(self, peer: str, *, now_s: float) -> None:
        """A peer is connected."""
        if peer not in self._allowances:
            self._allowances[peer] = TokenBucket(per_s=MESSAGES_PER_S, at_once=MESSAGES_AT_ONCE, now_s=now_s)

    def end(self, peer: str) -> None:
        """A peer is connected no more, and what was posted for it fails."""
        self._allowances.pop(peer, None)
        self._posts = {operation: name for operation, name in self._posts.items() if name != peer}

    def done(self, operation: int) -> None:
        """A posted operation has ended."""
        self._posts.pop(operation, None)

    def go_on(self, post: Callable[[str], int | None], *, now_s: float) -> None:
        """Post for as many messages as each peer may send now."""
        posted = Counter(self._posts.values())
        for peer, allowance in self._allowances.items():
            for _ in range(AHEAD - posted[peer]):
                if not allowance.take(now_s=now_s):
                    break
                operation = post(peer)
                if operation is not None:
                    self._posts[operation] = peer
