"""Messages say what was meant: what we write, read as the kernel's answer, is the same value."""

from __future__ import annotations

import socket
import struct
import sys
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st
from shaping_contract import MBIT, make_shape

from hive_qos.netlink import attribute_map, pack_attribute
from shaping.model.names import show_classid
from shaping.model.observations import Capabilities
from shaping.model.shapes import Rule
from shaping.model.tree import AddClass, AddLeaf, FilterSpec, LeafSpec
from shaping.netlink import u32
from shaping.netlink.fast_path import (
    decode_class,
    decode_counters,
    decode_leaf,
    decode_object,
    decode_queue,
    encode_operation,
)
from shaping.netlink.root import _compared, _taken_back
from shaping.plan.desired_tree import desired_tree

TREE = desired_tree(
    make_shape("eth0", capacity=50_000 * MBIT, rules=(Rule("storage", port=873), Rule("control", dscp=46))),
    Capabilities(),
)


@pytest.mark.parametrize("spec", TREE.classes, ids=lambda spec: show_classid(spec.minor))
def test_a_class_reads_back_as_it_was_written(spec: object) -> None:
    request = encode_operation(AddClass(spec), index=7)  # type: ignore[arg-type]  # parametrize hides the type
    found = decode_object(request.message_type, request.body)
    assert (found.interface_index, found.kind) == (7, "htb")
    read = decode_class(found)
    assert {**read.__dict__, "quantum_bytes": 0} == {**spec.__dict__, "quantum_bytes": 0}
    assert read.quantum_bytes >= 1514


@given(st.sampled_from(("bfifo", "fq_codel")), st.integers(1, 2**32 - 1), st.integers(1, 0xFFFF))
def test_a_queue_reads_back_as_it_was_written(kind: str, limit: int, minor: int) -> None:
    leaf = LeafSpec(minor, kind, limit, 0xFF00)  # type: ignore[arg-type]  # one of the two literals
    request = encode_operation(AddLeaf(leaf), index=1)
    assert decode_leaf(decode_object(request.message_type, request.body)) == leaf


@pytest.mark.parametrize("spec", TREE.filters, ids=lambda spec: str(spec.preference))
def test_a_filter_reads_back_as_it_was_written(spec: FilterSpec) -> None:
    written = u32.Filter(parent=0xFFE00000, preference=100, protocol=0x800, matches=spec.matches, classid=0xFFE00030)
    request = u32.encode_add(written, index=7)
    assert u32.decode(request.message_type, request.body) == written


def test_a_redirection_reads_back_and_other_actions_are_none() -> None:
    everything = u32.Filter(parent=0xFFFF0000, preference=1, protocol=0x86DD, matches=((0, 0, 0),), to_index=9)
    request = u32.encode_add(everything, index=7)
    assert u32.decode(request.message_type, request.body) == everything
    body = request.body.replace(b"mirred\0", b"unseen\0")
    assert u32.decode(request.message_type, body) == replace(everything, to_index=None)


@pytest.mark.parametrize("kind", ["flower", "bpf", "unheard-of"])
def test_of_another_kinds_filter_its_place_alone_is_known(kind: str) -> None:
    head = struct.pack("=BxHiIII", 0, 0, 7, 1, 0xFFFF0000, 5 << 16 | socket.htons(0x800))
    options = pack_attribute(2, pack_attribute(1, bytes(4)) + pack_attribute(7, b"\1\2\3\4\5"))
    found = u32.decode(44, head + pack_attribute(1, kind.encode() + b"\0") + options)
    assert found == u32.Filter(parent=0xFFFF0000, preference=5, protocol=0x800)


def test_port_filters_look_at_unfragmented_packets_without_options() -> None:
    first = next(rule for rule in TREE.filters if rule.family == 4)
    assert first.matches == (
        (0, 0x0F000000, 0x05000000),
        (4, 0x1FFF, 0),
        (8, 0xFF0000, 6 << 16),
        (20, 0xFFFF0000, 873 << 16),
    )


def test_a_codepoint_filter_is_blind_to_the_congestion_bits() -> None:
    four, six = [rule for rule in TREE.filters if len(rule.matches) == 1 and not rule.parent_minor]
    assert four.matches == ((0, 0x00FC0000, 46 << 18),)
    assert six.matches == ((0, 0x0FC00000, 46 << 22),)


def test_htbs_reported_version_is_given_back_as_the_one_that_it_takes() -> None:
    reported = bytes.fromhex("18000200110003000c00000020000000000000002a00000008000500e8030000")
    given_back = attribute_map(_taken_back("htb", reported))
    assert struct.unpack("=IIIII", given_back[2]) == (3, 12, 0x20, 0, 0)
    assert struct.unpack("=I", given_back[5]) == (1000,)


@pytest.mark.parametrize("wanted_us", [1, 2_999, 3_000, 5_000, 60_000, 100_000])
def test_codels_times_come_back_as_they_were_though_the_kernel_rounds_down_twice(wanted_us: int) -> None:
    def kept_us(given_us: int) -> int:
        return (given_us * 1000 >> 10) * 1024 // 1000

    reported = pack_attribute(1, struct.pack("=I", kept_us(wanted_us))) + pack_attribute(2, struct.pack("=I", 500))
    given_back = attribute_map(_taken_back("fq_codel", reported))
    assert kept_us(int.from_bytes(given_back[1], sys.byteorder)) == kept_us(wanted_us)
    assert struct.unpack("=I", given_back[2]) == (500,)


