"""Whatever bytes come, both engines' readers say the same of them: value for value, or the same code.

Their writers of headers write the same bytes, or Rust's leaves it to Python's to say what is wrong; and they refuse the
same arguments in the same words.
"""

from __future__ import annotations

import json
import math
import random
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hive_qos.errors import MisuseError
from transport.engine import create_engine
from transport.engine.base import Engine, EngineSettings, Event, OperationFailed
from transport.engine.validation import message_of
from transport.wire.error_codes import WireError
from transport.wire.header import Header, Kind, MatchKey, decode_header, encode_header, split_header
from transport.wire.varint import encode_varint

hive_qos_native: Any = pytest.importorskip("hive_qos_native", reason="the native engine is not built here")
from transport.engine.native import _encoded  # noqa: E402 - where there is one

PROTOCOL = Path(__file__).parents[3] / "docs" / "reference" / "wire-vectors.jsonl"
VECTORS = [json.loads(line) for line in PROTOCOL.read_text("utf-8").splitlines()]
"""Whole headers of the protocol, to begin with."""


def by_python(data: bytes) -> Any:
    try:
        found = split_header(data)
        return None if found is None else (decode_header(found[0]), found[1])
    except WireError as error:
        return int(error.wire_code)


def by_rust(data: bytes) -> Any:
    found = hive_qos_native.read_header(data)
    if found is None:
        return None
    first, second = found
    return int(first) if isinstance(first, int) else (Header(Kind(first[0]), *first[1:]), second)


def agree(data: bytes) -> None:
    assert by_python(data) == by_rust(data), data.hex()


def framed(body: bytes) -> bytes:
    return encode_varint(len(body)) + body


