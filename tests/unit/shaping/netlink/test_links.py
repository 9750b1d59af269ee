"""What the kernel says of a link, from the bytes of its message, and what it is told of a filter."""

from __future__ import annotations

import struct

import pytest

from hive_qos.netlink import pack_attribute
from shaping.netlink.links import Link, decode_link

RTM_NEWLINK, UP, LOWER_UP = 16, 0x43, 1 << 16


def number(kind: int, value: int) -> bytes:
    return pack_attribute(kind, struct.pack("=I", value))


GROUP, SEGMENTS, CHANGES, MOST = number(27, 3), number(40, 44), number(35, 9), number(60, 65535)
VETH = pack_attribute(18, pack_attribute(1, b"veth\0") + pack_attribute(2, b"\1\2\3\4"))


@pytest.mark.parametrize(
    ("flags", "attributes", "expected"),
    [
        (UP | LOWER_UP, (VETH, GROUP, SEGMENTS, CHANGES, MOST), Link(7, True, 9, "veth", 3, 44, 65535)),
        (UP, (MOST, CHANGES, SEGMENTS, GROUP, VETH), Link(7, False, 9, "veth", 3, 44, 65535)),
        (LOWER_UP, (GROUP, CHANGES, SEGMENTS), Link(7, True, 9, "", 3, 44, None)),
    ],
    ids=["carrier", "up-without-one", "before-5.19"],
)
def test_a_link_is_read_whatever_stands_where(flags: int, attributes: tuple[bytes, ...], expected: Link) -> None:
    head = struct.pack("=BxHiII", 0, 1, 7, flags, 0)
    assert decode_link(RTM_NEWLINK, head + pack_attribute(3, b"eth0\0") + b"".join(attributes)) == expected
