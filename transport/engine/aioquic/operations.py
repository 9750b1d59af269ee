"""The messages that somebody waits for: sends under way, posts, and their ends. In the engine's thread.

A send ends with its acknowledgement, the peer's refusal, a cancel, or its connection; a post with its
message, a cancel, or the last connection to its peer. Each ends once, with one event.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

from hive_qos.errors import CancelledError, ConnectionLostError, PeerError, TransportError
from transport.engine.aioquic.matching import Matcher, Post
from transport.engine.aioquic.receive_streams import code_name
from transport.engine.aioquic.send_streams import SendStream
from transport.engine.aioquic.session import Session
from transport.engine.base import Event, Hold, OperationFailed, SendDone
from transport.wire.error_codes import WireCode
from transport.wire.header import U64_MAX, Kind

GROUPS_MAX = 1024
"""Groups whose abandoned steps are remembered; the oldest is forgotten."""


class Operations:
    """All of one engine.

    Args:
        sessions: the connections that are up, by number.
        emit: takes an event for the caller.
        clock: monotonic seconds, of the turn.
    """

    def __init__(
        self,
        *,
        store_bytes_max: int,
        sessions: Mapping[int, Session],
        emit: Callable[[Event], None],
        clock: Callable[[], float],
    ) -> None:
        self._store_bytes_max, self._sessions, self._emit, self._clock = store_bytes_max, sessions, emit, clock
        self._sends: dict[int, tuple[Session, SendStream]] = {}
        self._matchers: dict[str, Matcher] = {}
        self._floors: dict[str, int] = {}
        self._begun: dict[str, int] = {}

    # Commands

    def send(self, number: int, stream: SendStream) -> None:
        """Queue a message."""
        session = self._sessions.get(number)
        if session is None:
            self._fail(stream, ConnectionLostError(f"connection {number}", "it has ended or never was"))
            return
        length, accepted = stream.total - len(stream.prefix), session.message_bytes_max
        if length > accepted:
            reason = f"accepts messages of {accepted} bytes; this has {length}"
            self._fail(stream, PeerError(session.peer, reason))
            return
        self._sends[stream.operation] = (session, stream)
        session.outgoing.submit(stream)
        session.timer_at = self._clock()

    def post(self, post: Post) -> None:
        """Wait for a message."""
        key = post.key
        if key.kind is Kind.COLLECTIVE and key.step > self._begun.get(key.group, -1):
            self._begun[key.group] = key.step
            for matcher in self._matchers.values():
                matcher.release(key.group, key.step)
        self.matcher(post.peer).post(post)
        self._wake_peer(post.peer)

    def cancel(self, operation: int) -> None:
        """End a send or a post."""
        if operation in self._sends:
            session, stream = self._sends[operation]
            error = CancelledError(f"the send to {session.peer} was cancelled here")
            session.outgoing.give_up(stream, WireCode.CANCELLED)
            session.timer_at = self._clock()
            self._fail(stream, error)
            return
        for matcher in self._matchers.values():
            if matcher.cancel(operation):
                self._wake_peer(matcher.peer)
                return

    def discard(self, group: str, before_step: int) -> None:
        """Forget a group's earlier steps."""
        floor = max(before_step, self._floors.pop(group, 0))
        if before_step == 0:
            self._begun.pop(group, None)
            for matcher in self._matchers.values():
                matcher.release(group, U64_MAX)
            return
        self._floors[group] = floor
        if len(self._floors) > GROUPS_MAX:
            del self._floors[next(iter(self._floors))]
        for matcher in self._matchers.values():
            matcher.release(group, floor - 1)
            matcher.discard()
            self._wake_peer(matcher.peer)

    # Of the connections

    def matcher(self, peer: str) -> Matcher:
        """The peer's, made where there is none."""
        if peer not in self._matchers:
            self._matchers[peer] = Matcher(
                peer,
                store_bytes_max=self._store_bytes_max,
                floors=self._floors,
                begun=self._begun,
                emit=self._emit,
            )
        return self._matchers[peer]

    def held(self, peer: str) -> int:
        """Bytes of a peer's messages that nobody has asked for yet."""
        matcher = self._matchers.get(peer)
        return 0 if matcher is None else matcher.reserved

    def sent(self, stream: SendStream) -> None:
        """The peer has acknowledged all of it."""
        stream.payload = None
        if self._sends.pop(stream.operation, None) is not None:
            self._emit(SendDone(stream.operation))

    def stopped(self, stream: SendStream, code: int) -> None:
        """The peer wants no more of it."""
        if stream.operation in self._sends:
            session, _ = self._sends[stream.operation]
            reason = f"refused the message with {code_name(code)}"
            error: TransportError = PeerError(session.peer, reason, wire_code=code)
            if code in (WireCode.CANCELLED, WireCode.DISCARDED):
                error = CancelledError(f"{session.peer} {reason}")
            self._fail(stream, error)

    def hold(self, session: Session, group: str, step: int, waits: bool) -> None:
        """The peer has collectives wait, or go on."""
        if session.number is not None:
            self._emit(Hold(session.number, group, step, waits))

    def lose_sends(self, session: Session, reason: str) -> None:
        """A connection is over: fail what was under way on it."""
        for stream in [stream for owner, stream in self._sends.values() if owner is session]:
            self._fail(stream, ConnectionLostError(session.peer, reason))

    def lose_posts(self, session: Session, reason: str) -> None:
        """A session that was up is over, and none of `sessions` any more: with the last to a peer its posts fail."""
        matcher = self._matchers[session.peer]
        matcher.disconnected(session.incoming)
        if not any(other.peer == session.peer for other in self._sessions.values()):
            matcher.fail_posts(lambda: ConnectionLostError(session.peer, reason))
            if matcher.idle:
                del self._matchers[session.peer]

    # The end

    def fail_all(self, error: TransportError) -> None:
        """The engine ends: every operation does."""
        for _, stream in list(self._sends.values()):
            self._fail(stream, error)
        for matcher in self._matchers.values():
            matcher.fail_posts(lambda: error)

    def _fail(self, stream: SendStream, error: TransportError) -> None:
        self._sends.pop(stream.operation, None)
        stream.payload = None
        self._emit(OperationFailed(stream.operation, error))

    def _wake_peer(self, peer: str) -> None:
        for session in self._sessions.values():
            if session.peer == peer:
                session.timer_at = self._clock()
