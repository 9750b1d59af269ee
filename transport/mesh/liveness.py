"""What others say of a rank, that it is lost, is held against our own connection to it.

- To a rank that we have no connection to: it is so.
- To a rank that we are connected to we send a message. Its acknowledgement says that it lives: whoever spoke has lost
  it, or lies, and we do not know which. The end of our own connection says that it is lost.
- A connection that is up after `LISTEN_S` all the same is one that was heard: engines end those that are silent.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping

from hive_qos.errors import TransportError
from transport.engine.base import DEAD_AFTER_S
from transport.mesh.peers import PeerTable, Phase

LISTEN_S = DEAD_AFTER_S + 1.0
WAITING_MAX = 1024
"""Questions about one rank that wait for its answer; what is asked beyond that is left to timeouts."""

Control = Callable[[int, Mapping[str, object], Callable[[TransportError | None], None]], None]
_log = logging.getLogger("transport.collectives")


class LivenessCheck:
    """Questions whether a rank is lost that wait for the answer. Runs in the transport's thread.

    Args:
        control: sends a small message to a rank; calls back when it was acknowledged, or will not be.
    """

    def __init__(self, peers: PeerTable, control: Control) -> None:
        self._peers = peers
        self._control = control
        self._waiting: dict[int, list[Callable[[bool], None]]] = {}
        self._until_s: dict[int, float] = {}

    def check(self, rank: int, then: Callable[[bool], None], *, now_s: float) -> None:
        """Somebody says that `rank` is lost. `then` is told whether it is to us, too: now, or when we know."""
        if self._peers.peers[rank].phase is not Phase.UP:
            then(True)
            return
        asked = self._waiting.setdefault(rank, [])
        if len(asked) < WAITING_MAX:
            asked.append(then)
        if len(asked) == 1:
            self._until_s[rank] = now_s + LISTEN_S
            self._control(rank, {"op": "alive"}, lambda error: self._answer(rank, lost=error is not None))

    def down(self, rank: int) -> None:
        """Our connection to a rank has ended."""
        if self._peers.peers[rank].phase is not Phase.UP:
            self._answer(rank, lost=True)

    def tick(self, now_s: float) -> float:
        """Answer what has waited long enough; returns when to be called next."""
        for rank in [rank for rank, until_s in self._until_s.items() if now_s >= until_s]:
            self._answer(rank, lost=False)
        return min(self._until_s.values(), default=float("inf"))

    def _answer(self, rank: int, *, lost: bool) -> None:
        self._until_s.pop(rank, None)
        for then in self._waiting.pop(rank, []):
            then(lost)
