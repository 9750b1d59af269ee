"""The two halves of a message stream, without any QUIC: what is still to send, and where what arrives goes.

Sending reads straight from the borrowed payload, first time and on retransmission, so nothing is buffered here.
Receiving writes straight into the destination at the stream's offset, out of order too, so nothing is reassembled here
except the header. A byte range of a `SendStream` is at any moment in exactly one place: not yet sent, in one packet in
flight, in `lost`, or acknowledged; a packet that was given up as lost can no longer be acknowledged. So counting
acknowledged bytes is enough to know when all have arrived.
"""

from __future__ import annotations

import heapq
from dataclasses import dataclass

from transport.wire.header import Header, MatchKey, split_header


class SendStream:
    """One message on its way out (or, `open_ended`, the control stream, which grows and has no end)."""

    __slots__ = (
        "acked",
        "deadline_at",
        "identifier",
        "lost",
        "next_offset",
        "open_ended",
        "operation",
        "payload",
        "peer_limit",
        "prefix",
        "priority",
        "queued",
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
        deadline_at: float | None = None,
        timeout_s: float = 0.0,
        open_ended: bool = False,
    ) -> None:
        self.operation = operation
        self.prefix = prefix
        self.payload = payload
        self.priority = priority
        self.total = len(prefix) + (len(payload) if payload is not None else 0)
        self.deadline_at = deadline_at
        self.timeout_s = timeout_s
        self.open_ended = open_ended
        self.stream_id = -1
        self.identifier = b""
        self.peer_limit = 0
        self.next_offset = 0
        self.acked = 0
        self.lost: list[tuple[int, int]] = []
        self.queued = False
        self.reset_code: int | None = None

    @property
    def done(self) -> bool:
        """Everything is acknowledged."""
        return self.acked == self.total and not self.open_ended

    def take(self, bytes_max: int, credit_bytes: int) -> tuple[int, int] | None:
        """Choose what to send next: lost ranges first, then new bytes within the peer's credit.

        Args:
            bytes_max: room in the packet, at least 1.
            credit_bytes: what the connection's flow control still allows; lost bytes do not need any.

        Returns:
            Start and stop offset, or None where nothing can be sent.
        """
        if self.lost:
            start, stop = self.lost[0]
            if stop - start > bytes_max:
                heapq.heapreplace(self.lost, (start + bytes_max, stop))
                return start, start + bytes_max
            heapq.heappop(self.lost)
            return start, stop
        start = self.next_offset
        stop = min(start + bytes_max, self.total, self.peer_limit, start + credit_bytes)
        if stop <= start:
            return None
        self.next_offset = stop
        return start, stop

    @property
    def has_work(self) -> bool:
        """Something could be sent if the connection allowed it."""
        return bool(self.lost) or self.next_offset < min(self.total, self.peer_limit)

    def read(self, start: int, stop: int) -> list[bytes | memoryview]:
        """The bytes of a range, in pieces that are views wherever they can be."""
        head = len(self.prefix)
        if start >= head:
            assert self.payload is not None
            return [self.payload[start - head : stop - head]]
        if stop <= head:
            return [self.prefix[start:stop]]
        assert self.payload is not None
        return [self.prefix[start:], self.payload[: stop - head]]

    def append(self, data: bytes) -> None:
        """Grow an open-ended stream."""
        assert self.open_ended
        self.prefix += data
        self.total = len(self.prefix)

    def release(self) -> None:
        """Let go of the borrowed payload."""
        self.payload = None
        self.lost.clear()


