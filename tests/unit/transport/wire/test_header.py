"""Headers, CBOR and control frames: what goes in comes out, and nothing hostile gets past or costs much."""

from __future__ import annotations

import contextlib
import math

import cbor2
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from transport.wire.cbor import decode_map, encode_map
from transport.wire.control_frames import FrameReader, check_hello, encode_frame
from transport.wire.dtypes import ITEM_BYTES, item_bytes
from transport.wire.error_codes import WireCode, WireError
from transport.wire.header import HEADER_BYTES_MAX, U64_MAX, Header, Kind, decode_header, encode_header, split_header
from transport.wire.varint import VARINT_MAX, decode_varint, encode_varint

u64 = st.integers(0, U64_MAX)
names = st.text(max_size=32)


@st.composite
def headers(draw: st.DrawFn) -> Header:
    dtype = draw(st.sampled_from(["", *ITEM_BYTES]))
    shape = tuple(draw(st.lists(st.integers(0, 2**12), max_size=4)))
    length = math.prod(shape) * item_bytes(dtype) if dtype or shape else draw(u64)
    return Header(
        kind=draw(st.sampled_from(Kind)),
        job=draw(names),
        group=draw(names),
        step=draw(u64),
        bucket=draw(u64),
        tag=draw(u64),
        dtype=dtype,
        shape=shape,
        length=length,
        call=draw(st.text(max_size=32)),
    )


@given(headers())
def test_a_header_survives_the_wire(header: Header) -> None:
    split = split_header(encode_header(header))
    assert split is not None
    assert decode_header(split[0]) == header


@given(headers(), st.data())
def test_a_header_that_is_cut_is_incomplete_and_never_wrong(header: Header, data: st.DataObject) -> None:
    wire = encode_header(header)
    assert split_header(wire[: data.draw(st.integers(0, len(wire) - 1))]) is None


@settings(max_examples=500)
@given(st.binary(max_size=300))
@example(b"\x9b" + b"\xff" * 8)
@example(b"\xa1" * 200)
@example(b"\x81" * 300)
def test_any_bytes_are_a_header_or_refused_with_a_code(data: bytes) -> None:
    with contextlib.suppress(WireError):  # nothing else may be raised
        assert 0 <= decode_header(data).length <= U64_MAX


@given(headers(), st.data())
def test_a_header_with_a_flipped_byte_is_a_header_or_refused(header: Header, data: st.DataObject) -> None:
    body = bytearray(encode_header(header)[2:])
    body[data.draw(st.integers(0, len(body) - 1))] ^= data.draw(st.integers(1, 255))
    with contextlib.suppress(WireError):  # nothing else may be raised
        decode_header(bytes(body))


scalars = st.one_of(
    st.integers(-(2**63), U64_MAX),
    st.floats(allow_nan=False),
    st.booleans(),
    st.none(),
    st.text(max_size=20),
    st.binary(max_size=20),
)


@given(
    st.dictionaries(
        st.integers(-1000, 1000),
        st.one_of(
            scalars, st.lists(scalars, max_size=4), st.dictionaries(st.integers(0, 20), st.lists(scalars), max_size=3)
        ),
        max_size=6,
    )
)
def test_the_reader_agrees_with_the_library(value: dict[int, object]) -> None:
    assert decode_map(encode_map(value)) == value
    assert decode_map(cbor2.dumps(value)) == value


def test_unknown_keys_are_ignored() -> None:
    unknown = {3: 1, 6: True, 10: 7, 12: 0.5, 13: b"x", 500: {1: [2]}, -3: "x"}
    assert decode_header(encode_map({0: 1, 11: 0, **unknown})) == Header(kind=Kind.COLLECTIVE)


def test_four_levels_of_nesting_are_too_many() -> None:
    decode_map(encode_map({0: {0: [1]}}))
    with pytest.raises(WireError, match="nested"):
        decode_map(encode_map({0: {0: [[1]]}}))


@pytest.mark.parametrize(
    ("fields", "code"),
    [
        ({"group": "g" * 129}, WireCode.HEADER_INVALID),
        ({"step": -1}, WireCode.HEADER_INVALID),
        ({"tag": 2**64}, WireCode.HEADER_INVALID),
        ({"dtype": "float32", "shape": (2,), "length": 9}, WireCode.LENGTH_MISMATCH),
        ({"dtype": "quux", "length": 1}, WireCode.DTYPE_UNKNOWN),
        ({"shape": (1,) * 33, "length": 1}, WireCode.HEADER_INVALID),
    ],
)
def test_what_a_peer_would_refuse_is_not_written(fields: dict[str, object], code: WireCode) -> None:
    with pytest.raises(WireError) as caught:
        encode_header(Header(kind=Kind.CONTROL, **fields))  # type: ignore[arg-type]  # that is the test
    assert caught.value.wire_code == code


def test_a_header_beyond_its_limit_is_refused_by_its_length_alone() -> None:
    with pytest.raises(WireError) as caught:
        split_header(encode_varint(HEADER_BYTES_MAX + 1))
    assert caught.value.wire_code == WireCode.HEADER_TOO_LARGE
    with pytest.raises(WireError):
        decode_header(bytes(HEADER_BYTES_MAX + 1))


@given(st.integers(0, VARINT_MAX))
def test_a_varint_survives_the_wire(value: int) -> None:
    wire = encode_varint(value)
    assert decode_varint(b"x" + wire, 1) == (value, len(wire) + 1)
    assert all(decode_varint(wire[:cut]) is None for cut in range(len(wire)))


@pytest.mark.parametrize("value", [-1, VARINT_MAX + 1])
def test_what_is_no_varint_is_not_written(value: int) -> None:
    with pytest.raises(ValueError, match=r"negative|62 bits"):
        encode_varint(value)


def test_control_frames_are_cut_out_of_any_pieces() -> None:
    wire = encode_frame(0, {0: 1}) + encode_frame(99, {1: 2}) + encode_frame(0, {0: 2})
    reader = FrameReader()
    frames = [frame for at in range(len(wire)) for frame in reader.feed(wire[at : at + 1])]
    assert frames == [(0, {0: 1}), (0, {0: 2})]


@given(st.binary(max_size=200))
def test_any_control_bytes_are_frames_or_refused(data: bytes) -> None:
    with contextlib.suppress(WireError):  # nothing else may be raised
        list(FrameReader().feed(data))


@pytest.mark.parametrize(
    ("fields", "code"),
    [
        ({}, WireCode.HELLO_INVALID),
        ({0: "1"}, WireCode.HELLO_INVALID),
        ({0: 2}, WireCode.VERSION_UNSUPPORTED),
        ({0: 1, 2: "n" * 257}, WireCode.HELLO_INVALID),
        ({0: 1, 4: {0: -1}}, WireCode.HELLO_INVALID),
    ],
)
def test_a_bad_hello_is_refused(fields: dict[int, object], code: WireCode) -> None:
    with pytest.raises(WireError) as caught:
        check_hello(fields)
    assert caught.value.wire_code == code
