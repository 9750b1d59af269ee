"""Who gets which message: posts and arrivals of one peer, matched by key, and the store for what nobody asked for yet.

Theory of operation
- A message is matched when its header is known: it takes the oldest post with its key, else it waits in the store.
- A post takes the message with its key that was complete first, else the oldest incomplete one.
- The store is bounded by credit, not by trust. An unposted stream may always fill the small window that every stream
  begins with. It is granted its whole length only while the store has room: all of it for a message that fits that
  window, half for a longer one. A posted stream is granted its whole length at once: its memory is the caller's. A
  grant goes beyond the first window, also where the message does not, so that its sender sees it.
- A connection's window counts bytes that arrived and have neither a posted buffer nor a place in the store: the first
  windows of unposted messages that the store cannot take. Complete ones count too, and as open streams. What the store
  took whole is bounded by the store. The sender keeps a quarter of the window for control messages, for the heads of
  messages, and for those that were granted (`outgoing`); so a full store stops unposted messages, while posted ones and
  control go on.

No sockets, no clock; of a connection a matcher knows only its `Incoming`, which takes credit and refusals.
"""

from __future__ import annotations

from collections import OrderedDict, deque
from collections.abc import Callable, Hashable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from hive_qos.errors import CancelledError, PeerError, TransportError
from transport.engine.aioquic.holds import Held
from transport.engine.base import Event, OperationFailed, Received, UnexpectedMessage
from transport.wire.error_codes import WireCode
from transport.wire.header import Header, MatchKey

if TYPE_CHECKING:
    from transport.engine.aioquic.receive_streams import Incoming

OVERHEAD_BYTES = 2048
"""Charged for every waiting message, so that a million empty ones cannot fill the memory."""


@dataclass(eq=False)
class Post:
    """A buffer that waits for a message, or for the rest of the one that `stream` brings."""

    operation: int
    peer: str
    key: MatchKey
    buffer: memoryview | None
    stream: ReceiveStream | None = None


@dataclass(eq=False, slots=True)
class ReceiveStream:
    """One message on its way in; its bytes come in order.

    `limit` is how far the peer may send by flow control, `received` how many bytes have come, `total` how many there
    will be. While `header` is None, they wait in `head`. Then payload goes to `destination`: a posted buffer, the
    store's memory, which grows as it comes, or None when it is discarded. `reserved` is what it takes of the store.
    `free` says that its bytes are not held for the peer any more (posted for, in the store whole, or thrown away).
    `channel` is what it came over, None when that has ended; `account` is whom the store charges, `connection` the
    number by which the caller knows the channel.
    """

    stream_id: int
    channel: Incoming | None
    limit: int
    account: Hashable = None
    connection: int = 0
    received: int = 0
    complete: bool = False
    header: Header | None = None
    head: bytearray = field(default_factory=bytearray)
    head_bytes: int = 0
    total: int = 0
    destination: memoryview | bytearray | None = None
    post: Post | None = None
    reserved: int = 0
    free: bool = False

    @property
    def message(self) -> Header:
        """The header, once it is known."""
        assert self.header is not None
        return self.header

    def write(self, data: bytes | memoryview) -> None:
        """Take the next payload bytes: `received` counts them already."""
        stop = self.received - self.head_bytes
        if self.destination is not None:
            self.destination[stop - len(data) : stop] = data

    def settle(self) -> None:
        """Write what came with the header, now that `destination` is set."""
        self.write(memoryview(self.head)[self.head_bytes :])
        self.head = bytearray()


