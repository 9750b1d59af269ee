"""The header of a message: a CBOR map with integer keys, at most 4 KiB (RFC 8949), behind a varint length (RFC 9000).

Keys are fixed by `docs/reference/wire.md`. Unknown keys are ignored, so that a newer peer can say more.
"""

from __future__ import annotations

import enum
import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from transport.wire.cbor import decode_map, encode_map
from transport.wire.dtypes import ITEM_BYTES
from transport.wire.error_codes import WireCode, WireError
from transport.wire.varint import decode_varint, encode_varint

HEADER_BYTES_MAX = 4096
NAME_BYTES_MAX = 128
"""Of `job`, `group` and `call`, in UTF-8."""
DIMENSIONS_MAX = 32
"""numpy allows 64 and torch about as many; what people train has at most 6."""
U64_MAX = 2**64 - 1


class Kind(enum.IntEnum):
    """What a message is part of."""

    CONTROL = 0
    COLLECTIVE = 1
    POINT_TO_POINT = 2
    BULK = 3


@dataclass(frozen=True)
class MatchKey:
    """What a posted receive and an arriving message must agree on, together with the peer that sent it."""

    kind: Kind
    group: str = ""
    step: int = 0
    bucket: int = 0
    tag: int = 0


@dataclass(frozen=True)
class Header:
    """What a message says of itself.

    Args:
        kind, group, step, bucket, tag: the match key; `group` at most 128 bytes of UTF-8, the integers unsigned
            64-bit. `step` is the group's running number of the operation, `bucket` the part within it.
        job: the job's name, at most 128 bytes of UTF-8.
        dtype: a name of `transport.wire.dtypes`, "" for plain bytes.
        shape: dimensions, at most 32; their product times the dtype's size is `length`.
        length: payload bytes.
        call: the call that the message is part of, in words on which both sides must agree; at most 128 bytes of UTF-8,
            "" for what needs no agreement.
    """

    kind: Kind
    job: str = ""
    group: str = ""
    step: int = 0
    bucket: int = 0
    tag: int = 0
    dtype: str = ""
    shape: tuple[int, ...] = ()
    length: int = 0
    call: str = ""

    @property
    def key(self) -> MatchKey:
        """The part that a posted receive must match."""
        return MatchKey(kind=self.kind, group=self.group, step=self.step, bucket=self.bucket, tag=self.tag)


_FIELDS = tuple(Header.__dataclass_fields__)


def header_of(*values: object) -> Header:
    """A header of all its fields in their order, which were checked when they came.

    In two thirds of the time that a frozen dataclass takes to set them one by one.
    """
    header = object.__new__(Header)
    header.__dict__.update(zip(_FIELDS, values, strict=True))
    return header


_TYPES: Mapping[type, Mapping[str, type]] = {
    Header: {
        "kind": Kind,
        **dict.fromkeys(("job", "group"), str),
        **dict.fromkeys(("step", "bucket", "tag"), int),
        **{"dtype": str, "shape": tuple, "length": int, "call": str},
    },
    MatchKey: {"kind": Kind, "group": str, **dict.fromkeys(("step", "bucket", "tag"), int)},
}
"""In the order of the fields."""
_TEXT_KEYS = {"job": 1, "group": 2, "call": 14}
_INT_KEYS = {"step": 4, "bucket": 5, "tag": 7}
_KIND, _DTYPE, _SHAPE, _LENGTH = 0, 8, 9, 11
_DEFAULT = Header(kind=Kind.CONTROL)


def encode_header(header: Header) -> bytes:
    """Write a header as it goes on the wire: varint length, then the canonical CBOR map; defaults are left out.

    Raises:
        WireError: a field is outside its bounds; the peer would have refused it.
    """
    check_header(header)
    fields: dict[int, object] = {_KIND: int(header.kind), _LENGTH: header.length}
    for name, key in (*_TEXT_KEYS.items(), *_INT_KEYS.items()):
        if getattr(header, name) != getattr(_DEFAULT, name):
            fields[key] = getattr(header, name)
    if header.dtype:
        fields[_DTYPE] = header.dtype
    if header.shape:
        fields[_SHAPE] = list(header.shape)
    body = encode_map(fields)
    if len(body) > HEADER_BYTES_MAX:
        raise WireError(WireCode.HEADER_TOO_LARGE, f"a header of {len(body)} bytes; {HEADER_BYTES_MAX} are allowed")
    return encode_varint(len(body)) + body


def split_header(data: bytes | bytearray | memoryview) -> tuple[bytes, int] | None:
    """Find the header at the front of a stream: its CBOR bytes and the offset of the payload, or None while incomplete.

    Raises:
        WireError: the length is zero or above `HEADER_BYTES_MAX`, so that nobody waits for it.
    """
    length = decode_varint(data)
    if length is None:
        return None
    size, start = length
    if size > HEADER_BYTES_MAX:
        raise WireError(WireCode.HEADER_TOO_LARGE, f"a header of {size} bytes; {HEADER_BYTES_MAX} are allowed")
    if size == 0:
        raise WireError(WireCode.HEADER_INVALID, "a header of no bytes")
    if start + size > len(data):
        return None
    return bytes(data[start : start + size]), start + size


