"""The messages that somebody waits for: sends under way, posts, their deadlines and their ends. In the engine's thread.

A send ends with its acknowledgement, the peer's refusal, its deadline, a cancel, or its connection; a post with its
message, a cancel, or the last connection to its peer. Each ends once, with one event.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable, Mapping

from hive_qos.errors import CancelledError, ConnectionLostError, PeerError, TimedOutError, TransportError
from transport.engine.aioquic.matching import Mailbox, lost
from transport.engine.aioquic.receive_streams import code_name
from transport.engine.aioquic.session import Link
from transport.engine.aioquic.streams import Post, SendStream
from transport.engine.base import Event, OperationFailed, SendDone
from transport.wire.error_codes import WireCode

GROUPS_MAX = 1024
"""Groups whose abandoned steps are remembered for peers that come later; the oldest is forgotten."""


class Operations:
    """All of one engine.

    Args:
        links: the connections that are up, by number.
        emit: takes an event for the caller.
        clock: monotonic seconds, of the turn.
    """

    def __init__(
        self,
        *,
        store_bytes_max: int,
        links: Mapping[int, Link],
        emit: Callable[[Event], None],
        clock: Callable[[], float],
    ) -> None:
        self._store_bytes_max, self._links, self._emit, self._clock = store_bytes_max, links, emit, clock
        self._sends: dict[int, tuple[Link, SendStream]] = {}
        self._deadlines: list[tuple[float, int]] = []
        self._mailboxes: dict[str, Mailbox] = {}
        self._floors: dict[str, int] = {}

    # Commands

    def send(self, number: int, stream: SendStream, deadline_s: float | None) -> None:
        """Queue a message."""
        link = self._links.get(number)
        if link is None:
            stream.release()
            error = ConnectionLostError(f"connection {number}", "it has ended or never was")
            self._emit(OperationFailed(stream.operation, error))
            return
        length, accepted = stream.total - len(stream.prefix), link.message_bytes_max
        if length > accepted:
            stream.release()
            too_long = PeerError(link.peer, f"accepts messages of {accepted} bytes; this has {length}")
            self._emit(OperationFailed(stream.operation, too_long))
            return
        link.sends[stream.operation] = stream
        self._sends[stream.operation] = (link, stream)
        if deadline_s is not None:
            heapq.heappush(self._deadlines, (self._clock() + deadline_s, stream.operation))
        link.connection.outgoing.submit(stream)
        link.timer_at = self._clock()

    def post(self, post: Post) -> None:
        """Wait for a message."""
        self.mailbox(post.peer).post(post)
        self._wake_peer(post.peer)

    def cancel(self, operation: int) -> None:
        """End a send or a post."""
        if operation in self._sends:
            link, _ = self._sends[operation]
            self._abandon(operation, WireCode.CANCELLED, CancelledError(f"the send to {link.peer} was cancelled here"))
            return
        for mailbox in self._mailboxes.values():
            if mailbox.cancel(operation):
                self._wake_peer(mailbox.peer)
                return

    def discard(self, group: str, before_step: int) -> None:
        """Forget a group's earlier steps."""
        self._floors[group] = max(before_step, self._floors.pop(group, 0))
        if len(self._floors) > GROUPS_MAX:
            del self._floors[next(iter(self._floors))]
        for mailbox in self._mailboxes.values():
            mailbox.discard(group=group, before_step=before_step)
            self._wake_peer(mailbox.peer)

    # Of the connections

    def mailbox(self, peer: str) -> Mailbox:
        """The peer's, made where there is none."""
        mailbox = self._mailboxes.get(peer)
        if mailbox is None:
            mailbox = self._mailboxes[peer] = Mailbox(peer, store_bytes_max=self._store_bytes_max, emit=self._emit)
            for group, before_step in self._floors.items():
                mailbox.discard(group=group, before_step=before_step)
        return mailbox

    def held(self, peer: str) -> int:
        """Bytes of a peer's messages that nobody has asked for yet."""
        mailbox = self._mailboxes.get(peer)
        return 0 if mailbox is None else mailbox.reserved

    def sent(self, stream: SendStream) -> None:
        """The peer has acknowledged all of it."""
        found = self._sends.pop(stream.operation, None)
        stream.release()
        if found is not None:
            del found[0].sends[stream.operation]
            self._emit(SendDone(stream.operation))

    def stopped(self, stream: SendStream, code: int) -> None:
        """The peer wants no more of it."""
        found = self._sends.pop(stream.operation, None)
        if found is not None:
            link = found[0]
            del link.sends[stream.operation]
            reason = f"refused the message with {code_name(code)}"
            error: TransportError = PeerError(link.peer, reason, wire_code=code)
            if code in (WireCode.CANCELLED, WireCode.DISCARDED):
                error = CancelledError(f"{link.peer} {reason}")
            self._emit(OperationFailed(stream.operation, error))

    def lose_sends(self, link: Link, reason: str) -> None:
        """A connection is over: fail what was under way on it."""
        for operation, stream in list(link.sends.items()):
            self._sends.pop(operation, None)
            stream.release()
            self._emit(OperationFailed(operation, ConnectionLostError(link.peer, reason)))
        link.sends.clear()

    def lose_posts(self, link: Link, reason: str) -> None:
        """A connection that was up is over, and is none of `links` any more: with the last to a peer its posts fail."""
        mailbox = self._mailboxes[link.peer]
        mailbox.disconnected(link.connection.incoming)
        if not any(other.peer == link.peer for other in self._links.values()):
            mailbox.fail_posts(lost(link.peer, reason))
            if mailbox.idle:
                del self._mailboxes[link.peer]

    # Time, and the end

    def next_deadline_at(self) -> float | None:
        """When a send has to be done."""
        return self._deadlines[0][0] if self._deadlines else None

    def expire(self, now: float) -> None:
        """Abandon sends whose deadline has passed."""
        while self._deadlines and self._deadlines[0][0] <= now:
            _, operation = heapq.heappop(self._deadlines)
            if operation in self._sends:
                link, stream = self._sends[operation]
                error = TimedOutError(
                    f"sending to {link.peer}",
                    timeout_s=stream.timeout_s,
                    bytes_done=link.connection.outgoing.acked(stream),
                    bytes_total=stream.total,
                )
                self._abandon(operation, WireCode.DEADLINE_PASSED, error)

    def fail_all(self, error: TransportError) -> None:
        """The engine ends: every operation does."""
        for operation, (link, stream) in self._sends.items():
            stream.release()
            link.sends.clear()
            self._emit(OperationFailed(operation, error))
        self._sends.clear()
        for mailbox in self._mailboxes.values():
            mailbox.fail_posts(lambda: error)

    def _abandon(self, operation: int, code: WireCode, error: TransportError) -> None:
        link, stream = self._sends.pop(operation)
        del link.sends[operation]
        link.connection.outgoing.give_up(stream, code)
        link.timer_at = self._clock()
        self._emit(OperationFailed(operation, error))

    def _wake_peer(self, peer: str) -> None:
        for link in self._links.values():
            if link.peer == peer:
                link.timer_at = self._clock()