def head(major: int, argument: int, width: int) -> bytes:
    """The first bytes of a CBOR item, in any of its forms: the shortest, or a longer one that says the same."""
    if width == 0 and argument < 24:
        return bytes([major << 5 | argument])
    size = max(width or 1, (argument.bit_length() + 7) // 8 or 1)
    size = next(power for power in (1, 2, 4, 8) if power >= size)
    return bytes([major << 5 | 23 + size.bit_length()]) + argument.to_bytes(size, "big")


sizes = st.sampled_from([0, 0, 0, 1, 2, 4, 8])
unsigned = st.one_of(st.integers(0, 30), st.integers(0, 2**64 - 1), st.sampled_from([2**53 + 1, 2**63, 2**64 - 1]))
integers = st.builds(head, st.sampled_from([0, 0, 0, 1]), unsigned, sizes)
names = st.one_of(
    st.text(max_size=20), st.sampled_from(["float32", "bfloat16", "bool", "complex128", "float3", "x" * 129])
)
texts = names.map(lambda text: text.encode("utf-8", "surrogatepass")).flatmap(
    lambda raw: sizes.map(lambda width: head(3, len(raw), width) + raw)
)
strings = st.binary(max_size=40).map(lambda raw: head(2, len(raw), 0) + raw)
simple = st.one_of(
    st.sampled_from([b"\xf4", b"\xf5", b"\xf6", b"\xf7", b"\xf8\x20", b"\xff"]),
    st.binary(min_size=2, max_size=2).map(lambda raw: b"\xf9" + raw),
    st.binary(min_size=4, max_size=4).map(lambda raw: b"\xfa" + raw),
    st.binary(min_size=8, max_size=8).map(lambda raw: b"\xfb" + raw),
)
scalars = st.one_of(integers, texts, strings, simple)


def lists(of: Any) -> Any:
    return st.lists(of, max_size=5).map(lambda items: head(4, len(items), 0) + b"".join(items))


def maps(keys: Any, of: Any) -> Any:
    return st.lists(st.tuples(keys, of), max_size=6).map(
        lambda pairs: head(5, len(pairs), 0) + b"".join(key + value for key, value in pairs)
    )


values = st.recursive(scalars, lambda inner: st.one_of(lists(inner), maps(integers, inner)), max_leaves=8)
fields = st.one_of(integers, st.integers(0, 16).map(lambda key: head(0, key, 0)))


@st.composite
def headers(draw: Any) -> bytes:
    """Maps that look like headers, of which most things are right."""
    shape = draw(st.lists(st.integers(0, 5), max_size=4))
    entries = {
        0: head(0, draw(st.integers(0, 4)), draw(sizes)),
        2: draw(texts),
        4: draw(integers),
        8: draw(texts),
        9: head(4, len(shape), 0) + b"".join(head(0, size, draw(sizes)) for size in shape),
        11: draw(st.one_of(integers, st.integers(0, 900).map(lambda length: head(0, length, 0)))),
        12: draw(st.one_of(simple, integers)),
        13: draw(strings),
    }
    kept = [0, 11, *draw(st.lists(st.sampled_from([2, 4, 8, 9, 12, 13]), unique=True))]
    if draw(st.booleans()):
        entries[draw(st.sampled_from(kept))] = draw(values)
    return head(5, len(kept), draw(sizes)) + b"".join(head(0, key, 0) + entries[key] for key in kept)


@settings(deadline=None, max_examples=1500)
@given(headers())
def test_headers_that_are_nearly_right_are_read_alike(body: bytes) -> None:
    agree(framed(body))


@settings(deadline=None, max_examples=1500)
@given(maps(fields, values), st.binary(max_size=3))
def test_maps_of_anything_are_read_alike(body: bytes, rest: bytes) -> None:
    agree(framed(body))
    agree(framed(body + rest))
    agree(framed(body) + rest)


@settings(deadline=None, max_examples=1500)
@given(st.binary(max_size=80))
def test_bytes_of_any_kind_are_read_alike(data: bytes) -> None:
    agree(data)
    agree(framed(data))


def test_spoiled_vectors_are_read_alike() -> None:
    rng = random.Random(11)
    whole = [bytes.fromhex(vector["wire"]) for vector in VECTORS if vector["kind"] == "header"]
    whole += [framed(bytes.fromhex(vector["wire"])) for vector in VECTORS if vector["kind"] == "bad-header"]
    for data in whole:
        agree(data)
        for cut in range(len(data)):
            agree(data[:cut])
    for _ in range(20_000):
        data = bytearray(rng.choice(whole))
        for _ in range(rng.randint(1, 4)):
            data[rng.randrange(len(data))] = rng.choice([rng.randrange(256), 0x18, 0x1B, 0x3B, 0x80, 0xA0, 0xF9, 0xFB])
        agree(bytes(data))


def test_lengths_at_the_edges_are_read_alike() -> None:
    for size in (0, 1, 63, 64, 4095, 4096, 4097, 16384, 2**30, 2**62 - 1):
        for rest in (b"", b"\xa2\x00\x01\x0b\x00", bytes(5000)):
            agree(encode_varint(size) + rest)


numbers = st.one_of(st.integers(0, 70000), st.integers(-1, 2**64), st.sampled_from([23, 24, 255, 256, 65536, 2**32]))
words = st.one_of(st.just(""), st.text(max_size=130))


@settings(deadline=None, max_examples=1500)
@given(
    st.builds(
        Header,
        kind=st.sampled_from(Kind),
        job=words,
        group=words,
        step=numbers,
        bucket=numbers,
        tag=numbers,
        dtype=st.sampled_from(["", "", "float32", "float3"]),
        shape=st.lists(st.integers(0, 70000), max_size=3).map(tuple),
        length=numbers,
        call=words,
    ),
    st.booleans(),
)
def test_headers_are_written_alike_or_left_to_python(header: Header, fits: bool) -> None:
    if fits:
        header = replace(header, length=math.prod(header.shape) * (4 if header.dtype == "float32" else 1))
    written = hive_qos_native.write_header(header)
    try:
        expected = encode_header(header)
    except WireError:
        assert written is None
    else:
        assert written == expected


odd_numbers = st.one_of(
    numbers,
    st.integers(0, 2**63 - 1).map(np.int64),
    st.integers(0, 2**64 - 1).map(np.uint64),
    st.sampled_from([True, np.True_, 4.0, np.float64(4), "4", None, [4]]),
    st.just(np.array([4])),
)


@settings(deadline=None, max_examples=500)
@given(
    st.builds(
        Header,
        kind=st.sampled_from([*Kind, 2, 7, np.int64(1), True]),
        step=odd_numbers,
        tag=odd_numbers,
        shape=st.one_of(st.just(()), st.tuples(odd_numbers), st.sampled_from([[4], "4", np.array([4])])),
        length=st.sampled_from([4, 4, np.int64(4), 4.0]),
    )
)
def test_whatever_callers_say_both_engines_send_the_same_or_refuse_it_alike(header: Header) -> None:
    def sent(**encode: Any) -> Any:
        try:
            return message_of(header, memoryview(b"four"), **encode)
        except MisuseError as error:
            return str(error)

    assert sent(encode=_encoded) == sent()


@contextmanager
def unconnected() -> Iterator[list[tuple[Engine, list[Event]]]]:
    """An engine of each kind, and what it tells."""
    made: list[tuple[Engine, list[Event]]] = []
    try:
        for name in ("aioquic", "native"):
            events: list[Event] = []
            made.append((create_engine(name, EngineSettings(), events.extend), events))
        yield made
    finally:
        for engine, _ in made:
            engine.close()


def ends_of(call: Callable[[Engine], int]) -> Any:
    """How an operation ends when the engine is closed behind it, or why it is refused: by both engines alike."""
    ends = []
    with unconnected() as engines:
        for engine, events in engines:
            try:
                operation = call(engine)
            except MisuseError as error:
                ends.append(str(error))
            else:
                engine.close()
                ends.append([event.operation == operation for event in events if isinstance(event, OperationFailed)])
    assert ends[0] == ends[1]
    return ends[0]


@pytest.mark.parametrize(
    ("key", "taken"),
    [
        (MatchKey(Kind.CONTROL, "g", 1, 2, 3), True),
        *[(MatchKey(Kind.CONTROL, tag=tag), False) for tag in (True, np.True_, 1.0, "1", -1, 2**64, np.int64(1), None)],
        *[(MatchKey(kind), False) for kind in (True, 1, 7, 256, "1")],
        *[(MatchKey(Kind.CONTROL, group=group), False) for group in ("g" * 129, "\ud800", b"g", None)],
    ],
    ids=repr,
)
def test_both_engines_take_the_same_keys(key: Any, taken: bool) -> None:
    end = ends_of(lambda engine: engine.post("b", key, None))
    assert (end == [True]) == taken, end


def test_what_messages_ordinarily_say_is_not_left_to_python() -> None:
    for header in (
        Header(Kind.CONTROL),
        Header(Kind.POINT_TO_POINT, group="flow", step=70_000, length=2**21),
        Header(Kind.COLLECTIVE, job="j" * 128, group="g" * 128, dtype="float32", shape=(2, 3), length=24, call="sum"),
    ):
        assert hive_qos_native.write_header(header) == encode_header(header)
