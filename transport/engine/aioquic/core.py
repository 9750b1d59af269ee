"""The engine's thread, with its connections and sockets; what they carry is `Operations`.

Other threads have it do something by `command`; events go to the caller at the end of a turn. In a turn each socket
gives up to `READ_MAX` datagrams, then each connection runs its timers and sends what its window lets it send of
`AHEAD_BYTES`, compute before bulk. So a turn takes a few milliseconds, whatever queues.
"""

from __future__ import annotations

import contextlib
import itertools
import logging
import selectors
import socket
import time
from collections import deque
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
from transport.engine.aioquic.operations import Operations
from transport.engine.aioquic.receive_streams import code_name
from transport.engine.aioquic.session import Session
from transport.engine.aioquic.udp_socket import UdpPort
from transport.engine.base import (
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
TICK_S = 0.1
"""The thread works at least so often."""
POLL_S_MIN = 0.001
"""The kernel waits whole milliseconds; pacing at 1 Gbit/s needs less."""
HELD_UP_S = 0.5
"""A turn that took longer was not the network's fault: peers are given that time again before they count as dead."""
GOODBYE_S = 0.1
"""What closing waits at most, in all, until full sockets have room for its goodbyes."""

_log = logging.getLogger("hive_qos.transport")


class Core:
    """Everything that belongs to the engine's thread. Only `command`, `snapshot` and `over` are for others.

    Whatever goes wrong in it fails every operation and connection, with the traceback in the log; it never dies
    silently.
    """

    def __init__(self, *, settings: EngineSettings, on_events: Callable[[Sequence[Event]], None]) -> None:
        self.settings = settings
        self.on_events = on_events
        self.over = False
        self.snapshot: dict[int, ConnectionStatistics] = {}
        self._numbers = itertools.count(1)
        self._endpoints: dict[int, Endpoint] = {}
        self._sessions: list[Session] = []
        self._by_number: dict[int, Session] = {}
        self._by_cid: dict[bytes, Session] = {}
        self._commands: deque[Callable[[], None]] = deque()
        self._events: list[Event] = []
        self._finishing = False
        self._now = time.monotonic()
        self._ticked_at = 0.0
        self._wake_read, self._wake_write = socket.socketpair()
        for end in (self._wake_read, self._wake_write):
            end.setblocking(False)
        self._selector = selectors.DefaultSelector()
        self._selector.register(self._wake_read, selectors.EVENT_READ)
        self._tokens = QuicRetryTokenHandler()
        self.operations = Operations(
            store_bytes_max=settings.unexpected_bytes_max,
            sessions=self._by_number,
            emit=lambda event: self._events.append(event),
            clock=lambda: self._now,
        )

    # The thread

    def command(self, action: Callable[[], None]) -> bool:
        """Have the thread do something; from any thread. False where it has ended meanwhile: it will never be done."""
        self._commands.append(action)
        if self.over:
            # The thread takes all that came before `over` could be seen; of what came since, nobody knows but us.
            try:
                self._commands.remove(action)
            except ValueError:
                return True  # taken all the same
            return False
        with contextlib.suppress(OSError):  # full: it wakes anyway; closed: the engine has ended, and has taken this
            self._wake_write.send(b"\0")
        return True

    def finish(self) -> None:
        """End the thread after this turn."""
        self._finishing = True

    def close_descriptors(self) -> None:
        """Close what is open, without a word to anybody: at the end, and in a forked child."""
        self._selector.close()
        for sock in (self._wake_read, self._wake_write, *(one.port.sock for one in self._endpoints.values())):
            sock.close()

    def run(self) -> None:
        """The thread."""
        try:
            while not self._finishing:
                self._turn()
            self._obey()
            self._say_goodbye()
            error: TransportError = CancelledError("the engine was closed here")
        except Exception as failure:  # noqa: BLE001 - whatever it is, every operation has to end and the log has to say why
            _log.exception("the transport engine failed; all its connections are lost")
            error = ConnectionLostError("everybody", f"the engine of this process failed: {failure!r}")
        self.over = True
        # What was asked for until now has its end, too. From here on `command` refuses.
        while self._commands:
            try:
                self._obey()
            except Exception:  # noqa: BLE001 - of an engine that failed: the next may still be done
                _log.exception("what was asked of the transport engine at its end failed")
        self._fail_everything(error)
        self._hand_over()
        self.close_descriptors()

    def _turn(self) -> None:
        due = [session.timer_at for session in self._sessions if session.timer_at is not None]
        next_at = min([self._ticked_at + TICK_S, *due])
        wait_s = 0.0 if self._commands else max(0.0, next_at - time.monotonic())
        if 0 < wait_s < POLL_S_MIN:
            time.sleep(wait_s)
            wait_s = 0.0
        ready = [(key.data, mask) for key, mask in self._selector.select(wait_s)]
        before, self._now = self._now, time.monotonic()
        took_s = self._now - before
        for session in self._sessions if took_s > HELD_UP_S + TICK_S else ():
            session.heard_at += took_s
            session.started_at += took_s
        self._obey()  # before reading: what the caller said first counts first
        for endpoint, mask in ready:
            if endpoint is None:
                self._wake_read.recv(4096)
                continue
            if mask & selectors.EVENT_WRITE:
                self._send(endpoint, [])
            if mask & selectors.EVENT_READ:
                self._read(endpoint)
        self._transmit()
        if self._now - self._ticked_at >= TICK_S:
            self._ticked_at = self._now
            self._tick()
        self._hand_over()

    def _obey(self) -> None:
        while self._commands:
            try:
                action = self._commands.popleft()
            except IndexError:  # `command` has taken it back
                return
            action()

    def _hand_over(self) -> None:
        while self._events:
            events, self._events = self._events, []
            try:
                self.on_events(events)
            except Exception:  # noqa: BLE001 - the caller's bug must not stop the network; the log has it
                _log.exception("on_events raised")

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
        for session in list(self._sessions):
            session.tick(self._now)
            if session.over:
                self._end(session)
        self.snapshot = {number: session.measure(now_s=self._now) for number, session in self._by_number.items()}

    def _close(self, session: Session, code: int, reason: str) -> None:
        session.close(error_code=code, reason_phrase=reason[:500])
        self._end(session, "the connection was closed here")

    # Commands

    def add_endpoint(self, endpoint: Endpoint) -> None:
        """Serve a socket."""
        self._endpoints[endpoint.number] = endpoint
        self._selector.register(endpoint.port.sock, selectors.EVENT_READ, endpoint)

    def rebind(self, number: int, port: UdpPort) -> None:
        """Go on with another socket: what we dialled moves there if it can reach the peer, everything else ends."""
        endpoint = self._endpoints.get(number)
        if endpoint is None:
            port.sock.close()
            return
        before, endpoint.port = endpoint.port, port
        self._selector.unregister(before.sock)
        before.sock.close()
        self.add_endpoint(endpoint)
        fits = before.sock.family == port.sock.family
        for session in [session for session in self._sessions if session.endpoint is endpoint]:
            if fits and session.number is not None and session.attempt is not None:
                session.move()
                session.timer_at = self._now
            else:
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
