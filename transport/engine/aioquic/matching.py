"""Who gets which message: posts and arrivals of one peer, matched by key, and the store for what nobody asked for yet.

Theory of operation
- A message is matched when its header is known: it takes the oldest post with its key, else it waits in the store.
- A post takes the oldest complete waiting message with its key, else the oldest incomplete one.
- The store is bounded by credit, not by trust. An unposted stream may always fill the small window that every stream
  begins with; it is granted its whole length only while no more than half of the store is reserved, so that the other
  half is left for the beginnings of streams that are posted for. A posted stream is granted its whole length at once:
  its memory is the caller's.
- A connection's window counts bytes that arrived and have neither a posted buffer nor a place in the store: the first
  windows of unposted messages that the store cannot take. What the store took whole is bounded by the store. The
  sender keeps a quarter of the window for control messages, for the heads of messages, and for those that were granted
  their length (`outgoing`); so a full store stops unposted messages, while posted ones and control go on.

No sockets, no clock, no QUIC: a `Channel` is what a matcher needs of a connection.
"""

from __future__ import annotations

from collections import OrderedDict, deque
from collections.abc import Callable, Hashable
from dataclasses import dataclass
from typing import Protocol

from hive_qos.errors import CancelledError, ConnectionLostError, PeerError, TransportError
from transport.engine.aioquic.streams import Post, ReceiveStream
from transport.engine.base import Event, OperationFailed, Received, UnexpectedMessage
from transport.wire.error_codes import WireCode
from transport.wire.header import Header, MatchKey

OVERHEAD_BYTES = 2048
"""Charged for every waiting message, so that a million empty ones cannot fill the memory ."""
DISCARD_RULES_MAX = 1024
"""Groups whose abandoned steps are remembered; the oldest rule is forgotten."""


class Channel(Protocol):
    """What a matcher asks of the connection that a stream came over."""

    @property
    def account(self) -> Hashable:
        """Whom the store charges: ranks that share a name have a store each."""

    @property
    def connection(self) -> int:
        """The number by which the caller knows it."""

    def grant(self, stream: ReceiveStream, limit: int) -> None:
        """Let the peer send this stream up to `limit` bytes."""

    def release(self, stream: ReceiveStream) -> None:
        """Count the stream's bytes, and those to come, as no longer held for the peer: the window widens by them."""

    def refuse(self, stream: ReceiveStream, code: WireCode) -> None:
        """Ask the peer to stop sending this stream; what still comes is thrown away."""


@dataclass(eq=False)
class Arrival:
    """A message that waits for a post, complete or not. `channel` is None when its connection has ended."""

    stream: ReceiveStream
    channel: Channel | None
    header: Header
    account: Hashable
    connection: int
    complete: bool = False


