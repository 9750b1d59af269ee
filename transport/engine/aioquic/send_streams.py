"""What one connection has to send: message streams, handed to aioquic by priority and a little ahead of the wire.

Strictly by priority, equals in turns of `TURN_BYTES`. A stream gets its number only when its turn comes, so that a
message of higher priority is not kept waiting for stream credit by those before it. Only what `feed` was told may wait
in the stack is ahead of a new message, besides packets in flight.

The last quarter of the connection's credit is kept for control messages, the first `HEAD_BYTES` of every message, and
for messages that the receiver has granted more than the first window: messages that nobody receives yet can fill all
the rest of it and stop nobody else.
"""

from __future__ import annotations

import heapq
import itertools
from collections.abc import Callable
from dataclasses import dataclass, field

from transport.engine.aioquic.exceptions import OpenedConnection

HEAD_BYTES = 8192
"""A header is at most 4104 bytes; a receiver that has it can say whether it wants the message."""
TURN_BYTES = 512 * 1024 + HEAD_BYTES
"""A collective's chunk and its header. Chunks then arrive one after another: the first is reduced while the next is on
its way. In turns of 16 KiB all would arrive together, and 4 MB over 40 Mbit/s take 1.05 s to reduce, not 0.86 s."""
CONTROL_LEVEL = 1


@dataclass(eq=False, slots=True, kw_only=True)
class SendStream:
    """One message on its way out (or, `open_ended`, the control stream, which has no end).

    `fed` is how many of its `total` bytes the stack has, `stream_id` is -1 until it has any. `payload` is borrowed, and
    None at the end.
    """

    operation: int
    prefix: bytes
    payload: memoryview | None
    priority: int
    open_ended: bool = False
    stream_id: int = -1
    fed: int = 0
    reset_code: int | None = None
    total: int = field(init=False)

    def __post_init__(self) -> None:
        self.total = len(self.prefix) + (len(self.payload) if self.payload is not None else 0)

    def read(self, stop: int) -> bytes:
        """The bytes from `fed` to `stop`."""
        head, start = len(self.prefix), self.fed
        first = self.prefix[start:stop]
        if self.payload is None or stop <= head:
            return first
        return first + bytes(self.payload[max(start - head, 0) : stop - head])


class Outgoing:
    """Streams of one direction of a connection that is up."""

    def __init__(self, connection: OpenedConnection, *, on_sent: Callable[[SendStream], None]) -> None:
        self._connection = connection
        self._on_sent = on_sent
        self._queue: list[tuple[int, int, SendStream]] = []
        self._turns = itertools.count()
        self._fed: dict[int, SendStream] = {}
        self._credit_most = 0

    def submit(self, stream: SendStream) -> None:
        """Queue a new stream behind its equals."""
        heapq.heappush(self._queue, (stream.priority, next(self._turns), stream))

    @property
    def has_work(self) -> bool:
        """There is something to send, whether or not the peer's credit allows it."""
        return bool(self._queue) or self._waiting() > 0

    def feed(self, bytes_max: float) -> None:
        """Hand bytes to the stack until `bytes_max` wait in it, in the order of the priorities."""
        waiting = self._waiting()
        self._credit_most = max(self._credit_most, self._connection.data_credit)
        held_up = []
        while self._queue and waiting < bytes_max:
            level, turn, stream = heapq.heappop(self._queue)
            turns = stream.fed // TURN_BYTES
            count = self._feed_from(stream, bytes_max=int(bytes_max - waiting), waiting=waiting)
            waiting += count
            if stream.reset_code is not None or stream.fed == stream.total:
                continue
            if stream.fed // TURN_BYTES > turns:
                turn = next(self._turns)
            if count:
                heapq.heappush(self._queue, (level, turn, stream))
            else:
                held_up.append((level, turn, stream))
        for entry in held_up:
            heapq.heappush(self._queue, entry)

    def collect(self) -> None:
        """Tell of the streams that the peer has acknowledged."""
        for stream in [one for one in self._fed.values() if self._connection.is_acked(one.stream_id)]:
            del self._fed[stream.stream_id]
            if stream.reset_code is None:
                self._on_sent(stream)

    def give_up(self, stream: SendStream, code: int) -> None:
        """RESET_STREAM, or nothing where the stream was never begun. The payload is let go."""
        if stream.reset_code is None:
            stream.reset_code = code
            stream.payload = None
            if stream.stream_id >= 0:
                self._connection.reset_stream(stream.stream_id, code)

    def stopped(self, stream_id: int, code: int) -> SendStream | None:
        """The peer wants no more of a stream, which aioquic has reset. The stream, where it still was of use."""
        stream = self._fed.get(stream_id)
        if stream is None or stream.reset_code is not None:
            return None
        self.give_up(stream, code)
        return stream

    def _waiting(self) -> int:
        fed = (stream for stream in self._fed.values() if stream.reset_code is None)
        return sum(stream.fed - self._connection.sent_of(stream.stream_id) for stream in fed)

    def _feed_from(self, stream: SendStream, *, bytes_max: int, waiting: int) -> int:
        """Hand on what may be of one stream, and say how much that was."""
        connection = self._connection
        started = stream.stream_id >= 0
        if stream.reset_code is not None or not (started or connection.may_open_stream):
            return 0
        limit = connection.stream_limit_of(stream.stream_id) if started else connection.first_stream_limit
        credit = connection.data_credit - waiting
        if stream.priority > CONTROL_LEVEL and limit <= connection.first_stream_limit:
            credit = max(credit - self._credit_most // 4, min(credit, HEAD_BYTES - stream.fed))
        stop = min(stream.total, stream.fed + min(bytes_max, credit), limit)
        count = stop - stream.fed
        if count <= 0:
            return 0
        if not started:
            stream.stream_id = connection.get_next_available_stream_id(is_unidirectional=True)
        self._fed[stream.stream_id] = stream
        end = stop == stream.total and not stream.open_ended
        connection.send_stream_data(stream.stream_id, stream.read(stop), end_stream=end)
        stream.fed = stop
        return count