def test_sfq_with_fewer_flows_than_it_was_told_is_the_same_where_packets_bound_them() -> None:
    def options(*, limit: int, flows: int) -> bytes:
        return struct.pack("=IiIII", 1514, 10, limit, 1024, flows) + bytes(52)

    assert _compared("sfq", options(limit=127, flows=128)) == _compared("sfq", options(limit=127, flows=127))
    assert _compared("sfq", options(limit=127, flows=126)) != _compared("sfq", options(limit=127, flows=127))


BASIC = pack_attribute(1, struct.pack("=QI", 5_000_000_000, 7) + bytes(4))
WIDE = pack_attribute(8, struct.pack("=Q", 2**33))
QUEUE = pack_attribute(3, struct.pack("=IIIII", 3, 4500, 2, 0, 9))
HTB = pack_attribute(4, struct.pack("=IIIii", 10, 20, 0, -5, 6))
ESTIMATE = pack_attribute(2, bytes(8))
"""Of a kind that nobody asks for."""


def message(*statistics: bytes, handle: int = 0xFFE00010, before: bytes = b"") -> bytes:
    head = struct.pack("=BxHiIII", 0, 0, 7, handle, 0xFFE00001, 0)
    beside = pack_attribute(1, b"htb\0"), pack_attribute(2, bytes(36)), pack_attribute(3, bytes(36))
    return head + before + beside[0] + beside[1] + pack_attribute(7, b"".join(statistics)) + beside[2]


def test_counters_prefer_the_wide_packet_count_and_queues_tell_their_drops() -> None:
    handle, found = decode_counters(40, message(BASIC, WIDE, QUEUE, HTB))
    assert handle == 0xFFE00010
    assert (found.sent_bytes, found.sent_packets) == (5_000_000_000, 2**33)
    assert (found.backlog_packets, found.backlog_bytes, found.dropped_packets) == (3, 4500, 2)
    assert decode_queue(36, message(BASIC, WIDE, QUEUE, HTB), of=7) == (0xFFE00001, 2)
    assert decode_queue(36, message(BASIC, WIDE, QUEUE, HTB), of=8) is None


def test_our_root_tells_what_went_past_its_classes_and_another_s_tells_nothing() -> None:
    glob = pack_attribute(1, b"htb\0") + pack_attribute(2, pack_attribute(2, struct.pack("=IIIII", 3, 10, 32, 0, 5)))
    ours, foreign = (struct.pack("=BxHiIII", 0, 0, 7, handle, 0xFFFFFFFF, 0) for handle in (0xFFE00000, 0x10000))
    assert decode_queue(36, ours + glob, of=7) == (0xFFFFFFFF, 5)
    assert decode_queue(36, foreign + glob, of=7) is None


def test_what_an_older_kernel_does_not_say_counts_as_nothing() -> None:
    _, found = decode_counters(40, message(BASIC, QUEUE))
    assert found.sent_packets == 7
    assert found.backlog_bytes == 4500


def test_a_message_of_the_same_length_in_another_order_is_read_as_what_it_is() -> None:
    first, second = (BASIC, WIDE, QUEUE, HTB, ESTIMATE), (QUEUE, ESTIMATE, HTB, BASIC, WIDE)
    assert len(message(*first)) == len(message(*second))
    known = decode_counters(40, message(*first))
    for statistics in (second, first, second):
        assert decode_counters(40, message(*statistics)) == known


def test_a_kind_that_comes_twice_shifts_nothing_behind_it() -> None:
    """Kernels that want 64-bit values at multiples of 8 put TCA_STATS_PAD in front of each."""
    pad = pack_attribute(6, b"")
    for statistics in ((pad, BASIC, pad, WIDE, QUEUE, HTB), (BASIC, QUEUE, BASIC, HTB), (QUEUE, pad, HTB, pad, BASIC)):
        _, found = decode_counters(40, message(*statistics))
        assert found.sent_bytes == 5_000_000_000
        assert (found.backlog_packets, found.backlog_bytes, found.dropped_packets) == (3, 4500, 2)


def test_a_kind_that_comes_twice_beside_the_statistics_shifts_nothing_in_them() -> None:
    twice = pack_attribute(2, bytes(36))
    _, found = decode_counters(40, message(BASIC, QUEUE, HTB, before=twice))
    assert (found.sent_bytes, found.backlog_bytes) == (5_000_000_000, 4500)


def test_what_is_not_there_or_shorter_than_it_should_be_counts_as_nothing() -> None:
    short = pack_attribute(3, struct.pack("=II", 3, 4500))
    for statistics in ((), (ESTIMATE,), (short,), (HTB,)):
        handle, found = decode_counters(40, message(*statistics))
        assert handle == 0xFFE00010
        assert (found.sent_bytes, found.sent_packets, found.backlog_bytes) == (0, 0, 0)
