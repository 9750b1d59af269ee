"""Counters out of the kernel's list of classes: whatever order and kinds of attributes it writes."""

from __future__ import annotations

import struct

import pytest

from hive_qos.netlink import pack_attribute
from shaping.netlink import class_counters
from shaping.netlink.class_counters import decode_class_counters

BASIC = pack_attribute(1, struct.pack("=QI", 5_000_000_000, 7) + bytes(4))
WIDE = pack_attribute(8, struct.pack("=Q", 2**33))
QUEUE = pack_attribute(3, struct.pack("=IIIII", 3, 4500, 2, 0, 9))
HTB = pack_attribute(4, struct.pack("=IIIii", 10, 20, 0, -5, 6))
ESTIMATE = pack_attribute(2, bytes(8))
"""Of a kind that nobody asks for."""


@pytest.fixture(autouse=True)
def nothing_is_remembered() -> None:
    class_counters._layouts.clear()


def message(*statistics: bytes, handle: int = 0xFFE00010, before: bytes = b"") -> bytes:
    head = struct.pack("=BxHiIII", 0, 0, 7, handle, 0xFFE00001, 0)
    beside = pack_attribute(1, b"htb\0"), pack_attribute(2, bytes(36)), pack_attribute(3, bytes(36))
    return head + before + beside[0] + beside[1] + pack_attribute(7, b"".join(statistics)) + beside[2]


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


def test_a_kind_that_comes_twice_shifts_nothing_behind_it() -> None:
    """Kernels that want 64-bit values at multiples of 8 put TCA_STATS_PAD in front of each."""
    pad = pack_attribute(6, b"")
    for statistics in ((pad, BASIC, pad, WIDE, QUEUE, HTB), (BASIC, QUEUE, BASIC, HTB), (QUEUE, pad, HTB, pad, BASIC)):
        for _ in range(2):
            _, found = decode_class_counters(40, message(*statistics))
            assert found.sent_bytes == 5_000_000_000
            assert (found.backlog_packets, found.backlog_bytes, found.dropped_packets) == (3, 4500, 2)
            assert (found.lends, found.borrows, found.tokens, found.ctokens) == (10, 20, -5, 6)


def test_a_kind_that_comes_twice_beside_the_statistics_shifts_nothing_in_them() -> None:
    twice = pack_attribute(2, bytes(36))
    for _ in range(2):
        _, found = decode_class_counters(40, message(BASIC, QUEUE, HTB, before=twice))
        assert (found.sent_bytes, found.backlog_bytes, found.borrows) == (5_000_000_000, 4500, 20)


def test_what_is_not_there_or_shorter_than_it_should_be_counts_as_nothing() -> None:
    short = pack_attribute(3, struct.pack("=II", 3, 4500))
    for statistics in ((), (ESTIMATE,), (short,), (HTB,)):
        for _ in range(2):
            handle, found = decode_class_counters(40, message(*statistics))
            assert handle == 0xFFE00010
            assert (found.sent_bytes, found.sent_packets, found.backlog_bytes) == (0, 0, 0)
            assert found.lends == (10 if statistics == (HTB,) else 0)


def test_places_at_which_no_such_attributes_are_make_no_layout() -> None:
    body = message(BASIC, QUEUE)
    places = class_counters._places(body)
    assert set(places) == {1, 3}
    with pytest.raises(ValueError, match="not where they were looked for"):
        class_counters._Layout(body, {**places, 3: places[3] + 8})


def test_layouts_are_bounded() -> None:
    for extra in range(2 * class_counters._LAYOUTS_MAX):
        decode_class_counters(40, message(BASIC, QUEUE, pack_attribute(9, bytes(4 * extra))))
    assert len(class_counters._layouts) <= class_counters._LAYOUTS_MAX
