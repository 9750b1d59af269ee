"""What the kernel says of a link, from the bytes of its message."""

from __future__ import annotations

import struct

import pytest

from hive_qos.netlink import pack_attribute
from shaping.netlink.links import Link, decode_link

GROUP, SEGMENTS, MOST = (
    pack_attribute(kind, struct.pack("=I", value)) for kind, value in ((27, 3), (40, 44), (60, 65535))
)
VETH = pack_attribute(18, pack_attribute(1, b"veth\0") + pack_attribute(2, b"\1\2\3\4"))


def body(*attributes: bytes) -> bytes:
    return struct.pack("=BxHiII", 0, 1, 7, 0, 0) + pack_attribute(3, b"eth0\0") + b"".join(attributes)


@pytest.mark.parametrize(
    ("attributes", "expected"),
    [
        ((VETH, GROUP, SEGMENTS, MOST), Link("veth", 3, 44, 65535)),
        ((MOST, SEGMENTS, GROUP, VETH), Link("veth", 3, 44, 65535)),
        ((GROUP, SEGMENTS), Link("", 3, 44, None)),
    ],
)
def test_a_link_is_read_whatever_stands_where(attributes: tuple[bytes, ...], expected: Link) -> None:
    assert decode_link(16, body(*attributes)) == expected