def decode_header(body: bytes) -> Header:
    """Read a header's CBOR map; every field is within its bounds afterwards. Unknown keys are ignored.

    Raises:
        WireError: malformed or out of bounds, with the code to close the connection with.
    """
    if len(body) > HEADER_BYTES_MAX:
        raise WireError(WireCode.HEADER_TOO_LARGE, f"a header of {len(body)} bytes; {HEADER_BYTES_MAX} are allowed")
    fields = decode_map(body)
    if _KIND not in fields or _LENGTH not in fields:
        raise WireError(WireCode.HEADER_INVALID, "a header without kind or length")
    try:
        kind = Kind(_typed(fields, _KIND, "kind", int))
    except ValueError as error:
        raise WireError(WireCode.HEADER_INVALID, f"kind {fields[_KIND]} is not defined") from error
    shape = _typed(fields, _SHAPE, "shape", list, [])
    if not all(type(size) is int for size in shape):
        raise WireError(WireCode.HEADER_INVALID, "a shape of something else than integers")
    header = Header(
        kind=kind,
        **{name: _typed(fields, key, name, str, "") for name, key in _TEXT_KEYS.items()},
        **{name: _typed(fields, key, name, int, 0) for name, key in _INT_KEYS.items()},
        dtype=_typed(fields, _DTYPE, "dtype", str, ""),
        shape=tuple(shape),
        length=_typed(fields, _LENGTH, "length", int),
    )
    check_header(header)
    return header


def check_types(values: Header | MatchKey) -> None:
    """Hold each field against its exact type: a bool, or a number of numpy's, is none of Python's integers.

    Raises:
        WireError: the first field of another type, by its name.
    """
    for (name, value), wanted in zip(vars(values).items(), _TYPES[type(values)].values(), strict=True):
        if type(value) is not wanted:
            reason = f"{name} must be of type {wanted.__name__}; this is {type(value).__name__}, {repr(value)[:60]}"
            raise WireError(WireCode.HEADER_INVALID, reason)
    for size in getattr(values, "shape", ()):
        if type(size) is not int:
            reason = f"shape must be of type int; this holds {type(size).__name__}, {repr(size)[:60]}"
            raise WireError(WireCode.HEADER_INVALID, reason)


def check_header(header: Header) -> None:
    """Hold a header against every bound of the protocol, whoever made it.

    Raises:
        WireError: the first bound that it breaks.
    """
    _check_bounds(header, texts=_TEXT_KEYS, integers=(*_INT_KEYS, "length"))
    if len(header.shape) > DIMENSIONS_MAX:
        raise WireError(WireCode.HEADER_INVALID, f"{len(header.shape)} dimensions; {DIMENSIONS_MAX} are allowed")
    if any(not 0 <= size <= U64_MAX for size in header.shape):
        raise WireError(WireCode.HEADER_INVALID, "a dimension is not an unsigned 64-bit integer")
    if header.dtype and header.dtype not in ITEM_BYTES:
        raise WireError(WireCode.DTYPE_UNKNOWN, f"dtype {header.dtype[:32]!r} is not defined")
    if header.dtype or header.shape:
        # Python integers do not overflow; 32 dimensions of 64 bits are a product of at most 2048 bits.
        wanted = math.prod(header.shape) * ITEM_BYTES.get(header.dtype, 1)
        if wanted != header.length:
            raise WireError(
                WireCode.LENGTH_MISMATCH,
                f"shape {header.shape} of {header.dtype or 'bytes'} is {wanted} bytes, length says {header.length}",
            )


def check_key(key: MatchKey) -> None:
    """Hold a key against the types and bounds of a header's fields: no message could match another.

    Raises:
        WireError: the first bound that it breaks.
    """
    check_types(key)
    _check_bounds(key, texts=("group",), integers=_INT_KEYS)
    try:
        key.group.encode()
    except UnicodeEncodeError as error:
        raise WireError(WireCode.HEADER_INVALID, f"group is not UTF-8: {error}") from error


def _check_bounds(values: Header | MatchKey, *, texts: Iterable[str], integers: Iterable[str]) -> None:
    for name in texts:
        if len(getattr(values, name).encode("utf-8", "surrogatepass")) > NAME_BYTES_MAX:
            raise WireError(WireCode.HEADER_INVALID, f"{name} is longer than {NAME_BYTES_MAX} bytes")
    for name in integers:
        if not 0 <= getattr(values, name) <= U64_MAX:
            raise WireError(WireCode.HEADER_INVALID, f"{name} is not an unsigned 64-bit integer")


def _typed(fields: Mapping[int, Any], key: int, name: str, wanted: type, default: Any = None) -> Any:
    value = fields.get(key, default)
    if type(value) is not wanted:  # bool is an int to isinstance, and not one on the wire
        raise WireError(WireCode.HEADER_INVALID, f"{name} is not of type {wanted.__name__}")
    return value
