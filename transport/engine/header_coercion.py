"""What callers may say in a header, or in the key that has to match one, made into the plain values that both engines
read alike.

Knows no bounds: those are `transport.wire.header`'s.
"""

from __future__ import annotations

import operator
from dataclasses import replace
from typing import Any

from hive_qos.errors import MisuseError
from transport.wire.header import Header, Kind, MatchKey

_KEY_INTEGERS = ("epoch", "step", "bucket", "attempt", "tag")
_INTEGERS = (*_KEY_INTEGERS, "codec", "length")
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


def plain_key(key: MatchKey) -> MatchKey:
    """The key itself where all its values are plain, otherwise one that says the same; by the rule of `plain_header`.

    Raises:
        MisuseError: a field is of another type; the text names it.
    """
    if (
        type(key.kind) is Kind
        and str is type(key.group)
        and int is type(key.epoch) is type(key.step) is type(key.bucket) is type(key.attempt) is type(key.tag)
    ):
        return key
    plain: dict[str, Any] = {name: plain_integer(f"a key's {name}", getattr(key, name)) for name in _KEY_INTEGERS}
    return replace(key, kind=_kind("key", key.kind), group=plain_text("a key's group", key.group), **plain)


def plain_integer(called: str, value: Any) -> int:
    """An integer of any library as Python's own; not bool.

    Raises:
        MisuseError: it is none; the text calls it `called`.
    """
    if isinstance(value, bool):
        raise _wrong(called, "an integer", value)
    try:
        return operator.index(value)
    except TypeError as error:
        raise _wrong(called, "an integer", value) from error


def plain_number(called: str, value: Any) -> float:
    """A number of any library as a float, by `__float__`. Text and arrays are not numbers, though some have that.

    Raises:
        MisuseError: it is none; the text calls it `called`.
    """
    if isinstance(value, bool) or getattr(value, "shape", ()) != ():
        raise _wrong(called, "a number", value)
    try:
        return float(value.__float__())
    except (AttributeError, TypeError, ValueError, OverflowError) as error:
        raise _wrong(called, "a number", value) from error


def plain_text(called: str, value: Any) -> str:
    """A text of any class as what it says: `str` would ask the class, and an enumeration's shows a member's name.

    Raises:
        MisuseError: it is none; the text calls it `called`.
    """
    if not isinstance(value, str):
        raise _wrong(called, "text", value)
    return str.__str__(value)


def _made_plain(header: Header) -> Header:
    plain: dict[str, Any] = {name: plain_integer(f"a header's {name}", getattr(header, name)) for name in _INTEGERS}
    plain["kind"] = _kind("header", header.kind)
    for name in _TEXTS:
        plain[name] = plain_text(f"a header's {name}", getattr(header, name))
    if not isinstance(header.shape, (tuple, list)):
        raise _wrong("a header's shape", "a tuple of integers", header.shape)
    plain["shape"] = tuple(plain_integer("a header's shape", size) for size in header.shape)
    plain["weight"] = plain_number("a header's weight", header.weight)
    if not isinstance(header.contributors, (bytes, bytearray, memoryview)):
        raise _wrong("a header's contributors", "bytes", header.contributors)
    plain["contributors"] = bytes(header.contributors)
    return replace(header, **plain)


def _kind(whose: str, value: Any) -> Kind:
    number = plain_integer(f"a {whose}'s kind", value)
    try:
        return Kind(number)
    except ValueError as error:
        raise MisuseError(f"a {whose}'s kind is one of transport.wire.header.Kind; {number} is none") from error


def _wrong(called: str, wanted: str, value: object) -> MisuseError:
    return MisuseError(f"{called} must be {wanted}; this is {type(value).__name__}, {repr(value)[:60]}")
