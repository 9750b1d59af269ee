"""Frames of RFC 9000 19 that the fast path writes and reads itself: bytes in, bytes out, no state."""

from __future__ import annotations

from collections.abc import Sequence

from transport.wire.varint import encode_varint

PADDING, PING, ACK = 0x00, 0x01, 0x02
STREAM_FIRST, STREAM_LAST = 0x08, 0x0F
MAX_DATA, MAX_STREAM_DATA, MAX_STREAMS_UNI = 0x10, 0x11, 0x13

ACK_RANGES_MAX = 32
"""Ranges written in one frame: 32 losses in flight are reported, at most 260 bytes."""


def read_varint(data: bytes, at: int) -> tuple[int, int]:
    """Value and offset behind it.

    Raises:
        IndexError: bytes are missing.
    """
    first = data[at]
    if first < 0x40:
        return first, at + 1
    if first < 0x80:
        return (first & 0x3F) << 8 | data[at + 1], at + 2
    if first < 0xC0:
        return (first & 0x3F) << 24 | data[at + 1] << 16 | data[at + 2] << 8 | data[at + 3], at + 4
    data[at + 7]
    return int.from_bytes(data[at : at + 8], "big") & 0x3FFFFFFFFFFFFFFF, at + 8


def stream_frame_head(identifier: bytes, *, offset: int, length: int, fin: bool) -> bytes:
    """Everything of a STREAM frame before its data; `identifier` is the stream's number as a varint.

    Offset and length take the same room whatever they are, so that the room is known before the length is.
    """
    if offset == 0:
        return (b"\x0b" if fin else b"\x0a") + identifier + (length | 0x4000).to_bytes(2, "big")
    kind = b"\x0f" if fin else b"\x0e"
    if offset < 0x40000000:
        return kind + identifier + (offset << 16 | length | 0x800000004000).to_bytes(6, "big")
    return kind + identifier + (offset | 0xC000000000000000).to_bytes(8, "big") + (length | 0x4000).to_bytes(2, "big")


def stream_head_bytes(identifier: bytes, *, offset: int) -> int:
    """What `stream_frame_head` takes."""
    return len(identifier) + (3 if offset == 0 else 7 if offset < 0x40000000 else 11)


def ack_frame(ranges: Sequence[range], *, delay_us: int, exponent: int) -> bytes:
    """An ACK of the newest `ACK_RANGES_MAX` of `ranges`, which ascend and do not touch."""
    newest = ranges[-1]
    first = max(0, len(ranges) - ACK_RANGES_MAX)
    parts = [
        b"\x02",
        encode_varint(newest.stop - 1),
        encode_varint(delay_us >> exponent),
        encode_varint(len(ranges) - first - 1),
        encode_varint(newest.stop - 1 - newest.start),
    ]
    below = newest.start
    for index in range(len(ranges) - 2, first - 1, -1):
        item = ranges[index]
        parts.append(encode_varint(below - item.stop - 1))
        parts.append(encode_varint(item.stop - item.start - 1))
        below = item.start
    return b"".join(parts)


def read_ack_frame(data: bytes, at: int) -> tuple[list[range], int, int]:
    """An ACK behind its type: descending ranges, encoded delay, and the offset behind it (ECN counts not included).

    Raises:
        IndexError: truncated.
        ValueError: a negative packet number.
    """
    largest, at = read_varint(data, at)
    delay, at = read_varint(data, at)
    count, at = read_varint(data, at)
    length, at = read_varint(data, at)
    if length > largest:
        raise ValueError("an acknowledgement below packet 0")
    ranges = [range(largest - length, largest + 1)]
    low = largest - length
    for _ in range(count):
        gap, at = read_varint(data, at)
        length, at = read_varint(data, at)
        high = low - gap - 2
        low = high - length
        if low < 0:
            raise ValueError("an acknowledgement below packet 0")
        ranges.append(range(low, high + 1))
    return ranges, delay, at


def reset_frame(*, stream_id: int, code: int, final_size: int) -> bytes:
    """RESET_STREAM."""
    return b"\x04" + encode_varint(stream_id) + encode_varint(code) + encode_varint(final_size)


def stop_frame(*, stream_id: int, code: int) -> bytes:
    """STOP_SENDING."""
    return b"\x05" + encode_varint(stream_id) + encode_varint(code)


def ack_frequency_frame(*, threshold: int, delay_us: int, reordering: int) -> bytes:
    """ACK_FREQUENCY (draft-ietf-quic-ack-frequency 4), the first of a connection.

    Args:
        threshold: packets that the peer may receive without acknowledging them.
        delay_us: how long it may keep an acknowledgement back.
        reordering: packets that may be missing before it acknowledges at once.
    """
    return b"\x40\xaf" + b"\x00" + encode_varint(threshold) + encode_varint(delay_us) + encode_varint(reordering)


def max_data_frame(limit: int) -> bytes:
    """MAX_DATA."""
    return b"\x10" + encode_varint(limit)


def max_stream_data_frame(*, stream_id: int, limit: int) -> bytes:
    """MAX_STREAM_DATA."""
    return b"\x11" + encode_varint(stream_id) + encode_varint(limit)


def max_streams_frame(limit: int) -> bytes:
    """MAX_STREAMS for unidirectional streams."""
    return b"\x13" + encode_varint(limit)
