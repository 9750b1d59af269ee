"""What one connection receives: message streams, their credit, and the peer's control stream.

aioquic holds every limit that the peer was given against what it sends (RFC 9000 4), and hands on bytes in order. The
connection's window is `window_bytes` less what arrived and is still held for the peer (`matching` says what is held).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Hashable, Mapping
from typing import Any

from transport.engine.aioquic.exceptions import OpenedConnection
from transport.engine.aioquic.matching import Matcher, ReceiveStream
from transport.engine.base import HOLDS_MAX
from transport.wire.control_frames import FrameReader, encode_hold
from transport.wire.error_codes import WireCode, WireError
from transport.wire.header import decode_header, split_header

PIECES_MAX = 4096
"""Separate pieces of all messages of a connection: gaps in what arrived. More is made to cost us memory and time."""
UNSAID_BYTES_MAX = 2**16
"""Of frames that wait for credit. Beyond that, or `HOLDS_MAX`, nobody is held back."""
BEFORE_HELLO_BYTES_MAX = 2**20
"""Of messages that overtake the hello: the windows of the first three round trips are less."""


class Incoming:
    """Streams that the peer opens. The first of them is its control stream.

    Args:
        stream_window_bytes: credit that every stream begins with.
        window_bytes: how much the peer may have on this side that no posted buffer has taken.
        message_bytes_max: longest message accepted.
        say: sends a frame on this side's control stream, unless more than so many bytes wait there; whether it does.
    """

    def __init__(
        self,
        connection: OpenedConnection,
        *,
        first_id: int,
        stream_window_bytes: int,
        window_bytes: int,
        message_bytes_max: int,
        on_control: Callable[[int, Mapping[int, Any]], None],
        say: Callable[[bytes, float], bool],
    ) -> None:
        self.first_id = first_id
        self.stream_window_bytes = stream_window_bytes
        self.window_bytes = window_bytes
        self.message_bytes_max = message_bytes_max
        self.matcher: Matcher | None = None
        self.job = ""
        self.account: Hashable = None
        self.connection = 0
        self._quic = connection
        self._on_control = on_control
        self._say = say
        self._held = 0
        self._streams: dict[int, ReceiveStream] = {}
        self._kept: set[ReceiveStream] = set()
        self._control = FrameReader()

    def on_data(self, stream_id: int, data: bytes, *, end: bool) -> None:
        """The next bytes of a stream.

        Raises:
            WireError: the message's or control frame's bytes break this protocol.
        """
        stream = self._streams.get(stream_id)
        if stream is None:
            stream = self._streams[stream_id] = ReceiveStream(stream_id, self, limit=self.stream_window_bytes)
        stream.received += len(data)
        if stream_id == self.first_id:
            self._control_data(stream, data, end=end)
            return
        stream.complete = end
        if self.matcher is None or stream.header is None:
            stream.head += data
            if self.matcher is None:
                self._check_before_hello()
            else:
                self._advance(stream)
        else:
            self._check_length(stream)
            stream.write(data)
        if end and self.matcher is not None:
            self._finish(stream)
        elif end:
            self._streams[stream_id] = self._streams.pop(stream_id)  # `begin` finds them in the order of their ends

    def on_reset(self, stream_id: int, code: int) -> None:
        """The peer gave a stream up.

        Raises:
            WireError: the control stream was reset.
        """
        if stream_id == self.first_id:
            raise WireError(WireCode.PROTOCOL_VIOLATION, "reset its control stream")
        stream = self._streams.pop(stream_id, None)
        if stream is not None and self.matcher is not None and stream.header is not None:
            self.matcher.reset(stream, reason=f"stream reset with {code_name(code)}")

    def begin(self, matcher: Matcher, *, job: str = "", account: Hashable = None, connection: int = 0) -> None:
        """The peer is verified and has said hello: from now on its messages count.

        Args:
            job: what it said it is of.
            account: whom the store charges for what waits; connections of one rank share one.
            connection: the number by which the caller knows it.
        """
        self.matcher = matcher
        self.job = job
        self.account = account
        self.connection = connection
        for stream in list(self._streams.values()):
            if stream.stream_id != self.first_id:
                self._advance(stream)
                if stream.complete:
                    self._finish(stream)

    def check_kept(self) -> None:
        """Hold what aioquic keeps behind gaps against what it may; ten times a second, for it has to be counted.

        Raises:
            WireError: it is more.
        """
        if self.matcher is None:
            self._check_before_hello()
        if self._quic.pieces > PIECES_MAX:
            raise WireError(WireCode.PROTOCOL_VIOLATION, f"messages in dust: more than {PIECES_MAX} pieces")

    def update(self) -> None:
        """See what more the peer may send."""
        self._quic.streams_held = len(self._kept)
        # Tell the peer when a quarter of the window is free again, or as much as it has left: cheap, and never late.
        quarter, left = self.window_bytes // 4, self._quic.data_limit - self._quic.received_bytes
        if self.window_bytes - left >= quarter:
            held = self._quic.highest_of([number for number, stream in self._streams.items() if not stream.free])
            held += sum(stream.received for stream in self._kept)
            if self.window_bytes - held - left >= min(quarter, left):
                self._quic.grant_data(self._quic.received_bytes - held + self.window_bytes)

    # What a matcher asks for

    def grant(self, stream: ReceiveStream, limit: int) -> None:
        """Let the peer send this stream up to `limit` bytes, and show that it was granted: beyond the first window."""
        stream.limit = max(limit, stream.limit, self.stream_window_bytes + 1)
        self._quic.grant_stream(stream.stream_id, stream.limit)
        self._kept.discard(stream)

    def refuse(self, stream: ReceiveStream, code: WireCode) -> None:
        """STOP_SENDING, while there is more to come."""
        self._kept.discard(stream)
        if stream.stream_id in self._streams and not stream.complete:
            self._quic.stop_stream(stream.stream_id, code)

    def hold(self, group: str, step: int, *, waits: bool) -> bool:
        """Have the peer hold a group's collectives back, or send them. Whether there is room for one more hold."""
        if waits and self._held == HOLDS_MAX:
            return False
        said = self._say(encode_hold(group, step, waits=waits), UNSAID_BYTES_MAX if waits else math.inf)
        self._held += said if waits else -1
        return said

    # Inside

    def _check_before_hello(self) -> None:
        if self._quic.received_bytes > BEFORE_HELLO_BYTES_MAX:
            raise WireError(WireCode.PROTOCOL_VIOLATION, f"more than {BEFORE_HELLO_BYTES_MAX} bytes before its hello")

    def _control_data(self, stream: ReceiveStream, data: bytes, *, end: bool) -> None:
        if end:
            raise WireError(WireCode.PROTOCOL_VIOLATION, "ended its control stream")
        stream.free = True
        for frame_type, fields in self._control.feed(data):
            self._on_control(frame_type, fields)
        # Each side's control stream may always run one window ahead of what was read.
        if stream.limit - stream.received < self.stream_window_bytes // 2:
            self.grant(stream, stream.received + self.stream_window_bytes)

    def _advance(self, stream: ReceiveStream) -> None:
        """Read the header if all of it is there, and find the message a place."""
        assert self.matcher is not None
        split = split_header(stream.head)
        if split is None:
            if stream.complete:
                raise WireError(WireCode.LENGTH_MISMATCH, "a stream ended within its header")
            return
        body, stream.head_bytes = split
        header = decode_header(body)
        if header.length > self.message_bytes_max:
            reason = f"a message of {header.length} bytes where {self.message_bytes_max} are accepted"
            raise WireError(WireCode.MESSAGE_TOO_LONG, reason)
        if header.job and self.job and header.job != self.job:
            raise WireError(WireCode.JOB_MISMATCH, f"a message of job {header.job!r} from job {self.job!r}")
        stream.header = header
        stream.total = stream.head_bytes + header.length
        self._check_length(stream)
        self.matcher.arrived(stream)

    def _finish(self, stream: ReceiveStream) -> None:
        assert self.matcher is not None
        self._streams.pop(stream.stream_id, None)
        self.matcher.completed(stream)
        if not stream.free:
            self._kept.add(stream)

    def _check_length(self, stream: ReceiveStream) -> None:
        if stream.received > stream.total or (stream.complete and stream.received < stream.total):
            stream.complete = False  # or it would be kept for a post when its connection ends
            raise WireError(
                WireCode.LENGTH_MISMATCH,
                f"{stream.received - stream.head_bytes} bytes in a message of {stream.total - stream.head_bytes}",
            )


def code_name(code: int) -> str:
    """The name of an application error code, for people."""
    try:
        return f"{WireCode(code).name} (0x{code:02x})"
    except ValueError:
        return f"0x{code:02x}"