class Matcher:
    """Posts and arrivals of one peer. All methods are called from the engine's thread.

    Args:
        floors: by group, the step before which messages are abandoned; the caller's, and looked up when it matters.
        begun: by group, its latest operation that has begun; likewise.
    """

    def __init__(
        self,
        peer: str,
        *,
        store_bytes_max: int,
        floors: Mapping[str, int],
        begun: Mapping[str, int],
        emit: Callable[[Event], None],
    ) -> None:
        self.peer = peer
        self.store_bytes_max = store_bytes_max
        self._floors = floors
        self._begun = begun
        self._emit = emit
        self._reserved: dict[Hashable, int] = {}
        self._operations: dict[int, Post] = {}
        self._posts: dict[MatchKey, deque[Post]] = {}
        self._arrivals: dict[MatchKey, OrderedDict[ReceiveStream, None]] = {}
        self._stalled: dict[ReceiveStream, None] = {}
        self._held = Held()

    @property
    def reserved(self) -> int:
        """Memory taken by all that waits."""
        return sum(self._reserved.values())

    @property
    def idle(self) -> bool:
        """Nothing waits on either side."""
        return not (self._operations or self._arrivals)

    # What the caller asks for

    def post(self, post: Post) -> None:
        """Take a waiting message, or wait for one."""
        self._operations[post.operation] = post
        waiting = self._arrivals.get(post.key)
        if not waiting:
            self._posts.setdefault(post.key, deque()).append(post)
            return
        stream = next((one for one in waiting if one.complete), next(iter(waiting)))
        self._remove(stream)
        self._attach(post, stream)
        if stream.complete:
            self.completed(stream)

    def release(self, group: str, last: int) -> None:
        """A group's operations to this one have begun, or are over."""
        self._held.release(group, last)

    def cancel(self, operation: int) -> bool:
        """Withdraw a post; a message that it had taken is refused. Whether there was one."""
        post = self._operations.get(operation)
        if post is None:
            return False
        if post.stream is not None:
            self._refuse(post.stream, WireCode.CANCELLED)
        self._fail(post, CancelledError(f"the receive from {self.peer} was cancelled here"))
        return True

    def discard(self) -> None:
        """Drop waiting messages of abandoned steps."""
        for waiting in list(self._arrivals.values()):
            for stream in list(waiting):
                if self._abandoned(stream.message):
                    self._remove(stream)
                    self._refuse(stream, WireCode.DISCARDED)

    # What the connections say

    def arrived(self, stream: ReceiveStream) -> None:
        """A header is known: find the message a place."""
        assert stream.channel is not None
        stream.account, stream.connection = stream.channel.account, stream.channel.connection
        key = stream.message.key
        posts = self._posts.get(key)
        if self._abandoned(stream.message):
            self._refuse(stream, WireCode.DISCARDED)
        elif posts:
            post = posts.popleft()
            if not posts:
                del self._posts[key]
            self._attach(post, stream)
        else:
            self._arrivals.setdefault(key, OrderedDict())[stream] = None
            self._store(stream)
        stream.settle()

    def completed(self, stream: ReceiveStream) -> None:
        """Every byte is there: deliver, or announce."""
        header, post, buffer = stream.message, stream.post, stream.destination
        if buffer is None:
            return  # nobody wants it any more
        if post is None:
            self._arrivals[header.key].move_to_end(stream)  # behind those that were complete before
            self._emit(UnexpectedMessage(self.peer, header))
            return
        self._forget(post)
        payload = memoryview(buffer)[: header.length]
        self._emit(Received(post.operation, self.peer, header, payload, stream.connection))

    def reset(self, stream: ReceiveStream, *, reason: str) -> None:
        """The peer gave the message up in the middle."""
        if stream.post is not None:
            self._fail(stream.post, CancelledError(f"{self.peer} gave the message up: {reason}"))
        elif stream.destination is not None:
            self._remove(stream)
            stream.destination = None

    def disconnected(self, channel: Incoming) -> None:
        """A connection ended: its half messages are gone, and the posts they had taken are first in line again."""
        self._held.forget(channel)
        for waiting in list(self._arrivals.values()):
            for stream in [one for one in waiting if one.channel is channel]:
                stream.channel = None
                if not stream.complete:
                    self._remove(stream)
        posts = [post for post in self._operations.values() if post.stream and post.stream.channel is channel]
        for post in reversed(posts):
            _detach(post)
            if self._arrivals.get(post.key):  # sent again already, over another connection
                self.post(post)
            else:
                self._posts.setdefault(post.key, deque()).appendleft(post)

    def fail_posts(self, error: Callable[[], TransportError]) -> None:
        """The last connection to this peer ended: nobody will send any more. Each post has an error of its own."""
        for post in list(self._operations.values()):
            self._fail(post, error())

    # Inside

    def _abandoned(self, header: Header) -> bool:
        return bool(header.group) and header.step < self._floors.get(header.group, 0)

    def _refuse(self, stream: ReceiveStream, code: WireCode) -> None:
        """Have the peer stop; what still comes is thrown away."""
        stream.destination = None
        stream.free = True
        if stream.channel is not None:
            stream.channel.refuse(stream, code)

    def _attach(self, post: Post, stream: ReceiveStream) -> None:
        """Give the post's buffer to the stream, with what the store has of it; or fail the post."""
        header, held, buffer = stream.message, stream.destination, post.buffer
        room = self.store_bytes_max if buffer is None else len(buffer)
        if header.length > room:
            self._refuse(stream, WireCode.BUFFER_TOO_SMALL)
            if header.call:  # what it was meant for says more than its length
                self._emit(UnexpectedMessage(self.peer, header))
            reason = f"sent {header.length} bytes where {room} were expected"
            self._fail(post, PeerError(self.peer, reason, wire_code=WireCode.BUFFER_TOO_SMALL))
            return
        buffer = memoryview(bytearray(header.length)) if buffer is None else buffer
        if held is not None:
            have = stream.received - stream.head_bytes
            buffer[:have] = memoryview(held)[:have]
        stream.destination, stream.post, stream.free = buffer, post, True
        post.stream = stream
        if stream.channel is not None:
            stream.channel.grant(stream, stream.head_bytes + header.length)

    def _store(self, stream: ReceiveStream) -> None:
        """Keep an unposted message: all of it where there is room, else what the first window allows."""
        window = max(0, min(stream.message.length, stream.limit - stream.head_bytes))
        stream.destination = bytearray()  # memory is taken as it comes
        stream.reserved = window + OVERHEAD_BYTES
        self._reserved[stream.account] = self._reserved.get(stream.account, 0) + stream.reserved
        self._stalled[stream] = None
        self._place(stream)
        crowded = not stream.free or self._reserved[stream.account] > self.store_bytes_max // 2
        if crowded and stream.message.step > self._begun.get(stream.message.group, -1):
            self._held.hold(stream)

    def _place(self, stream: ReceiveStream) -> None:
        """Grant a stalled message its length if the store has room for it."""
        more = stream.message.length + OVERHEAD_BYTES - stream.reserved
        room = self.store_bytes_max // 2 if more else self.store_bytes_max
        if stream.channel is not None and self._reserved[stream.account] + more <= room:
            stream.reserved += more
            self._reserved[stream.account] += more
            del self._stalled[stream]
            stream.free = True
            stream.channel.grant(stream, stream.total)

    def _remove(self, stream: ReceiveStream) -> None:
        """Take a message out of the store; its bytes stay in `destination`."""
        waiting = self._arrivals[stream.message.key]
        del waiting[stream]
        if not waiting:
            del self._arrivals[stream.message.key]
        self._stalled.pop(stream, None)
        self._reserved[stream.account] -= stream.reserved
        stream.reserved = 0
        for stalled in list(self._stalled):  # oldest first
            self._place(stalled)

    def _forget(self, post: Post) -> None:
        """Take a post out of everything that knows it."""
        self._operations.pop(post.operation, None)
        _detach(post)
        posts = self._posts.get(post.key)
        if posts and post in posts:
            posts.remove(post)
            if not posts:
                del self._posts[post.key]

    def _fail(self, post: Post, error: TransportError) -> None:
        self._forget(post)
        self._emit(OperationFailed(post.operation, error))


def _detach(post: Post) -> None:
    """Take the post from the stream that it was for, whose bytes are then thrown away."""
    stream, post.stream = post.stream, None
    if stream is not None:
        stream.post = stream.destination = None
