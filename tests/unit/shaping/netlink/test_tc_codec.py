"""Messages say what was meant: what we write, read as the kernel's answer, is the same value."""

from __future__ import annotations

import struct
from pathlib import Path

import pytest
from pyroute2.netlink.rtnl.tcmsg import plugins, tcmsg
from shaping_contract import MBIT, make_shape

from hive_qos.netlink import attribute_map
from shaping.classify.bpf import instruction, load_64
from shaping.classify.bpf_programs import accept_program, create_program
from shaping.classify.cgroup import find_mount
from shaping.model import AddClass, Capabilities, FilterSpec, Rule, classid, show_classid
from shaping.netlink.plugins import U32, matches_of, register
from shaping.netlink.root import _taken_back
from shaping.netlink.tc_codec import decode_class, decode_object, encode_class
from shaping.plan.desired_tree import desired_tree

TREE = desired_tree(
    make_shape("eth0", capacity=50_000 * MBIT, rules=(Rule("storage", port=873), Rule("control", dscp=46))),
    Capabilities(),
)


@pytest.mark.parametrize("spec", TREE.classes, ids=lambda spec: show_classid(spec.minor))
def test_a_class_reads_back_as_it_was_written(spec: object) -> None:
    request = encode_class(AddClass(spec), interface_index=7)  # type: ignore[arg-type]  # parametrize hides the type
    found = decode_object(request.message_type, request.body)
    assert (found.interface_index, found.kind) == (7, "htb")
    read = decode_class(found)
    assert {**read.__dict__, "quantum_bytes": 0} == {**spec.__dict__, "quantum_bytes": 0}
    assert read.quantum_bytes >= 1514


@pytest.mark.parametrize("spec", TREE.filters, ids=lambda spec: str(spec.preference))
def test_pyroute2_writes_a_filters_words_as_they_are_and_reads_them_back(spec: FilterSpec) -> None:
    register()
    assert plugins["u32"] is U32
    message = tcmsg()
    options = U32.get_parameters({"matches": spec.matches, "target": classid(spec.target_minor)})
    message["attrs"] = [("TCA_KIND", "u32"), ("TCA_OPTIONS", options)]
    message.encode()
    read = tcmsg(message.data)
    read.decode()
    found = read.get_attr("TCA_OPTIONS")
    assert matches_of(found.get_attr("TCA_U32_SEL")) == spec.matches
    assert found.get_attr("TCA_U32_CLASSID") == classid(spec.target_minor)


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
    given_back = attribute_map(_taken_back(reported))
    assert struct.unpack("=IIIII", given_back[2]) == (3, 12, 0x20, 0, 0)
    assert struct.unpack("=I", given_back[5]) == (1000,)


def test_every_jump_of_a_program_lands_inside_it() -> None:
    for code in (
        create_program(cookie=2**40 + 1, priority=classid(0x310), uid=1000, storage=5),
        create_program(cookie=1, priority=classid(0x310), uid=None, storage=None),
        accept_program(storage=5),
    ):
        count = len(code) // 8
        for position in range(count):
            opcode, _, offset, _ = struct.unpack_from("=BBhI", code, position * 8)
            if opcode & 0x07 == 0x05 and opcode not in (0x85, 0x95):
                assert position < position + 1 + offset <= count - 2
        assert code.endswith(instruction(0xB7, dst=0, immediate=1) + instruction(0x95))


def test_a_64_bit_constant_keeps_both_halves() -> None:
    assert struct.unpack("=BBhIBBhI", load_64(3, 0x1122334455667788))[3::4] == (0x55667788, 0x11223344)


@pytest.mark.parametrize(
    ("text", "found"),
    [
        (
            "31 23 0:28 / /sys/fs/cgroup rw - tmpfs tmpfs rw\n41 31 0:38 / /sys/fs/cgroup/unified rw - cgroup2 c rw\n",
            "/sys/fs/cgroup/unified",
        ),
        ("35 24 0:30 / /sys/fs/cgroup rw,nosuid shared:9 - cgroup2 cgroup2 rw,nsdelegate\n", "/sys/fs/cgroup"),
        ("35 24 0:30 / /odd\\040place rw - cgroup2 cgroup2 rw\n", "/odd place"),
        ("32 31 0:29 / /sys/fs/cgroup/cpu rw - cgroup cgroup rw,cpu\n", None),
        ("", None),
    ],
)
def test_cgroup_v2_is_found_wherever_it_is_mounted(text: str, found: str | None) -> None:
    assert find_mount(text) == (Path(found) if found else None)
