"""Check on our own connection whether a rank is lost that another rank calls lost (a suspicion, as in SWIM).

- A rank without a connection to us is lost.
- To one with a connection we send a message. Its acknowledgement shows that the rank lives. Whoever called it lost has
  lost it alone, or lies. The end of our connection shows that it is lost.
- After `CHECK_S` a connection that is still up counts as alive, because engines end silent ones.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

from hive_qos.errors import TransportError
from transport.engine.base import DEAD_AFTER_S
from transport.mesh.peers import PeerTable, Phase

CHECK_S = DEAD_AFTER_S + 1.0
WAITING_MAX = 1024
"""Checks of one rank that wait for its answer; timeouts end those beyond."""

Control = Callable[[int, Mapping[str, object], Callable[[TransportError | None], None]], None]


class LivenessCheck:
    """Checks of ranks that wait for the answer. Runs in the transport's thread.

    Args:
        control: sends a small message to a rank; calls back when it was acknowledged, or will not be.
    """

    def __init__(self, peers: PeerTable, control: Control) -> None:
        self._peers = peers
        self._control = control
        self._waiting: dict[int, list[Callable[[bool], None]]] = {}
        self._until_s: dict[int, float] = {}

    def check(self, rank: int, then: Callable[[bool], None], *, now_s: float) -> None:
        """Another rank says that `rank` is lost. Call `then(lost)` with what is so for us: now, or when we know."""
        if self._peers.peers[rank].phase is not Phase.UP:
            then(True)
            return
        asked = self._waiting.setdefault(rank, [])
        if len(asked) < WAITING_MAX:
            asked.append(then)
        if len(asked) == 1:
            self._until_s[rank] = now_s + CHECK_S
            self._control(rank, {"op": "alive"}, lambda error: self._answer(rank, lost=error is not None))

    @property
    def is_checking(self) -> bool:
        """Whether it is not known yet of some rank."""
        return bool(self._waiting)

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
