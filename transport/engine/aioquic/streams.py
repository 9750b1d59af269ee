"""The two halves of a message stream, without any QUIC: what is still to send, and where what arrives goes."""

from __future__ import annotations

from dataclasses import dataclass

from transport.wire.header import Header, MatchKey, split_header


class SendStream:
    """One message on its way out (or, `open_ended`, the control stream, which has no end).

    `fed` is how many of its bytes the stack has; `stream_id` is -1 until it has any.
    """

    __slots__ = (
        "fed",
        "open_ended",
        "operation",
        "payload",
        "prefix",
        "priority",
        "reset_code",
        "stream_id",
        "timeout_s",
        "total",
    )

    def __init__(
        self,
        *,
        operation: int,
        prefix: bytes,
        payload: memoryview | None,
        priority: int,
        timeout_s: float = 0.0,
        open_ended: bool = False,
    ) -> None:
        self.operation = operation
        self.prefix = prefix
        self.payload = payload
        self.priority = priority
        self.total = len(prefix) + (len(payload) if payload is not None else 0)
        self.timeout_s = timeout_s
        self.open_ended = open_ended
        self.stream_id = -1
        self.fed = 0
        self.reset_code: int | None = None

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
    """A buffer that waits for a message."""

    operation: int
    peer: str
    key: MatchKey
    buffer: memoryview | None


class ReceiveStream:
    """One message on its way in; its bytes come in order.

    `limit` is how far the peer may send by flow control, `received` how many bytes have come. While `header` is None,
    they wait in `head`. Then payload goes to `destination`: a posted buffer, the store's memory, or None when it is
    discarded. `free` says that its bytes are not held for the peer any more (posted for, or thrown away).
    `covered` is how many payload bytes `destination` can take now; a store's memory may be shorter than the message.
    """

    __slots__ = (
        "complete",
        "covered",
        "destination",
        "free",
        "head",
        "head_bytes",
        "header",
        "limit",
        "post",
        "received",
        "reserved",
        "stream_id",
        "total",
    )

    def __init__(self, stream_id: int, *, limit: int) -> None:
        self.stream_id = stream_id
        self.limit = limit
        self.received = 0
        self.complete = False
        self.header: Header | None = None
        self.head = bytearray()
        self.head_bytes = 0
        self.total = 0
        self.destination: memoryview | bytearray | None = None
        self.covered = 0
        self.post: Post | None = None
        self.reserved = 0
        self.free = False

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
