"""Messages to ranks and from ranks, over whatever connections there are: the layer between the engine and collectives.

- All of it runs in the transport's thread (`transport.event_loop`). Callbacks are called in it, never from within the
  call that started the operation.
- When a connection is lost, sends that were not acknowledged are sent again over the next one (`send_dispatch`).
  Receivers match by key, and keys are never reused, so a message that arrives twice is taken once.
- When a rank is gone, sends to it fail, and after a grace period receives from it (`inbox`). If it lives after all, it
  is told so, and its operations with us fail.
- Our own connection to a rank decides whether it is gone. What others say of it is not enough (`liveness`).
- Every key carries the sender's rank in its tag, because ranks on one host may share one certificate.
"""

from __future__ import annotations

import itertools
import json
import logging
import operator
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import TypeAlias

from hive_qos.errors import CancelledError, ConnectionLostError, PeerError, TransportError
from transport.engine.base import (
    Buffer,
    CollectiveEnded,
    ConnectionDown,
    ConnectionUp,
    Engine,
    Event,
    Hold,
    OperationFailed,
    Priority,
    Received,
    SendDone,
    StepFailed,
    UnexpectedMessage,
)
from transport.mesh.collective_dispatch import CollectiveDispatch
from transport.mesh.inbox import Inbox, ReceiveEnd, Receiving
from transport.mesh.introductions import Introductions
from transport.mesh.liveness import LivenessCheck
from transport.mesh.outbox import SendEnd, Sending
from transport.mesh.paths import Location, plain_locations
from transport.mesh.peers import AskForBulk, Dial, Gone, PeerTable, Phase
from transport.mesh.send_dispatch import SendDispatch
from transport.mesh.sockets import Sockets
from transport.wire.error_codes import WireCode
from transport.wire.header import Header, Kind, MatchKey

RANK_BITS = 24
CONTROL_BYTES_MAX = 2048
_CONTROL_SUFFIX = "|control"
HELLO_RANK = 64
HELLO_GROUP = 65

_log = logging.getLogger("transport.mesh.endpoint")


def tag_of(rank: int, user_tag: int = 0) -> int:
    """The tag of a message that `rank` sends."""
    return operator.index(user_tag) << RANK_BITS | rank


def rank_of(tag: int) -> int:
    """The rank that sent a message with this tag."""
    return tag & (1 << RANK_BITS) - 1


Ticket = Sending | Receiving
Served: TypeAlias = tuple[int, int]
"""The engine's endpoints of one location: compute, bulk."""


