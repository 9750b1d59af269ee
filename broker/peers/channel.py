"""The daemon's way to other brokers: connections of one engine, what we want of them, and what they want of us.

Theory of operation
- The engine's thread only puts events into a queue and wakes the daemon's loop. Everything else happens in the calls
  of that loop, each of which takes what has come first: there is one thread, and no lock.
- Either side may dial, from the one socket that it listens on. A message goes over any connection to that address.
- An ask counts for the address that its connection had when it came up: the handshake proved it. A peer whose packets
  come from elsewhere has moved; its connection is closed and its leases end, for nobody knows whose the address is now.
- A peer can send no faster than it is read: messages are posted for, a few ahead and then `MESSAGES_PER_S`; what is
  beyond that waits in the peer's own flow control.
- Leases outlive the connection that they came over; they end by themselves.
"""

from __future__ import annotations

import secrets
import socket
from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass

from broker.daemon.log import Log
from broker.holds import Hold, Lease, Verdict
from broker.peers import wire
from broker.peers.addresses import is_askable, plain
from broker.peers.allowance import Allowance
from broker.peers.answers import Answers
from broker.peers.asking import Asking
from broker.peers.book import LeaseBook
from broker.peers.identity import broker_identity, certified_addresses
from broker.peers.listening import open_socket, split_listen
from broker.peers.refusals import Refusals
from broker.peers.report import PeerStatus
from broker.policy import PeersPolicy
from broker.reasons import Reason
from hive_qos.errors import ConfigurationError, PeerError, TransportError
from transport.engine import create_engine
from transport.engine.base import (
    ConnectionDown,
    ConnectionUp,
    Engine,
    EngineSettings,
    Event,
    OperationFailed,
    Priority,
    Received,
)
from transport.wire.errors import WireCode, WireError
from transport.wire.header import Header, Kind
from transport.wire.hello import BROKER_ALPN, HelloKey

PORT = 4710
GROUP = "broker"
"""Of the match key: every message of the protocol has the same."""
CONNECTIONS_MAX = 128
"""Twice the peers that may hold leases: both sides may have dialled."""
POSTS_AHEAD = 8
MESSAGES_PER_S, MESSAGES_AT_ONCE = 50.0, 20.0
"""Of a peer. Its ticks are ten a second, bursts begin and end between them, and each renewal is one message."""
MESSAGE_VALID_S = 2.0
"""A message that could not be sent for so long says what is over."""
IDLE_S = 60.0
"""Who dialled closes a connection over which nothing went for so long, unless it is wanted."""
SETTINGS = EngineSettings(
    unexpected_bytes_max=64 * 1024,
    message_bytes_max=wire.MESSAGE_BYTES_MAX,
    streams_max=32,
    handshake_timeout_s=4.0,
    datagram_bytes=1200,
    protocol=BROKER_ALPN,
)
_HEADER = Header(kind=Kind.CONTROL, group=GROUP)


@dataclass(eq=False)
class _Connection:
    """A connection that is up."""

    number: int
    peer: str
    address: str
    run: bytes
    engine: str
    certified: bool
    dialled: bool
    since_s: float
    used_s: float


@dataclass(eq=False)
class _Reading:
    """How much of a peer is read: operations posted for it, and how many more there may be."""

    allowance: Allowance
    posted: int = 0


