"""Ranges of bytes, and the frames that the engine writes and reads itself."""

from __future__ import annotations

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from transport.engine.aioquic.frames import ack_frame, read_ack_frame, read_varint, stream_frame_head, stream_head_bytes
from transport.engine.aioquic.streams import ByteRanges
from transport.wire.varint import VARINT_MAX, encode_varint


@given(st.lists(st.tuples(st.integers(0, 60), st.integers(1, 12)), max_size=30))
def test_ranges_agree_with_a_set_of_bytes(pieces: list[tuple[int, int]]) -> None:
    ranges, naive = ByteRanges(), set[int]()
    for start, length in pieces:
        ranges.add(start, start + length)
        naive.update(range(start, start + length))
        front = next(at for at in range(100) if at not in naive)
        assert ranges.front == front
        islands = {at for low, high in ranges.islands for at in range(low, high)}
        assert islands == {at for at in naive if at >= front}
        assert all(a[1] < b[0] for a, b in pairwise(ranges.islands))


@given(st.lists(st.integers(0, 400), min_size=1, unique=True), st.integers(0, 10**6))
def test_an_acknowledgement_says_the_newest_ranges(numbers: list[int], delay_us: int) -> None:
    ranges: list[range] = []
    for number in sorted(numbers):
        if ranges and ranges[-1].stop == number:
            ranges[-1] = range(ranges[-1].start, number + 1)
        else:
            ranges.append(range(number, number + 1))
    frame = ack_frame(ranges, delay_us=delay_us, exponent=3)
    found, delay, end = read_ack_frame(frame, 1)
    assert found == ranges[::-1][:32]
    assert delay == delay_us >> 3
    assert end == len(frame)


def test_an_acknowledgement_below_zero_is_refused() -> None:
    with pytest.raises(ValueError, match="below packet 0"):
        read_ack_frame(bytes((2, 5, 0, 0, 6)), 1)
    with pytest.raises(ValueError, match="below packet 0"):
        read_ack_frame(bytes((2, 5, 0, 1, 2, 3, 0)), 1)
    with pytest.raises(IndexError):
        read_ack_frame(bytes((2, 5, 0, 1, 2)), 1)


@given(st.integers(0, VARINT_MAX))
def test_the_fast_reader_of_varints_agrees(value: int) -> None:
    wire = encode_varint(value)
    assert read_varint(wire, 0) == (value, len(wire))
    with pytest.raises(IndexError):
        read_varint(wire[:-1], 0)


@given(st.integers(0, 2**20), st.integers(0, 2**50), st.integers(0, 16383), st.booleans())
def test_stream_frames_take_the_room_that_was_reckoned(number: int, offset: int, length: int, fin: bool) -> None:
    identifier = encode_varint(number)
    head = stream_frame_head(identifier, offset=offset, length=length, fin=fin)
    assert len(head) == stream_head_bytes(identifier, offset=offset)
    at = 1 + len(identifier)
    assert head[1:at] == identifier
    if offset:
        found, at = read_varint(head, at)
        assert found == offset
    assert bool(head[0] & 4) == bool(offset)
    assert bool(head[0] & 1) == fin
    assert read_varint(head, at) == (length, len(head))
