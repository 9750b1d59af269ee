"""Receives from ranks that have not ended. The engine matches them with messages; the inbox decides when they fail.

- One whose connection was lost is posted again: the next connection brings the message, or has brought it.
- From a rank that is gone it fails after `GRACE_S`, because what was sent before may still wait in the engine.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from hive_qos.errors import ConnectionLostError, HiveError, TransportError
from transport.engine.base import Buffer, Engine, OperationFailed, Received
from transport.mesh.peers import PeerTable
from transport.wire.header import MatchKey

_log = logging.getLogger("transport.mesh.inbox")

GRACE_S = 0.3
"""Grace period before receives from a rank that is gone fail. The engine reports what it holds in milliseconds."""

ReceiveEnd = Callable[[Received | None, TransportError | None], None]


def drop(_received: Received | None, _error: TransportError | None) -> None:
    """The end of what nobody wants."""


@dataclass(eq=False)
class Receiving:
    """A receive that has not ended."""

    rank: int
    key: MatchKey
    buffer: Buffer | None
    on_end: ReceiveEnd
    posted_s: float
    operation: int = 0
    cancelled: TransportError | None = None

    def tell(self, received: Received | None, error: TransportError | None) -> None:
        """Call `on_end`, once. What both hold of the caller's memory is let go: they may know each other."""
        on_end, self.on_end, self.buffer = self.on_end, drop, None
        on_end(received, error)


class Inbox:
    """The receives of one rank, from all others."""

    def __init__(self, peers: PeerTable) -> None:
        self._peers = peers
        self._open: dict[int, Receiving] = {}
        self._from_rank: dict[int, set[int]] = {}

    def post(self, engine: Engine, receiving: Receiving) -> None:
        """Have the engine take the next message for it."""
        name = self._peers.peers[receiving.rank].name
        receiving.operation = engine.post(name, receiving.key, receiving.buffer)
        self._open[receiving.operation] = receiving
        self._from_rank.setdefault(receiving.rank, set()).add(receiving.operation)

    def cancel(self, engine: Engine, receiving: Receiving, error: TransportError) -> None:
        """End it early; its `on_end` is called with `error` when its buffer is free again."""
        if receiving.operation in self._open:
            receiving.cancelled = error
            engine.cancel(receiving.operation)

    def received(self, event: Received) -> None:
        """One has its message."""
        receiving = self._take(event.operation)
        if receiving is not None:
            self._peers.delivered(receiving.rank, bulk=False)
            receiving.tell(event, None)

    def failed(self, engine: Engine, event: OperationFailed, *, closing: bool) -> None:
        """The engine gave one up."""
        receiving = self._take(event.operation)
        if receiving is None:
            return
        lost = isinstance(event.error, ConnectionLostError)
        gone = self._peers.error(receiving.rank)
        error = receiving.cancelled or gone or event.error
        if lost and receiving.cancelled is None and gone is None and not closing:
            try:
                self.post(engine, receiving)
                return
            except HiveError as failure:  # the engine has ended: nobody would hear of this receive again
                _log.warning("a receive cannot be posted again: %s", failure)
        receiving.tell(None, error)

    def tick(self, engine: Engine, now_s: float, gone_s: Mapping[int, float]) -> float:
        """Fail what is due of ranks that went at these times; returns when to be called next."""
        wake_s = float("inf")
        for rank, since_s in gone_s.items():
            error = self._peers.error(rank)
            assert error is not None, "who is gone does not come back"
            for operation in tuple(self._from_rank.get(rank, ())):
                receiving = self._open[operation]
                if receiving.cancelled is not None:
                    continue
                due_s = max(since_s, receiving.posted_s) + GRACE_S
                if now_s >= due_s:
                    self.cancel(engine, receiving, error)
                else:
                    wake_s = min(wake_s, due_s)
        return wake_s

    def _take(self, operation: int) -> Receiving | None:
        receiving = self._open.pop(operation, None)
        if receiving is not None:
            self._from_rank[receiving.rank].discard(operation)
        return receiving
