"""Connections and sockets of the engine, all of it in the engine's thread; what they carry is `Operations`.

In a turn of the loop each socket gives up to `READ_MAX` datagrams, then each connection runs its timers and sends
what its window lets it send of `AHEAD_BYTES`, compute before bulk. So a turn takes a few milliseconds, whatever queues.
"""

from __future__ import annotations

import itertools
import selectors
import time
from collections.abc import Callable, Sequence
from typing import Any

from aioquic.quic.events import ConnectionIdIssued, ConnectionIdRetired
from aioquic.quic.retry import QuicRetryTokenHandler

from hive_qos.errors import CancelledError, ConnectionLostError, PeerError, TransportError
from transport.engine import admission
from transport.engine.aioquic.configuration import (
    CID_BYTES,
    DATAGRAM_BYTES,
    Endpoint,
    original_cid,
    read_first_packet,
    retry,
)
from transport.engine.aioquic.event_loop import TICK_S, Loop
from transport.engine.aioquic.operations import Operations
from transport.engine.aioquic.receive_streams import code_name
from transport.engine.aioquic.session import Session
from transport.engine.aioquic.udp_socket import UdpPort
from transport.engine.base import (
    DEAD_AFTER_S,
    Address,
    ConnectionDown,
    ConnectionStatistics,
    ConnectionUp,
    EngineSettings,
    Event,
)
from transport.engine.validation import called, dialled, endpoint_numbered
from transport.wire.control_frames import HelloKey
from transport.wire.error_codes import WireCode

READ_MAX = 48
AHEAD_BYTES = 16 * DATAGRAM_BYTES
"""What may wait in aioquic, ahead of more urgent messages: 4 ms at 40 Mbit/s."""
GOODBYE_S = 0.1
"""What closing waits at most, in all, until full sockets have room for its goodbyes."""


