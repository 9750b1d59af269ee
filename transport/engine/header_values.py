"""What callers may say in a header, made into the plain values that both engines write alike.

Knows no bounds: those are `transport.wire.header.check_header`'s.
"""

from __future__ import annotations

import operator
from dataclasses import replace
from typing import Any

from hive_qos.errors import MisuseError
from transport.wire.header import Header, Kind

_INTEGERS = ("epoch", "step", "bucket", "attempt", "tag", "codec", "length")
_TEXTS = ("job", "group", "dtype", "call")


def plain_header(header: Header) -> Header:
    """The header itself where all its values are plain, as most are; otherwise one that says the same in plain values.

    Integers may be whatever Python takes as an index, numpy's among them; not bool, which is another thing on the wire.

    Raises:
        MisuseError: a field is of another type; the text names it.
    """
    if (
        type(header.kind) is Kind
        and int is type(header.epoch) is type(header.step) is type(header.bucket) is type(header.attempt)
        and int is type(header.tag) is type(header.codec) is type(header.length)
        and str is type(header.job) is type(header.group) is type(header.dtype) is type(header.call)
        and type(header.weight) is float
        and type(header.contributors) is bytes
        and type(header.shape) is tuple
        and all([type(size) is int for size in header.shape])  # noqa: C419 - half the time of a generator
    ):
        return header
    return _made_plain(header)


def _made_plain(header: Header) -> Header:
    plain: dict[str, Any] = {name: _integer(name, getattr(header, name)) for name in _INTEGERS}
    number = _integer("kind", header.kind)
    try:
        plain["kind"] = Kind(number)
    except ValueError as error:
        raise MisuseError(f"a header's kind is one of transport.wire.header.Kind; {number} is none") from error
    for name in _TEXTS:
        text = getattr(header, name)
        if not isinstance(text, str):
            raise _wrong(name, "text", text)
        plain[name] = str(text)
    if not isinstance(header.shape, (tuple, list)):
        raise _wrong("shape", "a tuple of integers", header.shape)
    plain["shape"] = tuple(_integer("shape", size) for size in header.shape)
    plain["weight"] = _weight(header.weight)
    if not isinstance(header.contributors, (bytes, bytearray, memoryview)):
        raise _wrong("contributors", "bytes", header.contributors)
    plain["contributors"] = bytes(header.contributors)
    return replace(header, **plain)


def _integer(name: str, value: Any) -> int:
    if isinstance(value, bool):
        raise _wrong(name, "an integer", value)
    try:
        return operator.index(value)
    except TypeError as error:
        raise _wrong(name, "an integer", value) from error


def _weight(value: Any) -> float:
    """Numbers of other libraries are floats by `__float__`; text and arrays are not numbers, though some have that."""
    if isinstance(value, bool) or getattr(value, "shape", ()) != ():
        raise _wrong("weight", "a number", value)
    try:
        return float(value.__float__())
    except (AttributeError, TypeError, ValueError, OverflowError) as error:
        raise _wrong("weight", "a number", value) from error


def _wrong(name: str, wanted: str, value: object) -> MisuseError:
    return MisuseError(f"a header's {name} must be {wanted}; this is {type(value).__name__}, {repr(value)[:60]}")