class ByteRanges:
    """Which bytes of a stream have arrived: a contiguous front, and a few sorted islands behind gaps."""

    __slots__ = ("front", "islands")

    def __init__(self) -> None:
        self.front = 0
        self.islands: list[list[int]] = []

    def add(self, start: int, stop: int) -> None:
        """Note that bytes `start` to `stop` are there."""
        if start <= self.front:
            if stop > self.front:
                self.front = stop
                self._absorb()
            return
        islands = self.islands
        index = len(islands)
        while index and islands[index - 1][0] > start:  # new data mostly lies at the end
            index -= 1
        if index and islands[index - 1][1] >= start:
            index -= 1
            islands[index][1] = max(islands[index][1], stop)
        else:
            islands.insert(index, [start, stop])
        while index + 1 < len(islands) and islands[index + 1][0] <= islands[index][1]:
            islands[index][1] = max(islands[index][1], islands.pop(index + 1)[1])

    def _absorb(self) -> None:
        while self.islands and self.islands[0][0] <= self.front:
            self.front = max(self.front, self.islands.pop(0)[1])


@dataclass
class Fragment:
    """Bytes that came before it was known where they belong."""

    offset: int
    data: bytearray


@dataclass(eq=False)
class Post:
    """A buffer that waits for a message."""

    operation: int
    peer: str
    key: MatchKey
    buffer: memoryview | None


class ReceiveStream:
    """One message on its way in.

    `limit` is how far the peer may send by flow control, `highest` how far it has. While `header` is None, fragments
    wait. Then payload goes to `destination`: a posted buffer, the store's memory, or None when it is discarded.
    `free` says that its bytes are not held for the peer any more (posted for, or thrown away).
    `covered` is how many payload bytes `destination` can take now; a store's memory may be shorter than the message.
    """

    __slots__ = (
        "covered",
        "destination",
        "final_size",
        "fragments",
        "free",
        "head_bytes",
        "header",
        "highest",
        "limit",
        "post",
        "ranges",
        "refused",
        "reserved",
        "stream_id",
        "total",
    )

    def __init__(self, stream_id: int, *, limit: int) -> None:
        self.stream_id = stream_id
        self.limit = limit
        self.highest = 0
        self.final_size: int | None = None
        self.header: Header | None = None
        self.head_bytes = 0
        self.total = 0
        self.fragments: list[Fragment] = []
        self.ranges = ByteRanges()
        self.destination: memoryview | bytearray | None = None
        self.covered = 0
        self.post: Post | None = None
        self.reserved = 0
        self.refused = False
        self.free = False

    @property
    def pieces(self) -> int:
        """Separate pieces that are kept or remembered."""
        return len(self.fragments) + len(self.ranges.islands)

    @property
    def complete(self) -> bool:
        """Every byte up to the final size is there."""
        return self.final_size is not None and self.ranges.front == self.final_size

    def hold(self, offset: int, data: bytes | memoryview) -> None:
        """Keep bytes until the header is known; bounded by the stream's flow-control limit."""
        last = self.fragments[-1] if self.fragments else None
        if last is not None and last.offset + len(last.data) == offset:
            last.data += data
        else:
            self.fragments.append(Fragment(offset, bytearray(data)))
        self.ranges.add(offset, offset + len(data))

    def front_bytes(self) -> bytes | None:
        """The header's CBOR bytes, once all of them have come; sets `head_bytes`.

        Raises:
            WireError: the header's length is not allowed.
        """
        front = bytearray()
        for fragment in sorted(self.fragments, key=lambda piece: piece.offset):
            if fragment.offset > len(front):
                break
            front += fragment.data[len(front) - fragment.offset :]
            if len(front) > 8192:  # a header is at most 4096 bytes behind at most 8 of length
                break
        split = split_header(front)
        if split is None:
            return None
        body, self.head_bytes = split
        return body

    def write(self, offset: int, data: bytes | bytearray | memoryview) -> None:
        """Put payload bytes where they belong; `offset` is the stream's. Anything of the header is skipped."""
        start = offset - self.head_bytes
        if start < 0:
            data = data[-start:]
            start = 0
        if self.destination is not None:
            self.destination[start : start + len(data)] = data

    def settle(self) -> None:
        """Write what was held, now that `destination` is set."""
        for fragment in self.fragments:
            if fragment.offset + len(fragment.data) > self.head_bytes:
                self.write(fragment.offset, fragment.data)
        self.fragments.clear()
