"""Sends to ranks that have not ended: when the engine gets them, over which connection, and how each ends.

- A send waits in the peer's outbox until not too much is in flight to it. It is done when the peer's stack has
  acknowledged it.
- Where several links lead to the peer, each message takes the one over which it is through first.
- What was not acknowledged when its connection was lost is sent again over the next one.
- What the peer has no place for yet it asks to have held back: those messages wait, and no others.
- When a rank is gone, every send to it that the engine does not have yet fails at once. After a goodbye, one in flight
  fails after `GRACE_S`: the peer may have taken it, and its acknowledgement may come after the goodbye.
"""

from __future__ import annotations

import functools
import logging
import time
from collections.abc import Callable, Mapping

from hive_qos.errors import ConnectionLostError, TransportError
from transport.engine.base import Engine, Hold
from transport.mesh.holds import Holds
from transport.mesh.inbox import GRACE_S
from transport.mesh.outbox import AHEAD, Outbox, Sending
from transport.mesh.path_choice import PathLoads
from transport.mesh.peers import PeerTable, Phase

RTT_VALID_S = 0.1

_log = logging.getLogger("transport.mesh.send_dispatch")


class SendDispatch:
    """The sends of one rank, to all others."""

    def __init__(self, peers: PeerTable) -> None:
        self._peers = peers
        self._outboxes: dict[tuple[int, bool], Outbox] = {}
        self._open: dict[int, Sending] = {}
        self._later: list[Callable[[], None]] = []
        self._engine: Engine | None = None
        self._loads = PathLoads(self._round_trips)
        self._holds = Holds()
        self._rtt_s: dict[int, float] = {}
        self._rtt_until_s = 0.0

    def begin(self, engine: Engine) -> None:
        """Use `engine`."""
        self._engine = engine

    def forget(self, connection: int) -> None:
        """It has ended, and with it what was under way there."""
        self._loads.forget(connection)
        if self._holds.forget(connection):
            self._sort_out()

    def hold(self, hold: Hold) -> None:
        """A receiver asks that messages wait, or go on."""
        if self._peers.rank_of(hold.connection) is not None and self._holds.heard(hold):
            self._sort_out()

    def _sort_out(self) -> None:
        for (rank, bulk), outbox in self._outboxes.items():
            connections = self._peers.routes(rank, bulk=bulk)
            outbox.sort_out(self._holds.count(connections), functools.partial(self._holds.hold, connections))
            self.pump(rank, bulk=bulk)

    def _round_trips(self, now_s: float) -> Mapping[int, float]:
        """The shortest of each connection; engines tell them ten times a second."""
        if now_s >= self._rtt_until_s:
            self._rtt_until_s = now_s + RTT_VALID_S
            self._rtt_s = {number: one.rtt_s_min for number, one in self._need_engine().statistics().items()}
        return self._rtt_s

    def send(self, sending: Sending, order: tuple[int, int]) -> None:
        """Begin one, behind those of smaller (priority, order)."""
        error = self._peers.error(sending.rank)
        if error is not None:
            self._end_later(sending, error)
            return
        if sending.bulk:
            self._peers.want_bulk(sending.rank)
        self._enqueue(sending, order)
        self.pump(sending.rank, bulk=sending.bulk)

    def cancel(self, sending: Sending, error: TransportError) -> None:
        """End one early; its `on_end` is called with `error` when its buffer is free again."""
        if sending.operation is None:
            self._end_later(sending, error)
        elif sending.operation in self._open:
            sending.cancelled = error
            self._need_engine().cancel(sending.operation)

    def pump(self, rank: int, *, bulk: bool) -> None:
        """Hand waiting sends to the engine, as many as may be under way at once."""
        outbox = self._outboxes.get((rank, bulk))
        connections = self._peers.routes(rank, bulk=bulk)
        if outbox is None or not connections:
            return
        engine = self._need_engine()
        while (sending := outbox.next()) is not None:
            usable = (sending.over,) if sending.over in connections else connections
            connection = self._loads.choose(usable, sending.header.length, now_s=time.monotonic())
            if connection is None:
                return
            outbox.pop()
            try:
                operation = engine.send(connection, sending.header, sending.payload, priority=sending.priority)
            except TransportError as error:  # it has just ended
                self._end_later(sending, error)
                continue
            outbox.handed_over(sending, operation)
            sending.connection, sending.sent_s = connection, time.monotonic()
            self._loads.sent(connection, sending.header.length)
            self._open[operation] = sending

    def knows(self, operation: int) -> bool:
        """Whether an operation of the engine's is one of these."""
        return operation in self._open

    def ended(self, operation: int, error: TransportError | None, *, closing: bool) -> None:
        """The engine is through with one, well or not. Nothing is sent again while `closing`."""
        sending = self._open.pop(operation, None)
        if sending is None:
            return
        self._outboxes[sending.rank, sending.bulk].ended(operation)
        self._loads.landed(
            sending.connection,
            sending.header.length,
            sent_s=sending.sent_s,
            now_s=time.monotonic(),
            well=error is None,
        )
        if error is None:
            self._peers.delivered(sending.rank, bulk=sending.bulk)
        gone = self._peers.error(sending.rank)
        retry = isinstance(error, ConnectionLostError) and sending.cancelled is None and gone is None
        if retry and not closing:
            self._enqueue(sending, AHEAD)
        elif not sending.ended:
            sending.ended = True
            sending.tell(None if error is None else sending.cancelled or gone or error)
        self.pump(sending.rank, bulk=sending.bulk)

    def gone(self, rank: int, error: ConnectionLostError) -> None:
        """A rank is gone: end what waits for it, and what is under way to it unless it said goodbye."""
        left = self._peers.peers[rank].phase is Phase.LEFT
        for bulk in (False, True):
            outbox = self._outboxes.get((rank, bulk), Outbox())
            for sending in outbox.drain():
                self._end_later(sending, error)
            if not left:
                self._cancel_in_flight(outbox, error)

    def tick(self, now_s: float, gone_s: Mapping[int, float]) -> float:
        """End what is still under way to ranks that are gone since `gone_s`; returns when to be called next."""
        wake_s = float("inf")
        for rank, since_s in gone_s.items():
            in_flight = [box for bulk in (False, True) if (box := self._outboxes.get((rank, bulk))) and box.in_flight]
            for outbox in in_flight:
                if now_s >= since_s + GRACE_S:
                    self._cancel_in_flight(outbox, self._peers.error(rank))
                else:
                    wake_s = min(wake_s, since_s + GRACE_S)
        return wake_s

    def run_later(self) -> None:
        """Tell the ends of those that the engine never saw."""
        while self._later:
            later, self._later = self._later, []
            for end in later:
                try:
                    end()
                except Exception:  # noqa: BLE001 - one end must not take those of other operations with it
                    _log.exception("the end of a send could not be handled")

    def _enqueue(self, sending: Sending, order: tuple[int, int]) -> None:
        held = self._holds.hold(self._peers.routes(sending.rank, bulk=sending.bulk), sending.header)
        self._outboxes.setdefault((sending.rank, sending.bulk), Outbox()).push(sending, order, held=held)

    def _cancel_in_flight(self, outbox: Outbox, error: TransportError | None) -> None:
        for operation, sending in outbox.in_flight.items():
            if sending.cancelled is None:
                sending.cancelled = error
                self._need_engine().cancel(operation)

    def _end_later(self, sending: Sending, error: TransportError) -> None:
        """End one that the engine never saw; not within the caller's call."""
        if not sending.ended:
            sending.ended = True
            self._later.append(lambda: sending.tell(error))

    def _need_engine(self) -> Engine:
        assert self._engine is not None, "begin() comes first"
        return self._engine
