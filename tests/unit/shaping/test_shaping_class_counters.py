"""Counters out of the kernel's list of classes: whatever order and kinds of attributes it writes."""

from __future__ import annotations

import struct

import pytest

from shaping import class_counters
from shaping.attributes import pack_attribute
from shaping.class_counters import decode_class_counters

BASIC = pack_attribute(1, struct.pack("=QI", 5_000_000_000, 7) + bytes(4))
WIDE = pack_attribute(8, struct.pack("=Q", 2**33))
QUEUE = pack_attribute(3, struct.pack("=IIIII", 3, 4500, 2, 0, 9))
HTB = pack_attribute(4, struct.pack("=IIIii", 10, 20, 0, -5, 6))
ESTIMATE = pack_attribute(2, bytes(8))
"""Of a kind that nobody asks for."""


@pytest.fixture(autouse=True)
def nothing_is_remembered() -> None:
    class_counters._layouts.clear()


def message(*statistics: bytes, handle: int = 0xFFE00010) -> bytes:
    head = struct.pack("=BxHiIII", 0, 0, 7, handle, 0xFFE00001, 0)
    beside = pack_attribute(1, b"htb\0"), pack_attribute(2, bytes(36)), pack_attribute(3, bytes(36))
    return head + beside[0] + beside[1] + pack_attribute(7, b"".join(statistics)) + beside[2]


def test_counters_prefer_the_wide_packet_count_and_keep_signed_tokens() -> None:
    for _ in range(2):  # looked at, then by what is remembered
        handle, found = decode_class_counters(40, message(BASIC, WIDE, QUEUE, HTB))
        assert handle == 0xFFE00010
        assert (found.sent_bytes, found.sent_packets) == (5_000_000_000, 2**33)
        assert (found.backlog_packets, found.backlog_bytes, found.dropped_packets, found.overlimits) == (3, 4500, 2, 9)
        assert (found.lends, found.borrows, found.tokens, found.ctokens) == (10, 20, -5, 6)


def test_what_an_older_kernel_does_not_say_counts_as_nothing() -> None:
    for _ in range(2):
        _, found = decode_class_counters(40, message(BASIC, QUEUE))
        assert (found.sent_packets, found.lends, found.ctokens) == (7, 0, 0)
        assert found.backlog_bytes == 4500


def test_a_message_of_the_same_length_in_another_order_is_read_as_what_it_is() -> None:
    first, second = (BASIC, WIDE, QUEUE, HTB, ESTIMATE), (QUEUE, ESTIMATE, HTB, BASIC, WIDE)
    assert len(message(*first)) == len(message(*second))
    known = decode_class_counters(40, message(*first))
    for statistics in (second, first, second):
        assert decode_class_counters(40, message(*statistics)) == known


def test_what_is_remembered_is_the_layout_and_not_the_figures() -> None:
    decode_class_counters(40, message(BASIC, WIDE, QUEUE, HTB))
    other = pack_attribute(3, struct.pack("=IIIII", 0, 0, 5, 1, 0))
    handle, found = decode_class_counters(40, message(BASIC, WIDE, other, HTB, handle=0xFFE00020))
    assert (handle, found.backlog_bytes, found.dropped_packets) == (0xFFE00020, 0, 5)


def test_layouts_are_bounded() -> None:
    for extra in range(2 * class_counters._LAYOUTS_MAX):
        decode_class_counters(40, message(BASIC, QUEUE, pack_attribute(9, bytes(4 * extra))))
    assert len(class_counters._layouts) <= class_counters._LAYOUTS_MAX
