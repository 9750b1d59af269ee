"""What the kernel says of one link: the messages that ask for it and tell it (rtnetlink(7)). No pyroute2."""

from __future__ import annotations

import struct
from dataclasses import dataclass

from shaping.attributes import attribute_map
from shaping.codec import Request

_RTM_GETLINK = 18
_IFINFOMSG = struct.Struct("=BxHiII")  # family, pad, type, interface index, flags, change
_IFLA_LINKINFO, _IFLA_GROUP, _IFLA_GSO_MAX_SEGS, _IFLA_TSO_MAX_SEGS = 18, 27, 40, 60
_IFLA_INFO_KIND = 1
_U32 = struct.Struct("=I")


@dataclass(frozen=True)
class Link:
    """One link.

    Fields: `kind` the name of its driver ("veth", "ifb"), "" where it is a plain device; `group` as in `ip link set
    group`; `gso_max_segs` in force, and `tso_max_segs` what the device can take, None where the kernel does not say
    (before 5.19).
    """

    kind: str
    group: int
    gso_max_segs: int
    tso_max_segs: int | None


def encode_look(*, interface_index: int) -> Request:
    """Ask for one link."""
    return Request(_RTM_GETLINK, 0, _IFINFOMSG.pack(0, 0, interface_index, 0, 0))


def decode_link(_: int, body: bytes) -> Link:
    """Take the answer apart.

    Raises:
        KeyError: no group or no gso_max_segs, which every kernel since 4.18 gives.
    """
    attributes = attribute_map(body, _IFINFOMSG.size)
    kind = attribute_map(attributes.get(_IFLA_LINKINFO, b"")).get(_IFLA_INFO_KIND, b"")
    return Link(
        kind=kind.rstrip(b"\0").decode("ascii", "replace"),
        group=_U32.unpack_from(attributes[_IFLA_GROUP])[0],
        gso_max_segs=_U32.unpack_from(attributes[_IFLA_GSO_MAX_SEGS])[0],
        tso_max_segs=_U32.unpack_from(attributes[_IFLA_TSO_MAX_SEGS])[0] if _IFLA_TSO_MAX_SEGS in attributes else None,
    )
