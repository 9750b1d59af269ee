"""The two halves of a message stream, without any QUIC: what is still to send, and where what arrives goes."""

from __future__ import annotations

import math
from collections.abc import Hashable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from transport.wire.header import Header, MatchKey, split_header

if TYPE_CHECKING:
    from transport.engine.aioquic.receive_streams import Incoming


@dataclass(eq=False, slots=True, kw_only=True)
class SendStream:
    """One message on its way out (or, `open_ended`, the control stream, which has no end).

    `fed` is how many of its `total` bytes the stack has; `stream_id` is -1 until it has any.
    """

    operation: int
    prefix: bytes
    payload: memoryview | None
    priority: int
    timeout_s: float = 0.0
    deadline_at: float = math.inf
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

    def release(self) -> None:
        """Let go of the borrowed payload."""
        self.payload = None


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
    store's memory, which may be shorter than the message, or None when it is discarded. `reserved` is what it takes of
    the store. `free` says that its bytes are not held for the peer any more (posted for, or thrown away).
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

    def split(self) -> bytes | None:
        """The header's CBOR bytes, once all of them have come; sets `head_bytes`.

        Raises:
            WireError: the header's length is not allowed.
        """
        split = split_header(self.head)
        if split is None:
            return None
        body, self.head_bytes = split
        return body

    def write(self, data: bytes | memoryview) -> None:
        """Take the next payload bytes: `received` counts them already."""
        stop = self.received - self.head_bytes
        if self.destination is not None:
            self.destination[stop - len(data) : stop] = data

    def settle(self) -> None:
        """Write what came with the header, now that `destination` is set."""
        self.write(memoryview(self.head)[self.head_bytes :])
        self.head = bytearray()
