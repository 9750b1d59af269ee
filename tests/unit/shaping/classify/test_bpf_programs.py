"""BPF programs end where they should, and cgroup v2 is found wherever it is mounted."""

from __future__ import annotations

import struct
from pathlib import Path

import pytest

from shaping.classify.bpf import instruction, load_64
from shaping.classify.bpf_programs import accept_program, create_program
from shaping.classify.cgroup import mount_in
from shaping.model.names import classid


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
    others = b"50 35 0:50 / /mnt/donn\xe9es\xe2\x80\xa8x rw - ext4 /dev/sdb rw\n"
    assert mount_in(others + text.encode()) == (Path(found) if found else None)
