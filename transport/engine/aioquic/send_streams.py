"""What one connection has to send: message streams by priority, and the small frames that keep credit and resets known.

Strictly by priority, equals in turns of `TURN_BYTES`. A stream gets its number only when its turn comes, so that a
message of higher priority is not kept waiting for stream credit by those before it. Nothing but packets in flight is
ahead of a new message, for nothing is handed to the stack in advance.

The last quarter of the connection's credit (`reserve_bytes`) is kept for control messages, the first `HEAD_BYTES` of
every message, and for messages that the receiver has granted more than the first window: messages that nobody receives
yet can fill all the rest of it and stop nobody else.
"""

from __future__ import annotations

import heapq
from collections import deque
from collections.abc import Callable
from typing import Any

from transport.engine.aioquic.frames import reset_frame, stream_frame_head, stream_head_bytes
from transport.engine.aioquic.streams import SendStream
from transport.wire.varint import encode_varint

TURN_BYTES = 512 * 1024
"""A collective's chunk: chunks then arrive one after another, and the first is reduced while the next is on its way. In
turns of 16 KiB all would arrive together at the end, and 4 MB over 40 Mbit/s take 1.05 s to reduce, not 0.86 s."""
HEAD_BYTES = 8192
"""A header is at most 4104 bytes; a receiver that has it can say whether it wants the message."""
CONTROL_LEVEL = 1
LEVELS = 6
"""The control stream, then the five priorities."""


class Outgoing:
    """Streams of one direction. `first_id` is 2 where this side dialled, 3 where it was dialled (RFC 9000 2.1)."""

    def __init__(self, *, first_id: int, on_sent: Callable[[SendStream], None]) -> None:
        self.streams: dict[int, SendStream] = {}
        self.resets: deque[SendStream] = deque()
        self.credit_bytes = 0
        self.used_bytes = 0
        self.reserve_bytes = 0
        self.streams_allowed = 0
        self.stream_window_bytes = 0
        self._next_id = first_id
        self._on_sent = on_sent
        self._ready: list[deque[SendStream]] = [deque() for _ in range(LEVELS)]
        self._unstarted: list[deque[SendStream]] = [deque() for _ in range(LEVELS)]
        self._turn_bytes = 0

    def submit(self, stream: SendStream) -> None:
        """Queue a new stream at its level."""
        self._unstarted[stream.priority].append(stream)

    def wake(self, stream: SendStream) -> None:
        """Queue a stream that may have work again."""
        if not stream.queued and stream.stream_id >= 0 and stream.reset_code is None and stream.has_work:
            stream.queued = True
            self._ready[stream.priority].append(stream)

    def allow_stream(self, stream_id: int, limit: int) -> None:
        """MAX_STREAM_DATA."""
        stream = self.streams.get(stream_id)
        if stream is not None and limit > stream.peer_limit:
            stream.peer_limit = limit
            self.wake(stream)

    def allow_bytes(self, limit: int) -> None:
        """MAX_DATA."""
        if limit > self.credit_bytes:
            self.credit_bytes = limit
            for stream in self.streams.values():
                self.wake(stream)

    def give_up(self, stream: SendStream, code: int) -> None:
        """RESET_STREAM, or nothing where the stream was never begun. The payload is let go."""
        if stream.reset_code is not None:
            return
        stream.reset_code = code
        stream.release()
        if stream.stream_id >= 0:
            self.resets.append(stream)

    @property
    def has_work(self) -> bool:
        """Something could be put into a packet now."""
        if self.resets or any(self._ready):
            return True
        return any(self._unstarted) and self._may_start()

    @property
    def waiting(self) -> bool:
        """There is something to send, whether or not the peer's credit allows it."""
        return any(self._ready) or any(self._unstarted) or bool(self.streams)

    def fill(self, parts: list[Any], room: int, handlers: list[tuple[Any, Any]]) -> int:
        """Put frames into a packet with `room` bytes left; what is left afterwards."""
        while self.resets and room >= 28:
            stream = self.resets.popleft()
            assert stream.reset_code is not None
            frame = reset_frame(stream_id=stream.stream_id, code=stream.reset_code, final_size=stream.next_offset)
            parts.append(frame)
            handlers.append((self._on_reset_delivery, (stream,)))
            room -= len(frame)
        for level in range(LEVELS):
            if self._unstarted[level]:
                self._start(level)
            queue = self._ready[level]
            while queue and room > 32:
                room = self._fill_from(queue, parts, room, handlers)
            if room <= 32:
                break
        return room

    def _fill_from(self, queue: deque[SendStream], parts: list[Any], room: int, handlers: list[tuple[Any, Any]]) -> int:
        stream = queue[0]
        piece = None
        if stream.reset_code is None:
            at = stream.lost[0][0] if stream.lost else stream.next_offset
            head_bytes = stream_head_bytes(stream.identifier, offset=at)
            fresh = not stream.lost
            piece = stream.take(room - head_bytes, self._credit_for(stream))
        if piece is None:
            queue.popleft()
            stream.queued = False
            self._turn_bytes = 0
            return room
        start, stop = piece
        if fresh:
            self.used_bytes += stop - start
        fin = stop == stream.total and not stream.open_ended
        parts.append(stream_frame_head(stream.identifier, offset=start, length=stop - start, fin=fin))
        parts.extend(stream.read(start, stop))
        handlers.append((self._on_delivery, (stream, start, stop)))
        self._turn_bytes += stop - start
        if not stream.has_work:
            queue.popleft()
            stream.queued = False
            self._turn_bytes = 0
        elif self._turn_bytes >= TURN_BYTES:
            queue.rotate(-1)
            self._turn_bytes = 0
        return room - head_bytes - (stop - start)

    def _credit_for(self, stream: SendStream) -> int:
        """How much of the connection's credit a stream may use."""
        credit = self.credit_bytes - self.used_bytes
        if stream.priority <= CONTROL_LEVEL or stream.peer_limit > self.stream_window_bytes:
            return credit
        return max(credit - self.reserve_bytes, min(credit, HEAD_BYTES - stream.next_offset))

    def _may_start(self) -> bool:
        return self._next_id >> 2 < self.streams_allowed

    def _start(self, level: int) -> None:
        waiting = self._unstarted[level]
        while waiting and self._may_start():
            stream = waiting.popleft()
            if stream.reset_code is not None:
                continue
            stream.stream_id = self._next_id
            stream.identifier = encode_varint(self._next_id)
            self._next_id += 4
            stream.peer_limit = self.stream_window_bytes
            self.streams[stream.stream_id] = stream
            self.wake(stream)

    def _on_delivery(self, state: Any, stream: SendStream, start: int, stop: int) -> None:
        if state.name == "ACKED":
            stream.acked += stop - start
            if stream.done and stream.reset_code is None:
                self.streams.pop(stream.stream_id, None)
                self._on_sent(stream)
        elif stream.reset_code is None:
            heapq.heappush(stream.lost, (start, stop))
            self.wake(stream)

    def _on_reset_delivery(self, state: Any, stream: SendStream) -> None:
        if state.name == "ACKED":
            self.streams.pop(stream.stream_id, None)
        else:
            self.resets.append(stream)
