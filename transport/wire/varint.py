"""Variable-length integers of RFC 9000 section 16: the two top bits of the first byte say how many bytes there are.

| bytes | usable bits | largest |
|---|---|---|
| 1 | 6 | 63 |
| 2 | 14 | 16 383 |
| 4 | 30 | 1 073 741 823 |
| 8 | 62 | 4 611 686 018 427 387 903 |
"""

from __future__ import annotations

VARINT_MAX = 2**62 - 1


def encode_varint(value: int) -> bytes:
    """Write `value` in the fewest bytes.

    Raises:
        ValueError: negative, or above `VARINT_MAX`.
    """
    if value < 0:
        raise ValueError(f"{value} is negative")
    if value < 0x40:
        return value.to_bytes(1, "big")
    if value < 0x4000:
        return (value | 0x4000).to_bytes(2, "big")
    if value < 0x40000000:
        return (value | 0x80000000).to_bytes(4, "big")
    if value <= VARINT_MAX:
        return (value | 0xC000000000000000).to_bytes(8, "big")
    raise ValueError(f"{value} does not fit 62 bits")


def decode_varint(data: bytes | bytearray | memoryview, offset: int = 0) -> tuple[int, int] | None:
    """Read one integer at `offset`: its value and the offset behind it, or None while bytes are missing."""
    if offset >= len(data):
        return None
    first = data[offset]
    end = offset + (1 << (first >> 6))
    if end > len(data):
        return None
    value = first & 0x3F
    for byte in data[offset + 1 : end]:
        value = (value << 8) | byte
    return value, end