class Endpoint:
    """This rank's view of all others. Made when their contacts are known; the engine is handed over by `begin`."""

    def __init__(
        self,
        *,
        rank: int,
        job: str,
        world: str,
        peers: PeerTable,
        silence_ends: bool = False,
        on_gone: Callable[[Gone], None],
        on_control: Callable[[int, Mapping[str, object]], None],
        on_unexpected: Callable[[int, Header], None],
        on_refused: Callable[[int, PeerError], None],
    ) -> None:
        self.rank = rank
        self.peers = peers
        self.job = job
        self._world = world
        self._silence_ends = silence_ends
        self._on_gone = on_gone
        self._on_control = on_control
        self._on_unexpected = on_unexpected
        self._on_refused = on_refused
        self._sends = SendDispatch(peers)
        self._inbox = Inbox(peers)
        self.collectives = CollectiveDispatch(peers)
        self._attempts: dict[int, Dial] = {}
        self.dial_errors: dict[int, str] = {}
        self._gone_s: dict[int, float] = {}
        self._control_number = itertools.count()
        self._engine: Engine | None = None
        self._endpoints: list[Served] = []
        self._early: list[Event] = []
        self.closing = False
        self.liveness = LivenessCheck(peers, self.control)
        self.introductions = Introductions(peers, self.control, lambda: self._need_engine().statistics())

    @property
    def hello(self) -> dict[int, object]:
        """What we say of ourselves on every connection."""
        return {HELLO_RANK: self.rank, HELLO_GROUP: self._world}

    def begin(self, engine: Engine, endpoints: Sequence[Served]) -> None:
        """Use `engine`, with its endpoints of each location of ours. Peers may have dialled them before."""
        self._engine = engine
        self._endpoints = list(endpoints)
        self._sends.begin(engine)
        self.collectives.begin(engine)
        early, self._early = self._early, []
        self.handle(early)

    # For the layers above.

    def send(
        self,
        rank: int,
        header: Header,
        payload: Buffer | None,
        *,
        priority: Priority,
        order: tuple[int, int],
        on_end: SendEnd,
        over: int | None = None,
    ) -> Sending:
        """Send one message to a rank, behind those of smaller (priority, order)."""
        bulk = priority is Priority.BULK
        sending = Sending(rank, replace(header, job=self.job), payload, priority, on_end, bulk, over=over)
        self._sends.send(sending, order)
        return sending

    def receive(self, rank: int, key: MatchKey, buffer: Buffer | None, on_end: ReceiveEnd) -> Receiving:
        """Take the next message with `key` from a rank; the engine owns `buffer` until `on_end`."""
        receiving = Receiving(rank, key, buffer, on_end, time.monotonic())
        self._inbox.post(self._need_engine(), receiving)
        return receiving

    def cancel(self, ticket: Ticket, error: TransportError | None = None) -> None:
        """End an operation early; its `on_end` is called with `error` when its buffer is free again."""
        reason = error or CancelledError("cancelled")
        if isinstance(ticket, Receiving):
            self._inbox.cancel(self._need_engine(), ticket, reason)
        else:
            self._sends.cancel(ticket, reason)

    def control(
        self, rank: int, message: Mapping[str, object], on_end: SendEnd | None = None, *, over: int | None = None
    ) -> None:
        """Send a small message of the transport's own to a rank, ahead of everything else.

        Args:
            over: the connection that it takes as long as that is there; None for the fastest.
        """
        payload = memoryview(json.dumps(message, ensure_ascii=False).encode(errors="replace"))
        header = Header(
            kind=Kind.CONTROL,
            group=self._world + _CONTROL_SUFFIX,  # `discard` of collectives must not meet them
            step=next(self._control_number),
            tag=tag_of(self.rank),
            length=len(payload),
        )
        self.send(
            rank,
            header,
            payload,
            priority=Priority.CONTROL,
            order=(0, 0),
            on_end=on_end or (lambda _error: None),
            over=over,
        )

    def leave(self, rank: int, on_end: SendEnd) -> None:
        """Say goodbye to a rank over each link. Its acknowledgement proves that ours of what came there arrived."""
        connections = self.peers.routes(rank, bulk=False) or (None,)
        waiting = len(connections)

        def ended(error: TransportError | None) -> None:
            nonlocal waiting
            waiting -= 1
            if waiting == 0:
                on_end(error)

        for connection in connections:
            self.control(rank, {"op": "leave"}, ended, over=connection)

    def move(self, sockets: Sockets, *, number: int) -> None:
        """Our first address has changed, for the `number`th time: go on from these sockets, and tell everybody.

        The sockets are the endpoint's from now on, also where the engine refuses them (`TransportError`) or breaks.
        """
        engine = self._need_engine()
        waiting = [(False, sockets.compute), (True, sockets.bulk)]
        try:
            while waiting:
                bulk, sock = waiting[0]
                engine.rebind(self._endpoints[0][bulk], sock)
                del waiting[0]
        except Exception:
            for _, sock in waiting:  # one that the engine has taken it reads from until it is closed
                sock.close()
            raise
        new = replace(
            self.peers.own[0], address=sockets.advertise, port=sockets.compute_port, bulk_port=sockets.bulk_port
        )
        stale = self.peers.moved_here(time.monotonic(), new=new)
        for connection in stale:
            engine.disconnect(connection, wire_code=WireCode.NO_ERROR, reason="we have moved")
        addresses = plain_locations(self.peers.told())
        for rank in self.peers.peers:
            if self.peers.error(rank) is None:
                self.control(rank, {"op": "moved", "number": number, "addresses": addresses})

    def peer_moved(self, rank: int, *, number: int, locations: tuple[Location, ...]) -> None:
        """A rank says where it is now. What was under way to where it was is sent again."""
        stale = self.peers.moved(rank, number=number, locations=locations, now_s=time.monotonic())
        for connection in stale:
            self._need_engine().disconnect(connection, wire_code=WireCode.NO_ERROR, reason="you have moved")

    def discard(self, group: str, before_step: int) -> None:
        """Drop messages of steps that are over, late ones too."""
        self._need_engine().discard(group=group, before_step=before_step)

    # From the engine.

    def handle(self, events: Sequence[Event]) -> None:
        """Take a batch of the engine's events."""
        if self._engine is None:
            self._early.extend(events)  # few: engines bound how many connections there are
            return
        for event in events:
            if self.closing and isinstance(event, UnexpectedMessage | ConnectionUp):
                continue  # the engine may be closed by now, and nothing new is begun
            try:
                self._handle(event)
            except Exception:  # noqa: BLE001 - one event must not take those of other operations with it
                _log.exception("an event of the engine could not be handled: %.200r", event)
        self._sends.run_later()

    def _handle(self, event: Event) -> None:
        match event:
            case SendDone():
                self._sends.ended(event.operation, None, closing=self.closing)
            case Received():
                self._inbox.received(event)
            case OperationFailed():
                self._failed(event)
            case StepFailed():
                self.collectives.failed(event)
            case CollectiveEnded():
                self.collectives.ended(event)
            case Hold():
                self._sends.hold(event)
            case UnexpectedMessage():
                self._unexpected(event)
            case ConnectionUp():
                self._up(event)
            case ConnectionDown():
                self._down(event)

    def tick(self, now_s: float) -> float:
        """Do what is due; returns when to be called next."""
        wake_s = float("inf")
        if not self.closing and self._engine is not None:
            for action in self.peers.due(now_s):
                match action:
                    case Dial():
                        self._dial(self._engine, action, now_s)
                    case AskForBulk(rank):
                        self.control(rank, {"op": "bulk"})
                    case Gone():
                        self._gone(action)
            introduced_s = self.introductions.tick(now_s)
            wake_s = min(self.peers.next_wake_s(), self.liveness.tick(now_s), introduced_s)
        wake_s = min(wake_s, self._sends.tick(now_s, self._gone_s))
        if self._engine is not None:
            gone_s = self._gone_s
            if self.liveness.is_checking:  # who heard of a loss first may have left for it, and is not the cause
                gone_s = {rank: at for rank, at in gone_s.items() if self.peers.peers[rank].phase is not Phase.LEFT}
            wake_s = min(wake_s, self._inbox.tick(self._engine, now_s, gone_s))
            wake_s = min(wake_s, self.collectives.tick(now_s, gone_s))
        self._sends.run_later()
        return wake_s

    def _dial(self, engine: Engine, dial: Dial, now_s: float) -> None:
        try:
            attempt = engine.connect(
                self._endpoints[dial.path.local][dial.bulk],
                dial.address,
                expected_peer=self.peers.peers[dial.rank].name,
            )
        except TransportError as error:  # an address that no socket takes, or an engine that has just ended
            _log.warning("rank %d cannot be dialled: %s", dial.rank, error)
            self.peers.dial_failed(dial, now_s=now_s)
        else:
            self._attempts[attempt] = dial

    def report_gone(self, gone: Gone | None) -> None:
        """A rank is gone by what it or others say (`PeerTable.left`, `PeerTable.dead`)."""
        if gone is not None:
            self._gone(gone)

    def first_loss(self, ranks: tuple[int, ...]) -> ConnectionLostError | None:
        """Why the rank among `ranks` that went first is gone, one that was lost before those that said goodbye.

        None while all of them are there.
        """
        gone = [rank for rank in self._gone_s if rank in ranks]
        gone.sort(key=lambda rank: self.peers.peers[rank].phase is Phase.LEFT)
        return self.peers.error(gone[0]) if gone else None

    # Connections.

    def _up(self, event: ConnectionUp) -> None:
        engine = self._need_engine()
        dialled = self._attempts.pop(event.attempt, None) if event.attempt is not None else None
        local, bulk = next(
            (place, number == served[True])
            for place, served in enumerate(self._endpoints)
            for number in served
            if number == event.endpoint
        )
        rank = event.hello.get(HELLO_RANK)
        peer = self.peers.peers.get(rank) if isinstance(rank, int) else None
        known = peer is not None and peer.name == event.peer and event.hello.get(HELLO_GROUP) == self._world
        if peer is None or not known or (dialled is not None and dialled.rank != rank):
            if dialled is not None:
                self.peers.dial_failed(dialled, now_s=time.monotonic())
            _log.warning("refused a connection from %s at %s: no rank of ours", event.peer, event.remote)
            engine.disconnect(event.connection, wire_code=WireCode.PEER_UNEXPECTED, reason="no rank of this group")
            return
        address = event.remote[0] if dialled is None else dialled.address[0]
        if not self.peers.up(peer.rank, event.connection, bulk=bulk, dialled=dialled, local=local, address=address):
            if self.peers.error(peer.rank) is None:
                engine.disconnect(event.connection, wire_code=WireCode.NO_ERROR, reason="there is another one by now")
            else:
                self._say_gone(peer.rank, event.connection)
            return
        self.collectives.route(peer.rank, bulk=bulk)
        self._sends.pump(peer.rank, bulk=bulk)

    def _say_gone(self, rank: int, connection: int) -> None:
        """Close a connection to a rank that counts as gone, in such a way that it does not dial again."""
        if self.closing:  # the engine may be closed by now, which ends the connection
            return
        error = self.peers.error(rank)
        why = "gone" if error is None else error.reason
        self._need_engine().disconnect(
            connection, wire_code=WireCode.COUNTED_AS_GONE, reason=f"rank {rank} counts as gone: {why}"
        )

    def _down(self, event: ConnectionDown) -> None:
        now_s = time.monotonic()
        reason = "the connection was closed" if event.error is None else _plain(event.error)
        evicted_by: int | None = None
        if event.attempt is not None and event.attempt in self._attempts:
            dial = self._attempts.pop(event.attempt)
            evicted_by = dial.rank
            self.dial_errors[dial.rank] = reason
            self.peers.dial_failed(dial, now_s=now_s)
            if isinstance(event.error, PeerError) and self.peers.is_first(dial):
                self._on_refused(dial.rank, event.error)
        if event.connection is not None:
            known = self.peers.rank_of(event.connection)
            self._sends.forget(event.connection)
            evicted_by = known if known is not None else evicted_by
            gone = event.gone or (event.silent and self._silence_ends)
            lost = self.peers.down(event.connection, reason=reason, gone=gone, now_s=now_s)
            if known is not None:
                for bulk in (False, True):
                    self.collectives.route(known, bulk=bulk)
            if lost is not None:
                self.liveness.down(lost)
        said = event.error.wire_code if isinstance(event.error, PeerError) else None
        if evicted_by is not None and said == WireCode.COUNTED_AS_GONE:
            self.report_gone(self.peers.evicted(evicted_by, f"it counts this rank as gone ({reason})"))

    def _gone(self, gone: Gone) -> None:
        self._gone_s[gone.rank] = time.monotonic()
        self._sends.gone(gone.rank, gone.error)
        if self.peers.peers[gone.rank].phase is not Phase.LEFT:  # it may live, and only not have been heard in time
            for connection in self.peers.connections(gone.rank):
                self._say_gone(gone.rank, connection)
        self._on_gone(gone)

    def _failed(self, event: OperationFailed) -> None:
        if self._sends.knows(event.operation):
            self._sends.ended(event.operation, event.error, closing=self.closing)
        else:
            self._inbox.failed(self._need_engine(), event, closing=self.closing)

    # Messages that nobody has posted for.

    def _unexpected(self, event: UnexpectedMessage) -> None:
        rank = rank_of(event.header.tag)
        peer = self.peers.peers.get(rank)
        if peer is None or peer.name != event.peer:
            _log.warning("%s sent a message as rank %d, which it is not", event.peer, rank)
            return
        if event.header.kind is not Kind.CONTROL:
            self._on_unexpected(rank, event.header)
        elif event.header.length <= CONTROL_BYTES_MAX:
            self.receive(rank, event.header.key, None, lambda received, _error: self._control(rank, received))

    def _control(self, rank: int, received: Received | None) -> None:
        if received is None:
            return
        try:
            message = json.loads(bytes(received.payload))
        except (ValueError, RecursionError):
            message = None
        if isinstance(message, dict):
            self._on_control(rank, message)
        else:
            _log.warning("rank %d sent a control message of %d bytes that is none", rank, len(received.payload))

    def _need_engine(self) -> Engine:
        assert self._engine is not None, "begin() comes first"
        return self._engine


def _plain(error: TransportError) -> str:
    """An error's text without code and name, for use as a reason."""
    return error.reason if isinstance(error, ConnectionLostError | PeerError) else str(error)
