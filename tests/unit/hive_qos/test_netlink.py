"""Netlink's attributes: what is written is found again, and no bytes lead the walk astray."""

from __future__ import annotations

import struct

from hypothesis import given
from hypothesis import strategies as st

from hive_qos.netlink import attribute_map, pack_attribute, pack_text

KINDS = st.integers(0, 0x3FFF)


@given(st.dictionaries(KINDS, st.binary(max_size=9), max_size=6), st.binary(max_size=5))
def test_what_is_written_is_found_behind_any_head(values: dict[int, bytes], head: bytes) -> None:
    data = head + b"".join(pack_attribute(kind, value) for kind, value in values.items())
    assert list(attribute_map(data, len(head)).items()) == list(values.items())


def test_each_attribute_is_padded_to_four_bytes_and_a_text_ends_in_zero() -> None:
    assert pack_text(3, "eth0") == struct.pack("=HH", 9, 3) + b"eth0\0\0\0\0"
    assert attribute_map(pack_text(3, "eth0")) == {3: b"eth0\0"}


def test_the_flags_of_a_kind_are_no_part_of_it() -> None:
    nested = pack_attribute(0x8000 | 18, pack_attribute(0x4000 | 1, b"ifb\0"))
    assert attribute_map(attribute_map(nested)[18]) == {1: b"ifb\0"}


def test_the_second_of_a_kind_counts() -> None:
    data = pack_attribute(1, b"a") + pack_attribute(7, b"2") + pack_attribute(7, b"3") + pack_attribute(2, b"b")
    assert attribute_map(data) == {1: b"a", 7: b"3", 2: b"b"}


@given(st.binary(max_size=200), st.integers(0, 210))
def test_the_walk_ends_whatever_the_bytes(data: bytes, offset: int) -> None:
    assert sum(len(value) + 4 for value in attribute_map(data, offset).values()) <= max(0, len(data) - offset)
