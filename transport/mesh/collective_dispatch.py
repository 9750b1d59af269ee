"""Collectives that the engine carries out: whose they are, and what the engine has to know of ranks for it.

It is told which connections lead to a rank whenever that changes, and that a rank is gone a moment after that is known,
as receives fail (`transport.mesh.inbox`): what was sent before may still wait in the engine.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping

from transport.engine.base import Collective, CollectiveEnded, Collectives, Engine, Priority, StepFailed
from transport.mesh.inbox import GRACE_S
from transport.mesh.peers import PeerTable

StepEnd = Callable[[StepFailed], None]
CollectiveEnd = Callable[[CollectiveEnded], None]


class CollectiveDispatch:
    """The collectives of one rank that its engine carries out."""

    def __init__(self, peers: PeerTable) -> None:
        self._peers = peers
        self._engine: Collectives | None = None
        self._running: dict[int, tuple[Collective, StepEnd, CollectiveEnd]] = {}
        self._routes: dict[tuple[int, bool], tuple[int, ...]] = {}
        self._gone: set[int] = set()

    def begin(self, engine: Engine) -> None:
        """Use `engine`, where it carries out collectives."""
        self._engine = engine.collectives

    def takes(self, dtype: str, reduce_op: str | None) -> bool:
        """Whether the engine carries out collectives, and reduces values so (None: they are not reduced)."""
        return self._engine is not None and (reduce_op is None or self._engine.reduces(dtype, reduce_op))

    def name_of(self, rank: int) -> str:
        """As whom the engine knows a rank; "" of the own one."""
        peer = self._peers.peers.get(rank)
        return "" if peer is None else peer.name

    def start(self, collective: Collective, *, on_failed: StepEnd, on_ended: CollectiveEnd) -> int:
        """Have the engine carry one out; both are called in the loop's thread, `on_ended` once and last."""
        assert self._engine is not None, "takes() comes first"
        if collective.priority is Priority.BULK:
            for index, member in enumerate(collective.members):
                if index != collective.rank:
                    self._peers.want_bulk(member.rank)
        number = self._engine.start(collective)
        self._running[number] = collective, on_failed, on_ended
        return number

    def read_on(self, collective: int, *, missing_from: int) -> None:
        """As `Collectives.read_on`."""
        if self._engine is not None:
            self._engine.read_on(collective, missing_from=missing_from)

    def stop(self, collective: int) -> None:
        """End one early; `on_ended` is called when its buffers are free again."""
        if self._engine is not None:
            self._engine.stop(collective)

    def drain(self, timeout_s: float) -> bool:
        """As `Collectives.drain`. From any thread."""
        return self._engine is None or self._engine.drain(timeout_s)

    def progress(self, collective: int) -> tuple[int, Collection[int]]:
        """As `Collectives.progress`."""
        return (0, ()) if self._engine is None else self._engine.progress(collective)

    def failed(self, event: StepFailed) -> None:
        """A step of one failed."""
        collective, on_failed, _ = self._running.get(event.collective, (None, None, None))
        if collective is None or on_failed is None:
            return
        gone = self._peers.error(collective.members[event.peer].rank)
        if event.error is not None and gone is not None:
            event = StepFailed(event.collective, event.peer, event.length, gone, None)
        on_failed(event)

    def ended(self, event: CollectiveEnded) -> None:
        """One has ended."""
        collective, _, on_ended = self._running.pop(event.collective)
        if event.complete:
            for index, member in enumerate(collective.members):
                if index != collective.rank:
                    self._peers.delivered(member.rank, bulk=collective.priority is Priority.BULK)
        on_ended(event)

    def route(self, rank: int, *, bulk: bool) -> None:
        """Connections to a rank have come or gone."""
        connections = self._peers.routes(rank, bulk=bulk)
        if self._engine is not None and self._routes.get((rank, bulk), ()) != connections:
            self._routes[rank, bulk] = connections
            self._engine.route(rank, bulk=bulk, connections=connections)

    def tick(self, now_s: float, gone_s: Mapping[int, float]) -> float:
        """Tell of ranks that went at these times; returns when to be called next."""
        wake_s = float("inf")
        for rank, since_s in gone_s.items():
            if rank in self._gone:
                continue
            if now_s < since_s + GRACE_S:
                wake_s = min(wake_s, since_s + GRACE_S)
                continue
            self._gone.add(rank)
            if self._engine is not None:
                self._engine.gone(rank)
        return wake_s
