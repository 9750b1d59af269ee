"""Frozen dataclasses to JSON and back, with a stable order of keys, so that a recording replays to the same bytes.

Only what the broker's values are made of is covered: str, int, float, bool, None, tuples of one type, unions of a type
with None, and dataclasses of these. Fields keep the order of their declaration. Floats are written by Python's shortest
repr, which reads back to the same float; NaN and infinities are refused, because JSON has none.
"""

from __future__ import annotations

import dataclasses
import json
import types
import typing
from collections.abc import Callable
from typing import Any, TypeVar

T = TypeVar("T")


def to_json(value: Any) -> Any:
    """Give a dataclass, a tuple or a plain value as what `json.dumps` takes. Keys keep the order of declaration."""
    if isinstance(value, (str, int, float, bool)) or value is None:
        return value
    if isinstance(value, tuple):
        return [to_json(item) for item in value]
    return {name: to_json(getattr(value, name)) for name in value.__dataclass_fields__}


def dumps(value: Any) -> str:
    """Write a value as one line of JSON, without spaces: equal values give equal bytes.

    Raises:
        ValueError: a NaN or an infinity is in it.
    """
    return _ENCODER.encode(value)


_ENCODER = json.JSONEncoder(
    separators=(",", ":"), ensure_ascii=False, allow_nan=False, check_circular=False, default=vars
)
"""It walks by itself through all that it knows. Of a dataclass it gets the attributes as they are, in the order in
which they were set: that of declaration. A copy of each would be most of what a recording costs."""


def from_json(kind: type[T], data: Any) -> T:
    """Read back what `to_json` gave. Unknown keys are ignored, missing ones take their defaults: old recordings replay.

    Raises:
        ValueError: a value has the wrong type, or a key without a default is missing.
    """
    return typing.cast(T, _reader_of(kind)(data))


_READERS: dict[Any, Callable[[Any], Any]] = {}  # bounded by the number of types in the program


def _reader_of(kind: Any) -> Callable[[Any], Any]:
    if kind not in _READERS:
        _READERS[kind] = _make_reader(kind)
    return _READERS[kind]


def _make_reader(kind: Any) -> Callable[[Any], Any]:
    origin = typing.get_origin(kind)
    if origin in (typing.Union, types.UnionType):
        (inner,) = [argument for argument in typing.get_args(kind) if argument is not type(None)]
        read = _reader_of(inner)
        return lambda data: None if data is None else read(data)
    if origin is tuple:
        items = [argument for argument in typing.get_args(kind) if argument is not Ellipsis]
        return _tuple_reader([_reader_of(item) for item in items], repeated=Ellipsis in typing.get_args(kind))
    if dataclasses.is_dataclass(kind):
        return _dataclass_reader(typing.cast(type, kind))
    return _scalar_reader(kind)


def _scalar_reader(kind: type) -> Callable[[Any], Any]:
    def read(data: Any) -> Any:
        if kind is float and isinstance(data, int) and not isinstance(data, bool):
            return float(data)
        if type(data) is not kind:
            raise ValueError(f"wanted {kind.__name__}, found {data!r}")
        return data

    return read


def _tuple_reader(readers: list[Callable[[Any], Any]], *, repeated: bool) -> Callable[[Any], Any]:
    def read(data: Any) -> Any:
        if not isinstance(data, list):
            raise ValueError(f"wanted a list, found {data!r}")
        if repeated:
            return tuple(readers[0](item) for item in data)
        if len(data) != len(readers):
            raise ValueError(f"wanted {len(readers)} items, found {len(data)}")
        return tuple(reader(item) for reader, item in zip(readers, data, strict=True))

    return read


def _dataclass_reader(kind: type) -> Callable[[Any], Any]:
    hints = typing.get_type_hints(kind)
    readers = {field.name: _reader_of(hints[field.name]) for field in dataclasses.fields(kind)}

    def read(data: Any) -> Any:
        if not isinstance(data, dict):
            raise ValueError(f"wanted {kind.__name__} as an object, found {data!r}")
        try:
            return kind(**{name: reader(data[name]) for name, reader in readers.items() if name in data})
        except TypeError as error:
            raise ValueError(f"{kind.__name__}: {error}") from error

    return read
