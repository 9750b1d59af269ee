"""A strict reader of the part of CBOR (RFC 8949) that this protocol uses, bounded before it allocates.

Peers' bytes go through this reader rather than through a full CBOR library: there are no tags (a library turns them
into dates, big integers, regular expressions), no indefinite lengths, no repeated keys, nesting of at most three, and
a length that exceeds what is left of the input is refused before anything of that size exists.
Writing is the library's (`cbor2`, canonical form: shortest integers, sorted keys).
"""

from __future__ import annotations

import struct
from collections.abc import Mapping
from typing import Any

import cbor2

from transport.wire.error_codes import WireCode, WireError

DEPTH_MAX = 3
"""A hello is a map of lists and maps of scalars: 3 with the outermost. Headers need 2."""

_FLOATS = {25: (2, "!e"), 26: (4, "!f"), 27: (8, "!d")}
_SIMPLE = {20: False, 21: True, 22: None}


def encode_map(value: Mapping[int, object]) -> bytes:
    """Write a map in the deterministic form of RFC 8949 4.2.

    Raises:
        WireError: a value has no form in this protocol.
    """
    try:
        return cbor2.dumps(dict(value), canonical=True)
    except (cbor2.CBOREncodeError, OverflowError, ValueError) as error:
        raise WireError(WireCode.HEADER_INVALID, f"cannot be written as CBOR: {error}") from error


def decode_map(data: bytes) -> dict[int, Any]:
    """Read one map with integer keys that fills `data` to the end.

    Returns:
        Key to int (64-bit), float, bool, None, bytes, str, list or dict.

    Raises:
        WireError: anything else, with the offset.
    """
    value, offset = _read(data, 0, 1)
    if not isinstance(value, dict):
        raise _wrong(0, "not a map")
    if offset != len(data):
        raise _wrong(offset, f"{len(data) - offset} bytes after the map")
    return value


def _wrong(offset: int, what: str) -> WireError:
    return WireError(WireCode.HEADER_INVALID, f"CBOR at byte {offset}: {what}")


def _read(data: bytes, offset: int, depth: int) -> tuple[Any, int]:
    if offset >= len(data):
        raise _wrong(offset, "truncated")
    major, info = data[offset] >> 5, data[offset] & 0x1F
    if major == 7:
        return _read_simple(data, offset, info)
    argument, start = _read_argument(data, offset, info)
    if major == 0:
        return argument, start
    if major == 1:
        return -1 - argument, start
    if major in (2, 3):
        if argument > len(data) - start:
            raise _wrong(offset, f"a string of {argument} bytes where {len(data) - start} are left")
        raw = data[start : start + argument]
        if major == 2:
            return raw, start + argument
        try:
            return raw.decode("utf-8"), start + argument
        except UnicodeDecodeError as error:
            raise _wrong(offset, "a text that is not UTF-8") from error
    if major == 6:
        raise _wrong(offset, "a tag; this protocol has none")
    if depth > DEPTH_MAX:
        raise _wrong(offset, f"nested deeper than {DEPTH_MAX}")
    if argument * (1 if major == 4 else 2) > len(data) - start:
        raise _wrong(offset, f"{argument} entries where {len(data) - start} bytes are left")
    return _read_list(data, start, argument, depth) if major == 4 else _read_map(data, start, argument, depth)


def _read_list(data: bytes, offset: int, count: int, depth: int) -> tuple[list[Any], int]:
    values = []
    for _ in range(count):
        value, offset = _read(data, offset, depth + 1)
        values.append(value)
    return values, offset


def _read_map(data: bytes, offset: int, count: int, depth: int) -> tuple[dict[int, Any], int]:
    values: dict[int, Any] = {}
    for _ in range(count):
        at = offset
        key, offset = _read(data, offset, DEPTH_MAX + 1)
        if not isinstance(key, int) or isinstance(key, bool):
            raise _wrong(at, "a key that is not an integer")
        if key in values:
            raise _wrong(at, f"key {key} twice")
        values[key], offset = _read(data, offset, depth + 1)
    return values, offset


def _read_argument(data: bytes, offset: int, info: int) -> tuple[int, int]:
    if info < 24:
        return info, offset + 1
    if info > 27:
        raise _wrong(offset, "an indefinite length or a reserved form")
    end = offset + 1 + (1 << (info - 24))
    if end > len(data):
        raise _wrong(offset, "truncated")
    return int.from_bytes(data[offset + 1 : end], "big"), end


def _read_simple(data: bytes, offset: int, info: int) -> tuple[Any, int]:
    if info in _SIMPLE:
        return _SIMPLE[info], offset + 1
    if info not in _FLOATS:
        raise _wrong(offset, "a simple value that this protocol does not use")
    size, form = _FLOATS[info]
    end = offset + 1 + size
    if end > len(data):
        raise _wrong(offset, "truncated")
    return struct.unpack(form, data[offset + 1 : end])[0], end