class Matcher:
    """Posts and arrivals of one peer. All methods are called from the engine's thread."""

    def __init__(self, peer: str, *, store_bytes_max: int, emit: Callable[[Event], None]) -> None:
        self.peer = peer
        self.store_bytes_max = store_bytes_max
        self._reserved: dict[Hashable, int] = {}
        self._emit = emit
        self._posts: dict[MatchKey, deque[Post]] = {}
        self._arrivals: dict[MatchKey, deque[Arrival]] = {}
        self._by_operation: dict[int, Post] = {}
        self._attached: dict[int, tuple[ReceiveStream, Channel]] = {}
        self._stalled: OrderedDict[int, Arrival] = OrderedDict()
        self._floors: OrderedDict[str, int] = OrderedDict()

    @property
    def reserved(self) -> int:
        """Memory taken by all that waits."""
        return sum(self._reserved.values())

    def full(self, account: Hashable) -> bool:
        """The store holds as much for an account as it may: no new streams, no more credit."""
        return self._reserved.get(account, 0) >= self.store_bytes_max

    @property
    def idle(self) -> bool:
        """Nothing waits on either side."""
        return not (self._by_operation or self._arrivals)

    def post(self, post: Post) -> None:
        """Take a waiting message, or wait for one."""
        self._by_operation[post.operation] = post
        waiting = self._arrivals.get(post.key)
        if not waiting:
            self._posts.setdefault(post.key, deque()).append(post)
            return
        arrival = next((entry for entry in waiting if entry.complete), waiting[0])
        self._remove(arrival)
        stream, channel = arrival.stream, arrival.channel
        held = stream.destination
        if not self._fits(post, stream, channel):
            return
        if arrival.complete:
            self._deliver_stored(post, arrival, held)
        else:
            assert channel is not None
            self._attach(post, stream, channel, held=held)
        if channel is not None:
            channel.release(stream)

    def arrived(self, stream: ReceiveStream, channel: Channel) -> None:
        """A header is known: find the message a place."""
        header = stream.header
        assert header is not None
        key = header.key
        if header.step < self._floors.get(header.group, 0) and header.group:
            self._throw_away(stream, channel)
            return
        posts = self._posts.get(key)
        if posts:
            post = posts.popleft()
            if not posts:
                del self._posts[key]
            if self._fits(post, stream, channel):
                self._attach(post, stream, channel, held=None)
                stream.settle()
            channel.release(stream)
            return
        arrival = Arrival(
            stream=stream, channel=channel, header=header, account=channel.account, connection=channel.connection
        )
        self._arrivals.setdefault(key, deque()).append(arrival)
        self._store(arrival, channel)
        stream.settle()

    def completed(self, stream: ReceiveStream, channel: Channel) -> None:
        """Every byte is there: deliver, or announce."""
        post = stream.post
        header = stream.header
        assert header is not None
        if post is not None:
            self._attached.pop(post.operation, None)
            self._by_operation.pop(post.operation, None)
            buffer = stream.destination
            assert isinstance(buffer, memoryview)
            stream.destination = stream.post = None
            self._emit(Received(post.operation, self.peer, header, buffer[: header.length], channel.connection))
            return
        for arrival in self._arrivals.get(header.key, ()):
            if arrival.stream is stream:
                arrival.complete = True
                self._stalled.pop(id(stream), None)
                self._emit(UnexpectedMessage(self.peer, header))
                return

    def reset(self, stream: ReceiveStream, channel: Channel, *, reason: str) -> None:
        """The peer gave the message up in the middle."""
        post = stream.post
        if post is not None:
            self._forget(post)
            self._emit(OperationFailed(post.operation, CancelledError(f"{self.peer} gave the message up: {reason}")))
            return
        self._drop_arrival(stream, channel)

    def disconnected(self, channel: Channel) -> None:
        """A connection ended: its half messages are gone, and the posts they had taken are first in line again."""
        freed = []
        for operation, (stream, owner) in list(self._attached.items()):
            if owner is channel:
                freed.append(self._by_operation[operation])
                del self._attached[operation]
                stream.post = stream.destination = None
        for waiting in list(self._arrivals.values()):
            for arrival in list(waiting):
                if arrival.channel is channel:
                    if arrival.complete:
                        arrival.channel = None
                    else:
                        self._remove(arrival)
        for post in reversed(freed):
            if self._arrivals.get(post.key):  # sent again already, over another connection
                self.post(post)
            else:
                self._posts.setdefault(post.key, deque()).appendleft(post)

    def fail_posts(self, error: Callable[[], TransportError]) -> None:
        """The last connection to this peer ended: nobody will send any more."""
        for post in list(self._by_operation.values()):
            self._forget(post)
            self._emit(OperationFailed(post.operation, error()))

    def cancel(self, operation: int) -> bool:
        """Withdraw a post; a message that it had taken is refused. Whether there was one."""
        post = self._by_operation.get(operation)
        if post is None:
            return False
        attached = self._attached.get(operation)
        self._forget(post)
        if attached is not None:
            stream, channel = attached
            stream.post = stream.destination = None
            channel.refuse(stream, WireCode.CANCELLED)
        self._emit(OperationFailed(operation, CancelledError(f"the receive from {self.peer} was cancelled here")))
        return True

    def discard(self, *, group: str, before_step: int) -> None:
        """Drop waiting messages of a group's earlier steps, and those that come later."""
        self._floors[group] = max(before_step, self._floors.pop(group, 0))
        if len(self._floors) > DISCARD_RULES_MAX:
            self._floors.popitem(last=False)
        for waiting in list(self._arrivals.values()):
            for arrival in list(waiting):
                if arrival.header.group == group and arrival.header.step < before_step:
                    self._remove(arrival)
                    if arrival.channel is not None:
                        self._throw_away(arrival.stream, arrival.channel, complete=arrival.complete)

    def _throw_away(self, stream: ReceiveStream, channel: Channel, *, complete: bool = False) -> None:
        stream.destination = None
        channel.release(stream)
        if not complete:
            channel.refuse(stream, WireCode.DISCARDED)

    def _fits(self, post: Post, stream: ReceiveStream, channel: Channel | None) -> bool:
        header = stream.header
        assert header is not None
        if post.buffer is None or header.length <= len(post.buffer):
            return True
        self._forget(post)
        stream.destination = None
        if channel is not None:
            channel.release(stream)
            if not stream.complete:
                channel.refuse(stream, WireCode.BUFFER_TOO_SMALL)
        if header.call:  # what it was meant for says more than its length
            self._emit(UnexpectedMessage(self.peer, header))
        reason = f"sent {header.length} bytes where {len(post.buffer)} were expected"
        self._emit(OperationFailed(post.operation, PeerError(self.peer, reason, wire_code=WireCode.BUFFER_TOO_SMALL)))
        return False

    def _attach(
        self, post: Post, stream: ReceiveStream, channel: Channel, *, held: memoryview | bytearray | None
    ) -> None:
        header = stream.header
        assert header is not None
        if post.buffer is None:
            try:
                destination = memoryview(bytearray(header.length))
            except (MemoryError, OverflowError):
                self._forget(post)
                channel.refuse(stream, WireCode.BUFFER_TOO_SMALL)
                error = PeerError(self.peer, f"sent {header.length} bytes, more than there is memory for")
                self._emit(OperationFailed(post.operation, error))
                return
        else:
            destination = post.buffer
        if held is not None:
            have = min(stream.covered, stream.received - stream.head_bytes)
            if have > 0:
                destination[:have] = memoryview(held)[:have]
        stream.destination = destination
        stream.covered = header.length
        stream.post = post
        self._attached[post.operation] = (stream, channel)
        channel.grant(stream, stream.head_bytes + header.length)

    def _deliver_stored(self, post: Post, arrival: Arrival, held: memoryview | bytearray | None) -> None:
        length = arrival.header.length
        self._by_operation.pop(post.operation, None)
        data = memoryview(held) if held is not None else memoryview(bytearray())
        if post.buffer is None:
            payload = data[:length]
        else:
            payload = post.buffer[:length]
            payload[:] = data[:length]
        arrival.stream.destination = None
        self._emit(Received(post.operation, self.peer, arrival.header, payload, arrival.connection))

    def _store(self, arrival: Arrival, channel: Channel) -> None:
        """Reserve memory for an unposted message: all of it, or what the first window allows."""
        stream, length = arrival.stream, arrival.header.length
        window = max(0, min(length, stream.limit - stream.head_bytes))
        reserved = self._reserved.get(arrival.account, 0)
        whole = reserved + length + OVERHEAD_BYTES <= self.store_bytes_max // 2
        stream.covered = length if whole else window
        stream.reserved = stream.covered + OVERHEAD_BYTES
        self._reserved[arrival.account] = reserved + stream.reserved
        stream.destination = bytearray(stream.covered)
        if stream.covered < length:
            self._stalled[id(stream)] = arrival
        else:
            channel.grant(stream, stream.head_bytes + length)
        if whole:
            channel.release(stream)

    def _unstall(self) -> None:
        """Grant stalled messages what has become free, oldest first."""
        for key, arrival in list(self._stalled.items()):
            stream, length = arrival.stream, arrival.header.length
            more = length - stream.covered
            if arrival.channel is None or self._reserved[arrival.account] + more > self.store_bytes_max // 2:
                continue
            assert isinstance(stream.destination, bytearray)
            stream.destination.extend(bytes(more))
            stream.covered = length
            stream.reserved += more
            self._reserved[arrival.account] += more
            del self._stalled[key]
            arrival.channel.grant(stream, stream.head_bytes + length)
            arrival.channel.release(stream)

    def _remove(self, arrival: Arrival) -> None:
        waiting = self._arrivals[arrival.header.key]
        waiting.remove(arrival)
        if not waiting:
            del self._arrivals[arrival.header.key]
        self._stalled.pop(id(arrival.stream), None)
        self._reserved[arrival.account] -= arrival.stream.reserved
        arrival.stream.reserved = 0
        self._unstall()

    def _drop_arrival(self, stream: ReceiveStream, channel: Channel) -> None:
        header = stream.header
        if header is None:
            return
        for arrival in self._arrivals.get(header.key, ()):
            if arrival.stream is stream:
                self._remove(arrival)
                stream.destination = None
                channel.release(stream)
                return

    def _forget(self, post: Post) -> None:
        self._by_operation.pop(post.operation, None)
        attached = self._attached.pop(post.operation, None)
        if attached is not None:
            attached[0].post = attached[0].destination = None
        posts = self._posts.get(post.key)
        if posts and post in posts:
            posts.remove(post)
            if not posts:
                del self._posts[post.key]


def lost(peer: str, reason: str) -> Callable[[], TransportError]:
    """A maker of errors, one for each operation, so that tracebacks are not shared."""
    return lambda: ConnectionLostError(peer, reason)