class PeerChannel:
    """See the rules above. All methods belong to one thread.

    Args:
        wake: called from another thread when something has come; look at `urgent` soon.
        clock: seconds, monotonic.
        mark: puts the socket into its class (`shaping.sockets.mark_socket`).

    Raises:
        ConfigurationError: a file of `[peers]` cannot be used, or the address cannot be bound.
    """

    def __init__(
        self,
        settings: PeersPolicy,
        *,
        wake: Callable[[], None],
        log: Log,
        clock: Callable[[], float],
        mark: Callable[[socket.socket], None] | None = None,
    ) -> None:
        self._wake, self._log, self._clock = wake, log, clock
        self._events: deque[Event] = deque()
        self._asking, self._book, self._answers = Asking(), LeaseBook(), Answers()
        self._refusals = Refusals(log=log)
        self._connections: dict[int, _Connection] = {}
        self._attempts: dict[int, str] = {}
        self._readings: dict[str, _Reading] = {}
        self._posts: dict[int, str] = {}
        self._closed = False
        self._run = secrets.token_bytes(wire.RUN_BYTES)
        identity = broker_identity(settings)
        self._port = split_listen(settings.listen)[1] or PORT
        sock = open_socket(settings.listen)
        self.listens_at = sock.getsockname()[:2]
        try:
            if mark is not None:
                mark(sock)
            self._engine = self._start(settings.engine)
            self._endpoint = self._engine.add_endpoint(
                sock,
                credentials=identity.credentials,
                trust=identity.trust,
                hello={HelloKey.NODE: identity.node, wire.HELLO_RUN: self._run},
                bulk=False,
            )
        except BaseException:
            sock.close()
            raise
        log.info("peers", listen=settings.listen, node=identity.node, engine=self._engine.name)
        if not certified_addresses(identity):
            note = (
                "the certificate names no address, so that others refuse to hold back for us: issue it with --address"
            )
            log.warning("peers", certificate=settings.certificate, note=note)

    def want(self, holds: Sequence[Hold], *, reach: Iterable[str] = ()) -> None:
        """Say all that is wanted of others from now on; call it every tick.

        Args:
            holds: what is to be held back towards us, and by whom; what was there before and is not now is released.
            reach: addresses to keep a connection to, so that the first ask needs no handshake, and so that who cannot
                dial us can ask us: hosts that send us storage, and those that we send it to.
        """
        self._take()
        now_s = self._clock()
        askable = [hold for hold in holds if is_askable(hold.address)]
        self._asking.want(askable, reach=[address for address in map(plain, reach) if is_askable(address)], now_s=now_s)
        self._keep_house(now_s)
        for address in self._asking.dials(now_s=now_s):
            attempt = self._engine.connect(self._endpoint, (address, self._port), expected_peer=None)
            self._attempts[attempt] = address
        self._send_due(now_s)

    def leases(self) -> tuple[Lease, ...]:
        """What others have asked of us and is in force."""
        self._take()
        found = self._book.leases(now_s=self._clock())
        self._book.changed = False
        return found

    @property
    def urgent(self) -> bool:
        """Leases have changed since `leases` was last called."""
        self._take()
        return self._book.changed

    def answer(self, verdicts: Sequence[Verdict]) -> None:
        """Tell who asked what the decision made of it."""
        self._take()
        now_s = self._clock()
        for lease, answer in self._answers.due(verdicts, self._book.leases(now_s=now_s), now_s=now_s):
            connection = self._connection_to(lease.address, peer=lease.peer)
            if connection is not None:
                self._send(connection, answer, now_s)

    def brokers(self) -> Mapping[str, str]:
        """Address to whether a broker answers there: "yes", "no" or "unknown"."""
        self._take()
        return self._asking.brokers()

    def held(self) -> Mapping[str, Verdict]:
        """Address to what the broker there said to our hold, as long as that is in force."""
        self._take()
        return self._asking.held(now_s=self._clock())

    def status(self) -> tuple[PeerStatus, ...]:
        """The other brokers, sorted by address: connected ones, those that are wanted, and who was refused."""
        self._take()
        now_s = self._clock()
        measured = self._engine.statistics()
        leases = self._book.leases(now_s=now_s)
        asked = self._asking.held(now_s=now_s)
        found: dict[str, PeerStatus] = {}
        for address, why in self._refusals.recent(now_s=now_s).items():
            found[address] = PeerStatus(address, state=f"refused: {why}")
        for address in self._asking.addresses():
            found[address] = PeerStatus(address, state=self._asking.state(address, now_s=now_s))
        for number, one in self._connections.items():
            statistics = measured.get(number)
            found[one.address] = PeerStatus(
                address=one.address,
                peer=one.peer,
                engine=one.engine,
                rtt_s=statistics.rtt_s if statistics is not None and statistics.rtt_s > 0 else None,
                rtt_s_min=statistics.rtt_s_min if statistics is not None and statistics.rtt_s > 0 else None,
                leases=sum(1 for lease in leases if (lease.peer, lease.address) == (one.peer, one.address)),
                asked=one.address in asked,
            )
        return tuple(found[address] for address in sorted(found))

    def close(self) -> None:
        """Say goodbye to everybody and end the engine. Idempotent."""
        if not self._closed:
            self._closed = True
            self._engine.close()

    # --- the engine's thread -------------------------------------------------------------------------------------

    def _on_events(self, events: Sequence[Event]) -> None:
        wanted = [one for one in events if isinstance(one, (ConnectionUp, ConnectionDown, Received, OperationFailed))]
        if wanted:
            self._events.extend(wanted)
            self._wake()

    # --- what has come -------------------------------------------------------------------------------------------

    def _take(self) -> None:
        if self._closed or not self._events:
            return
        now_s = self._clock()
        while self._events:
            event = self._events.popleft()
            match event:
                case ConnectionUp():
                    self._met(event, now_s)
                case ConnectionDown():
                    self._parted(event, now_s)
                case Received():
                    self._done_reading(event.operation)
                    self._heard(event, now_s)
                case OperationFailed():
                    self._done_reading(event.operation)
        self._read_on(now_s)
        self._send_due(now_s)

    def _met(self, event: ConnectionUp, now_s: float) -> None:
        dialled = self._attempts.pop(event.attempt, None) if event.attempt is not None else None
        address = plain(event.remote[0])
        run = event.hello.get(wire.HELLO_RUN)
        if type(run) is not bytes or len(run) != wire.RUN_BYTES:
            self._refuse(event.connection, address, WireCode.HELLO_INVALID, "a hello without the run", now_s)
            return
        if len(self._connections) >= CONNECTIONS_MAX:
            reason = f"{CONNECTIONS_MAX} brokers are connected already"
            self._refuse(event.connection, address, WireCode.TOO_MANY_CONNECTIONS, reason, now_s)
            return
        self._connections[event.connection] = _Connection(
            number=event.connection,
            peer=event.peer,
            address=address,
            run=run,
            engine=str(event.hello.get(HelloKey.ENGINE, ""))[:16],
            certified=address in {plain(one) for one in event.addresses},
            dialled=event.attempt is not None,
            since_s=now_s,
            used_s=now_s,
        )
        if dialled is not None and dialled != address:
            self._asking.failed(dialled, now_s=now_s)
        self._book.met(event.peer, address, run=run)
        self._asking.reached(address, now_s=now_s)
        self._refusals.forget(address)
        self._readings.setdefault(
            event.peer, _Reading(Allowance(per_s=MESSAGES_PER_S, at_once=MESSAGES_AT_ONCE, now_s=now_s))
        )
        self._log.info("broker met", peer=event.peer, address=address)

    def _parted(self, event: ConnectionDown, now_s: float) -> None:
        connection = self._connections.get(event.connection) if event.connection is not None else None
        if connection is not None:
            self._drop(connection, now_s)
            why = "it said goodbye" if event.error is None else str(event.error)
            self._log.info("broker gone", peer=connection.peer, address=connection.address, reason=why)
            return
        dialled = self._attempts.pop(event.attempt, None) if event.attempt is not None else None
        refused = str(event.error) if isinstance(event.error, PeerError) else ""
        if dialled is not None:
            self._asking.failed(dialled, refused=refused, now_s=now_s)
        if refused:
            self._refusals.note(dialled or _host_of(event.peer), refused, now_s=now_s)

    def _drop(self, connection: _Connection, now_s: float) -> None:
        """Forget a connection that has ended, or that was closed here."""
        del self._connections[connection.number]
        others = list(self._connections.values())
        if not any(one.address == connection.address for one in others):
            self._asking.lost(connection.address, lived_s=now_s - connection.since_s, now_s=now_s)
        if not any((one.peer, one.address) == (connection.peer, connection.address) for one in others):
            self._book.left(connection.peer, connection.address)
        if not any(one.peer == connection.peer for one in others):
            self._readings.pop(connection.peer, None)
            self._posts = {number: peer for number, peer in self._posts.items() if peer != connection.peer}

    def _heard(self, event: Received, now_s: float) -> None:
        connection = self._connections.get(event.connection)
        if connection is None or self._has_moved(connection, now_s):
            return
        connection.used_s = now_s
        try:
            message = wire.read(bytes(event.payload))
        except wire.UnacceptableAsk as problem:
            self._deny(connection, problem.number, problem.refusal, problem.text, now_s)
        except WireError as problem:
            self._refuse(connection.number, connection.address, problem.wire_code, problem.reason, now_s)
        else:
            self._heed(connection, message, now_s)

    def _heed(self, connection: _Connection, message: wire.Message | None, now_s: float) -> None:
        peer, address = connection.peer, connection.address
        match message:
            case wire.Ask() if not connection.certified:
                text = f"the certificate of {peer} does not name {address}: issue it with --address {address}"
                self._deny(connection, message.number, wire.Refusal.ADDRESS, text, now_s)
            case wire.Ask():
                refusal = self._book.ask(peer, address, message, run=connection.run, now_s=now_s)
                if refusal is not None:
                    self._deny(connection, message.number, refusal, _WHY[refusal], now_s)
            case wire.Release():
                self._book.release(peer, address, message, run=connection.run)
            case wire.Answer():
                self._asking.answered(address, peer, message, now_s=now_s)
                if not message.granted and message.reason.code in set(wire.Refusal) - {wire.Refusal.STALE}:
                    self._refusals.note(address, f"{peer} does not hold back: {message.reason.text}", now_s=now_s)
            case None:
                self._log.debug("a message of a type that this version does not know", peer=peer)

    def _has_moved(self, connection: _Connection, now_s: float) -> bool:
        measured = self._engine.statistics().get(connection.number)
        if measured is None or plain(measured.remote[0]) == connection.address:
            return False
        self._book.forget(connection.peer, connection.address)
        reason = "its packets come from another address; dial again from there"
        self._refuse(connection.number, connection.address, WireCode.NO_ERROR, reason, now_s)
        return True

    # --- what goes out -------------------------------------------------------------------------------------------

    def _send_due(self, now_s: float) -> None:
        for one in self._asking.messages(now_s=now_s):
            connection = self._connection_to(one.address)
            if connection is not None:
                self._send(connection, one.message, now_s)

    def _send(self, connection: _Connection, message: wire.Message, now_s: float) -> None:
        payload = wire.write(message)
        header = Header(kind=_HEADER.kind, group=_HEADER.group, length=len(payload))
        connection.used_s = now_s
        self._engine.send(
            connection.number, header, memoryview(payload), priority=Priority.CONTROL, deadline_s=MESSAGE_VALID_S
        )

    def _deny(self, connection: _Connection, number: int, refusal: wire.Refusal, text: str, now_s: float) -> None:
        self._send(connection, wire.Answer(number, False, 0, 0.0, Reason(refusal, text)), now_s)
        self._refusals.note(
            connection.address, f"{connection.peer} asked for what it does not get: {text}", now_s=now_s
        )

    def _refuse(self, number: int, address: str, code: WireCode, reason: str, now_s: float) -> None:
        """Close a connection for what the peer did, or because it has no place here."""
        self._engine.disconnect(number, wire_code=code, reason=reason)
        self._refusals.note(address, reason, now_s=now_s)
        if number in self._connections:
            self._drop(self._connections[number], now_s)

    def _read_on(self, now_s: float) -> None:
        """Post for as many messages of each peer as it may send now."""
        for peer, reading in self._readings.items():
            while reading.posted < POSTS_AHEAD and reading.allowance.take(now_s=now_s):
                self._posts[self._engine.post(peer, _HEADER.key, None)] = peer
                reading.posted += 1

    def _done_reading(self, operation: int) -> None:
        peer = self._posts.pop(operation, None)
        if peer is not None and peer in self._readings:
            self._readings[peer].posted -= 1

    def _connection_to(self, address: str, *, peer: str | None = None) -> _Connection | None:
        """The oldest connection to an address."""
        fitting = (one for one in self._connections.values() if one.address == address and peer in (None, one.peer))
        return next(fitting, None)

    def _keep_house(self, now_s: float) -> None:
        """What is due with the ticks: read on, end what has moved or is idle."""
        self._read_on(now_s)
        for connection in list(self._connections.values()):
            if self._has_moved(connection, now_s) or not connection.dialled:
                continue
            if self._asking.is_wanted(connection.address):
                connection.used_s = now_s
            elif now_s - connection.used_s > IDLE_S:
                self._engine.disconnect(connection.number, wire_code=WireCode.NO_ERROR, reason="idle")
                self._drop(connection, now_s)

    def _start(self, engine: str) -> Engine:
        try:
            return create_engine(engine, SETTINGS, self._on_events)
        except ConfigurationError as error:
            raise ConfigurationError("peers.engine", error.value, error.reason) from error
        except TransportError as error:
            raise ConfigurationError("peers.engine", engine, str(error)) from error


_WHY = {
    wire.Refusal.STALE: "a later ask of this broker is known already",
    wire.Refusal.FULL: "too many other brokers hold leases here",
}


def _host_of(called: str) -> str:
    """The address of a peer that is called by address and port."""
    host = called.rpartition(":")[0].strip("[]")
    try:
        return plain(host)
    except ValueError:
        return called
