"""What one connection receives: message streams, their credit, and the peer's control stream.

Every limit that the peer was given is held against what it sends (RFC 9000 4): bytes of a stream, bytes of the
connection, number of streams, and a final size that never changes. The connection's window is what arrived and is still
held for the peer, plus `window_bytes`; see `mailbox` for what is held.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Hashable, Mapping
from typing import Any

from transport.engine.aioquic.frames import max_data_frame, max_stream_data_frame, max_streams_frame, stop_frame
from transport.engine.aioquic.matching import Mailbox
from transport.engine.aioquic.streams import ReceiveStream
from transport.wire.control_frames import FrameReader
from transport.wire.error_codes import WireCode, WireError
from transport.wire.header import decode_header

STREAM_STATE_ERROR, STREAM_LIMIT_ERROR, FLOW_CONTROL_ERROR, FINAL_SIZE_ERROR = 0x05, 0x04, 0x03, 0x06

CONTROL_AHEAD_BYTES_MAX = 65536
"""Of the control stream beyond what was read: frames are at most 4 KiB and are read as they come."""
PIECES_MAX = 4096
"""Separate pieces of all messages of a connection: gaps in what arrived. More is made to cost us memory and time."""
CONTROL_PIECES_MAX = 64
BEFORE_HELLO_BYTES_MAX = 2**20
"""Of messages that overtake the hello: the windows of the first three round trips are less."""


class TransportViolation(Exception):
    """The peer broke QUIC itself: a transport error code of RFC 9000 20.1 and why."""

    def __init__(self, code: int, reason: str) -> None:
        super().__init__(reason)
        self.code = code
        self.reason = reason


class Incoming:
    """Streams that the peer opens. `first_id` is 3 where this side dialled, 2 where it was dialled.

    Args:
        stream_window_bytes: credit that every stream begins with.
        window_bytes: how much the peer may have on this side that no posted buffer has taken.
        streams_max: streams open at once.
        message_bytes_max: longest message accepted.
    """

    def __init__(
        self,
        *,
        first_id: int,
        stream_window_bytes: int,
        window_bytes: int,
        streams_max: int,
        message_bytes_max: int,
        on_control: Callable[[int, Mapping[int, Any]], None],
    ) -> None:
        self.first_id = first_id
        self.stream_window_bytes = stream_window_bytes
        self.window_bytes = window_bytes
        self.streams_max = streams_max
        self.message_bytes_max = message_bytes_max
        self.mailbox: Mailbox | None = None
        self.job = ""
        self.account: Hashable = None
        self.connection = 0
        self._pieces = 0
        self.received_bytes = 0
        self._on_control = on_control
        self._streams: dict[int, ReceiveStream] = {}
        self._opened = 0
        self._closed = 0
        self._streams_allowed = streams_max
        self._bytes_allowed = window_bytes
        self._consumed = 0
        self._control = FrameReader()
        self._control_pieces: dict[int, bytes] = {}
        self._control_at = 0
        self._credit: OrderedDict[int, ReceiveStream] = OrderedDict()
        self._stops: OrderedDict[int, WireCode] = OrderedDict()
        self._max_data_due = False
        self._max_streams_due = False

    # What arrives

    def on_stream(self, stream_id: int, offset: int, data: bytes | memoryview, fin: bool) -> None:
        """A STREAM frame.

        Raises:
            TransportViolation: beyond a limit, or on a stream that is not the peer's.
            WireError: the message's or control frame's bytes break this protocol.
        """
        stream = self._find(stream_id)
        if stream is None:
            return
        stop = offset + len(data)
        self._count(stream, stop)
        if self.mailbox is None and self.received_bytes > BEFORE_HELLO_BYTES_MAX:
            raise WireError(WireCode.PROTOCOL_VIOLATION, f"more than {BEFORE_HELLO_BYTES_MAX} bytes before its hello")
        pieces = stream.pieces
        if stream.final_size is not None and stop > stream.final_size:
            raise TransportViolation(FINAL_SIZE_ERROR, "data beyond the final size")
        if fin:
            if stop < stream.highest or (stream.final_size is not None and stop != stream.final_size):
                raise TransportViolation(FINAL_SIZE_ERROR, "the final size changed")
            stream.final_size = stop
        if stream_id == self.first_id:
            self._control_data(stream, offset, data, fin=fin)
        elif stream.header is None:
            stream.hold(offset, data)
            if self.mailbox is not None:
                self._advance(stream)
        else:
            if stop > stream.total:
                self._check_length(stream)
            stream.write(offset, data)
            stream.ranges.add(offset, stop)
            if stream.final_size is not None:
                self._finish_if_complete(stream)
        if stream_id in self._streams:
            self._pieces += stream.pieces - pieces
        else:
            self._pieces -= pieces
        if self._pieces > PIECES_MAX:
            raise WireError(WireCode.PROTOCOL_VIOLATION, f"messages in dust: more than {PIECES_MAX} pieces")

    def on_reset(self, stream_id: int, code: int, final_size: int) -> None:
        """A RESET_STREAM frame.

        Raises:
            TransportViolation: as for `on_stream`.
            WireError: the control stream was reset.
        """
        stream = self._find(stream_id)
        if stream is None:
            return
        if final_size < stream.highest or stream.final_size not in (None, final_size):
            raise TransportViolation(FINAL_SIZE_ERROR, "the final size changed")
        if stream_id == self.first_id:
            raise WireError(WireCode.PROTOCOL_VIOLATION, "reset its control stream")
        self._count(stream, final_size)
        if self.mailbox is not None and stream.header is not None:
            self.mailbox.reset(stream, self, reason=f"stream reset with {code_name(code)}")
        if not stream.free:
            self.release(stream)
        self._pieces -= stream.pieces
        self._close(stream)

    def begin(self, mailbox: Mailbox, *, job: str = "", account: Hashable = None, connection: int = 0) -> None:
        """The peer is verified and has said hello: from now on its messages count.

        Args:
            job: what it said it is of.
            account: whom the store charges for what waits; connections of one rank share one.
            connection: the number by which the caller knows it.
        """
        self.mailbox = mailbox
        self.job = job
        self.account = account
        self.connection = connection
        for stream in list(self._streams.values()):
            if stream.stream_id != self.first_id and stream.header is None:
                self._advance(stream)
        self._pieces = sum(stream.pieces for stream in self._streams.values())

    # What a mailbox asks for (mailbox.Channel)

    def grant(self, stream: ReceiveStream, limit: int) -> None:
        """Let the peer send this stream up to `limit` bytes."""
        if limit > stream.limit:
            stream.limit = limit
            self._credit[stream.stream_id] = stream

    def release(self, stream: ReceiveStream) -> None:
        """Count the stream's bytes, and those to come, as no longer held."""
        if not stream.free:
            stream.free = True
            self._consume(stream.highest)
        self._allow_streams()

    def refuse(self, stream: ReceiveStream, code: WireCode) -> None:
        """STOP_SENDING; what still comes is thrown away."""
        stream.destination = None
        if stream.stream_id in self._streams and not stream.complete:
            stream.refused = True
            self._stops[stream.stream_id] = code

    # What is to be told

    @property
    def has_work(self) -> bool:
        """There are frames to write."""
        return bool(self._credit or self._stops or self._max_data_due or self._max_streams_due)

    def fill(self, parts: list[Any], room: int, handlers: list[tuple[Any, Any]]) -> int:
        """Put credit and refusals into a packet; what room is left afterwards. Each is at most 17 bytes."""
        if self._max_data_due and room >= 32:
            self._bytes_allowed = self._consumed + self.window_bytes
            self._max_data_due = False
            room = _put(max_data_frame(self._bytes_allowed), parts, room)
            handlers.append((self._on_max_data_delivery, ()))
        if self._max_streams_due and room >= 32:
            self._streams_allowed = self._closed + self.streams_max
            self._max_streams_due = False
            room = _put(max_streams_frame(self._streams_allowed), parts, room)
            handlers.append((self._on_max_streams_delivery, ()))
        while self._stops and room >= 32:
            stream_id, code = self._stops.popitem(last=False)
            room = _put(stop_frame(stream_id=stream_id, code=code), parts, room)
            handlers.append((self._on_stop_delivery, (stream_id, code)))
        while self._credit and room >= 32:
            stream_id, stream = self._credit.popitem(last=False)
            room = _put(max_stream_data_frame(stream_id=stream_id, limit=stream.limit), parts, room)
            handlers.append((self._on_credit_delivery, (stream,)))
        return room

    # Inside

    def _find(self, stream_id: int) -> ReceiveStream | None:
        stream = self._streams.get(stream_id)
        if stream is not None:
            return stream
        if stream_id & 3 != self.first_id:
            raise TransportViolation(STREAM_STATE_ERROR, f"stream {stream_id} is none that the peer may send on")
        index = stream_id >> 2
        if index < self._opened:
            return None
        if index >= self._streams_allowed:
            raise TransportViolation(STREAM_LIMIT_ERROR, f"stream {index} where {self._streams_allowed} are allowed")
        for number in range(self._opened, index + 1):  # the lower ones are open too (RFC 9000 2.1)
            new_id = (number << 2) | self.first_id
            self._streams[new_id] = ReceiveStream(new_id, limit=self.stream_window_bytes)
        self._opened = index + 1
        return self._streams[stream_id]

    def _count(self, stream: ReceiveStream, stop: int) -> None:
        if stop <= stream.highest:
            return
        if stop > stream.limit:
            raise TransportViolation(FLOW_CONTROL_ERROR, f"{stop} bytes of a stream where {stream.limit} are allowed")
        more = stop - stream.highest
        if self.received_bytes + more > self._bytes_allowed:
            raise TransportViolation(FLOW_CONTROL_ERROR, f"more than the {self._bytes_allowed} bytes that are allowed")
        self.received_bytes += more
        stream.highest = stop
        if stream.free:
            self._consume(more)

    def _consume(self, count: int) -> None:
        self._consumed += count
        # Tell the peer when a quarter of the window is free again: 4 frames a window are cheap and never late.
        if self._consumed + self.window_bytes - self._bytes_allowed >= self.window_bytes // 4:
            self._max_data_due = True

    def _control_data(self, stream: ReceiveStream, offset: int, data: bytes | memoryview, *, fin: bool) -> None:
        if fin:
            raise WireError(WireCode.PROTOCOL_VIOLATION, "ended its control stream")
        if not stream.free:
            stream.free = True
            self._consume(stream.highest)
        if offset + len(data) > self._control_at + CONTROL_AHEAD_BYTES_MAX:
            raise WireError(WireCode.PROTOCOL_VIOLATION, "its control stream runs too far ahead of what is read")
        self._control_pieces[offset] = bytes(data)
        if len(self._control_pieces) > CONTROL_PIECES_MAX:
            raise WireError(WireCode.PROTOCOL_VIOLATION, "its control stream is in dust")
        while True:
            piece = next((at for at in self._control_pieces if at <= self._control_at), None)
            if piece is None:
                break
            fresh = self._control_pieces.pop(piece)[self._control_at - piece :]
            self._control_at += len(fresh)
            for frame_type, fields in self._control.feed(fresh):
                self._on_control(frame_type, fields)
        # Each side's control stream may always run one window ahead of what was read.
        if stream.limit - self._control_at < self.stream_window_bytes // 2:
            self.grant(stream, self._control_at + self.stream_window_bytes)

    def _advance(self, stream: ReceiveStream) -> None:
        """Read the header if all of it is there, and find the message a place."""
        assert self.mailbox is not None
        body = stream.front_bytes() if stream.ranges.front else None
        if body is None:
            if stream.complete:
                raise WireError(WireCode.LENGTH_MISMATCH, "a stream ended within its header")
            return
        header = decode_header(body)
        if header.length > self.message_bytes_max:
            reason = f"a message of {header.length} bytes where {self.message_bytes_max} are accepted"
            raise WireError(WireCode.MESSAGE_TOO_LONG, reason)
        if header.job and self.job and header.job != self.job:
            raise WireError(WireCode.JOB_MISMATCH, f"a message of job {header.job!r} from job {self.job!r}")
        stream.header = header
        stream.total = stream.head_bytes + header.length
        self._check_length(stream)
        self.mailbox.arrived(stream, self)
        if stream.final_size is not None:
            self._finish_if_complete(stream)

    def _finish_if_complete(self, stream: ReceiveStream) -> None:
        self._check_length(stream)
        if not stream.complete:
            return
        assert self.mailbox is not None
        self._close(stream)
        self.mailbox.completed(stream, self)

    def _check_length(self, stream: ReceiveStream) -> None:
        assert stream.header is not None
        total = stream.head_bytes + stream.header.length
        if stream.highest > total or stream.final_size not in (None, total):
            raise WireError(
                WireCode.LENGTH_MISMATCH,
                f"{max(stream.highest, stream.final_size or 0) - stream.head_bytes} bytes in a message of "
                f"{stream.header.length}",
            )

    def _close(self, stream: ReceiveStream) -> None:
        self._streams.pop(stream.stream_id, None)
        self._credit.pop(stream.stream_id, None)
        self._stops.pop(stream.stream_id, None)
        self._closed += 1
        self._allow_streams()

    def _allow_streams(self) -> None:
        """Let the peer open as many again, in batches, and none while its store is full."""
        if self.mailbox is not None and self.mailbox.full(self.account):
            return
        if self._closed + self.streams_max - self._streams_allowed > self.streams_max // 4:
            self._max_streams_due = True

    def _on_max_data_delivery(self, state: Any) -> None:
        self._max_data_due = self._max_data_due or state.name != "ACKED"

    def _on_max_streams_delivery(self, state: Any) -> None:
        self._max_streams_due = self._max_streams_due or state.name != "ACKED"

    def _on_stop_delivery(self, state: Any, stream_id: int, code: WireCode) -> None:
        if state.name != "ACKED" and stream_id in self._streams:
            self._stops[stream_id] = code

    def _on_credit_delivery(self, state: Any, stream: ReceiveStream) -> None:
        if state.name != "ACKED" and stream.stream_id in self._streams:
            self._credit[stream.stream_id] = stream


def code_name(code: int) -> str:
    """The name of an application error code, for people."""
    try:
        return f"{WireCode(code).name} (0x{code:02x})"
    except ValueError:
        return f"0x{code:02x}"


def _put(frame: bytes, parts: list[Any], room: int) -> int:
    parts.append(frame)
    return room - len(frame)