class Core(Loop):
    """Everything that belongs to the engine's thread. Only `command`, `snapshot` and `over` are for others."""

    def __init__(self, *, settings: EngineSettings, on_events: Callable[[Sequence[Event]], None]) -> None:
        super().__init__(on_events=on_events)
        self.settings = settings
        self.snapshot: dict[int, ConnectionStatistics] = {}
        self._numbers = itertools.count(1)
        self._endpoints: dict[int, Endpoint] = {}
        self._sessions: list[Session] = []
        self._by_number: dict[int, Session] = {}
        self._by_cid: dict[bytes, Session] = {}
        self._ticked_at = 0.0
        self._tokens = QuicRetryTokenHandler()
        self.operations = Operations(
            store_bytes_max=settings.unexpected_bytes_max,
            sessions=self._by_number,
            emit=lambda event: self._events.append(event),
            clock=lambda: self._now,
        )

    def close_descriptors(self) -> None:
        for endpoint in self._endpoints.values():
            endpoint.port.sock.close()
        super().close_descriptors()

    # The loop's hooks

    def _work(self, ready: Sequence[tuple[Endpoint, int]], lost_s: float) -> None:
        for session in self._sessions if lost_s else ():
            session.heard_at += lost_s
            session.started_at += lost_s
        for endpoint, mask in ready:
            if mask & selectors.EVENT_WRITE:
                self._send(endpoint, [])
            if mask & selectors.EVENT_READ:
                self._read(endpoint)
        self._transmit()
        if self._now - self._ticked_at >= TICK_S:
            self._ticked_at = self._now
            self._tick()

    def _next_at(self) -> float:
        times = [session.timer_at for session in self._sessions if session.timer_at is not None]
        return min([self._ticked_at + TICK_S, *times])

    # Datagrams in

    def _read(self, endpoint: Endpoint) -> None:
        touched: set[Session] = set()
        for data, address in endpoint.port.read(READ_MAX):
            if not data:
                continue
            long_header = data[0] & 0x80 and len(data) > 6
            cid = data[6 : 6 + data[5]] if long_header else data[1 : 1 + CID_BYTES]
            session = self._by_cid.get(cid)
            if session is None and long_header:
                session = self._accept(endpoint, data, address)
            if session is not None:
                session.receive(data, address, self._now)
                touched.add(session)
        for session in touched:
            session.timer_at = self._now
            # It moves with a peer that dialled.
            session.address = session.get_peer_address() or session.address
            self._collect(session)

    def _accept(self, endpoint: Endpoint, data: bytes, address: Any) -> Session | None:
        first = read_first_packet(data)
        if first is None:
            return None
        began_as = original_cid(self._tokens, first, address, now_s=self._now)
        source = admission.source_of(address[0])
        half_open = [session for session in self._sessions if session.attempt is None and not session.verified]
        judged = admission.admit_first_packet(
            half_open=len(half_open),
            of_source=sum(session.source == source for session in half_open),
            proved=began_as is not None,
        )
        match judged:
            case admission.FirstPacket.IGNORED:
                return None
            case admission.FirstPacket.TO_PROVE:
                self._send(endpoint, [(retry(self._tokens, first, address, now_s=self._now), address)])
                return None
        cid = first.destination_cid
        retry_cid = None if began_as is None else cid
        session = self._new_session(endpoint, address, original_cid=began_as or cid, retry_cid=retry_cid)
        session.source = source
        self._by_cid[cid] = session
        return session

    # Sessions

    def _new_session(self, endpoint: Endpoint, address: Any, **options: Any) -> Session:
        session = Session(
            endpoint,
            address,
            settings=self.settings,
            now=self._now,
            on_verified=self._verified,
            on_ready=self._ready,
            on_sent=self.operations.sent,
            on_stopped=self.operations.stopped,
            on_hold=self.operations.hold,
            **options,
        )
        self._sessions.append(session)
        self._by_cid[session.host_cid] = session
        return session

    def _verified(self, session: Session) -> None:
        """The handshake is complete, and the peer who it says: count its connections from here on.

        Raises:
            WireError: it has too many.
        """
        others = sum(1 for other in self._sessions if other.verified and other.peer == session.peer) - 1
        admission.admit_to_name(others)

    def _ready(self, session: Session) -> None:
        """The peer is verified and said hello."""
        others = sum(1 for other in self._by_number.values() if other.identity == session.identity)
        admission.admit_to_identity(others)
        session.number = next(self._numbers)
        self._by_number[session.number] = session
        assert session.peer_hello is not None
        host, port, *_ = session.proved_address or session.address
        up = ConnectionUp(
            connection=session.number,
            endpoint=session.endpoint.number,
            peer=session.peer,
            remote=(host, port),
            hello=session.peer_hello,
            attempt=session.attempt,
            addresses=session.addresses,
        )
        self._events.append(up)
        job = str(session.peer_hello.get(HelloKey.JOB, ""))
        session.incoming.begin(
            self.operations.matcher(session.peer), job=job, account=session.identity[1:], connection=session.number
        )

    def _collect(self, session: Session) -> None:
        """Follow what aioquic says of connection identifiers, and notice the end."""
        while (event := session.next_event()) is not None:
            if isinstance(event, ConnectionIdIssued):
                self._by_cid[event.connection_id] = session
            elif isinstance(event, ConnectionIdRetired):
                self._by_cid.pop(event.connection_id, None)
            else:
                session.take(event)
        session.update()
        if session.over:
            self._end(session)

    def _end(self, session: Session, reason: str = "the peer said goodbye") -> None:
        """A connection is over: send its close if it is ours to send, tell the caller, and fail what was on it."""
        if session.ended:
            return
        session.ended = True
        # Twice, in case one is lost: what still comes is not answered, or two ends that close would answer each other.
        self._send(session.endpoint, 2 * session.transmit(self._now, 0))
        self._sessions.remove(session)
        for cid in [cid for cid, owner in self._by_cid.items() if owner is session]:
            del self._by_cid[cid]
        error = session.end_error()
        if isinstance(error, (ConnectionLostError, PeerError)):
            reason = error.reason
        self.operations.lose_sends(session, reason)
        self._events.append(ConnectionDown(session.number, session.peer, error, session.attempt, silent=session.silent))
        if session.number is not None:
            del self._by_number[session.number]
            self.operations.lose_posts(session, reason)

    # Datagrams out, timers

    def _transmit(self) -> None:
        now = self._now
        for session in sorted(self._sessions, key=lambda one: (one.endpoint.bulk, one.sent_at)):
            if session.timer_at is not None and session.timer_at > now:
                continue
            if session.endpoint.port.waiting:
                session.timer_at = None  # the socket is full; that it can be written to brings us back
                continue
            due_at = session.get_timer()
            if due_at is not None and due_at <= now:
                session.handle_timer(now)
            datagrams = session.transmit(now, AHEAD_BYTES)
            if datagrams:
                session.sent_at = now
                self._send(session.endpoint, datagrams)
            session.timer_at = session.get_timer()
            if session.outgoing.has_work and datagrams:
                session.timer_at = now  # the others first
            self._collect(session)

    def _send(self, endpoint: Endpoint, datagrams: list[tuple[bytes, Any]]) -> None:
        """Send, and follow what the socket says: it is full, or it has room again."""
        port = endpoint.port
        waited = bool(port.waiting)
        port.send(datagrams)
        if bool(port.waiting) != waited:
            events = selectors.EVENT_READ | (0 if waited else selectors.EVENT_WRITE)
            self._selector.modify(port.sock, events, endpoint)
        if waited and not port.waiting:
            for session in self._sessions:
                if session.endpoint is endpoint:
                    session.timer_at = self._now

    def _tick(self) -> None:
        now, settings = self._now, self.settings
        patience_s = settings.dead_after_s or DEAD_AFTER_S
        for session in list(self._sessions):
            session.tick()
            if session.over:
                self._end(session)
                continue
            silent_s = now - session.heard_at
            if session.number is None:
                patient_s = settings.handshake_timeout_s
                if not (session.proved or session.attempt is not None or session.proved_address):
                    patient_s = min(patient_s, admission.UNPROVED_S_MAX)
                if now - session.started_at > patient_s:
                    reason = f"no connection within {patient_s:g} s"
                    self._drop(session, WireCode.HANDSHAKE_TIMEOUT, ConnectionLostError(session.peer, reason))
                continue
            if silent_s > patience_s:
                session.silent = True
                reason = f"nothing heard for {silent_s:.1f} s (dead after {patience_s:g} s)"
                self._drop(session, WireCode.DEAD, ConnectionLostError(session.peer, reason))
            elif silent_s >= settings.keep_alive_s and now - session.pinged_at >= settings.keep_alive_s:
                session.pinged_at = now
                session.send_ping(0)
                session.timer_at = now
        self.snapshot = {number: session.measure(now_s=now) for number, session in self._by_number.items()}

    def _drop(self, session: Session, code: WireCode, error: TransportError) -> None:
        session.local_error = session.local_error or error
        self._close(session, code, str(error))

    def _close(self, session: Session, code: int, reason: str) -> None:
        session.close(error_code=code, reason_phrase=reason[:500])
        self._end(session, "the connection was closed here")

    # Commands

    def add_endpoint(self, endpoint: Endpoint) -> None:
        """Serve a socket."""
        self._endpoints[endpoint.number] = endpoint
        self._selector.register(endpoint.port.sock, selectors.EVENT_READ, endpoint)

    def rebind(self, number: int, port: UdpPort) -> None:
        """Go on with another socket: every connection of the endpoint ends."""
        endpoint = self._endpoints.get(number)
        if endpoint is None:
            port.sock.close()
            return
        before, endpoint.port = endpoint.port, port
        self._selector.unregister(before.sock)
        before.sock.close()
        self.add_endpoint(endpoint)
        for session in [session for session in self._sessions if session.endpoint is endpoint]:
            self._close(session, WireCode.NO_ERROR, "the address of this side has changed")

    def connect(self, number: int, remote: Address, expected_peer: str | None, attempt: int) -> None:
        """Dial."""
        name = called(remote, expected_peer)
        try:
            endpoint = endpoint_numbered(self._endpoints, number, peer=name)
            address = dialled(endpoint.port.sock, remote, peer=name)
        except ConnectionLostError as error:
            self._events.append(ConnectionDown(None, name, error, attempt))
            return
        session = self._new_session(endpoint, address, attempt=attempt, expected_peer=expected_peer)
        session.connect(address, self._now)
        session.timer_at = self._now

    def disconnect(self, number: int, wire_code: int, reason: str) -> None:
        """Close one connection."""
        session = self._by_number.get(number)
        if session is not None:
            if wire_code != WireCode.NO_ERROR:
                said = f"closed here with {code_name(wire_code)}: {reason}"
                session.local_error = ConnectionLostError(session.peer, said)
            self._close(session, wire_code, reason)

    def _say_goodbye(self) -> None:
        self.operations.fail_all(CancelledError("the engine was closed here"))
        until = time.monotonic() + GOODBYE_S
        for session in list(self._sessions):
            port = session.endpoint.port
            port.waiting.clear()  # of connections that end now
            port.sock.settimeout(max(0.0, until - time.monotonic()))
            self._close(session, WireCode.NO_ERROR, "goodbye")

    def _fail_everything(self, error: TransportError) -> None:
        for session in list(self._sessions):
            self._events.append(ConnectionDown(session.number, session.peer, error, session.attempt))
        self._sessions.clear()
        self.operations.fail_all(error)
