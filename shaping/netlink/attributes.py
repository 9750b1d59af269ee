"""Netlink's attributes (netlink(7)), written and walked. Pure: bytes in, values out.

Each is a length, a kind and a value, padded to four bytes; a value may hold attributes again. The two high bits of a
kind are flags (nested, network byte order), not part of it.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator

_HEADER = struct.Struct("=HH")  # length, kind
_header_at = _HEADER.unpack_from


def attribute_map(data: bytes, offset: int = 0, *, last: int = -1) -> dict[int, bytes]:
    """The values from `offset` on by kind, in their order; of a kind that comes twice the second.

    Stops behind the first of the kind `last` (-1: none), and at one that does not fit, as the kernel's own macros do.
    The broker walks through a hundred of them every tick: a generator, or places instead of values, took half as long
    again.
    """
    found = {}
    end = len(data) - _HEADER.size
    while offset <= end:
        length, kind = _header_at(data, offset)
        if length < 4 or offset + length > end + 4:
            break
        kind &= 0x3FFF  # without the flags
        found[kind] = data[offset + 4 : offset + length]
        if kind == last:
            break
        offset += (length + 3) & ~3
    return found


def attribute_places(data: bytes, begin: int = 0, end: int | None = None) -> Iterator[tuple[int, int, int]]:
    """Kind, begin and end of each value between `begin` and `end`, in their order; of a kind that comes twice, both.

    Stops at one that does not fit, as `attribute_map`.
    """
    end = len(data) if end is None else end
    while begin + _HEADER.size <= end:
        length, kind = _header_at(data, begin)
        if length < _HEADER.size or begin + length > end:
            break
        yield kind & 0x3FFF, begin + _HEADER.size, begin + length
        begin += (length + 3) & ~3


def pack_attribute(kind: int, payload: bytes) -> bytes:
    """One attribute, padded."""
    length = _HEADER.size + len(payload)
    return _HEADER.pack(length, kind) + payload + b"\0" * (-length % 4)


def pack_text(kind: int, text: str) -> bytes:
    """A text of ASCII as one, with its terminating zero."""
    return pack_attribute(kind, text.encode("ascii") + b"\0")
