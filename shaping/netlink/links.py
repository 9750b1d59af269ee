"""The messages of links (rtnetlink(7), struct ifinfomsg): ask for one, and what the kernel says of it. No pyroute2."""

from __future__ import annotations

import struct
from dataclasses import dataclass

from shaping.netlink.attributes import attribute_map, pack_attribute
from shaping.netlink.tc_codec import Request

# linux/rtnetlink.h and linux/if_link.h.
RTM_NEWLINK, RTM_DELLINK, _RTM_GETLINK = 16, 17, 18
IFINFOMSG = struct.Struct("=BxHiII")  # family, pad, type, interface index, flags, change
IFLA_IFNAME, IFLA_LINKINFO, IFLA_INFO_KIND = 3, 18, 1
_IFLA_GROUP, _IFLA_GSO_MAX_SEGS, _IFLA_TSO_MAX_SEGS = 27, 40, 60
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


def pack_link(interface_index: int, *, flags: int = 0) -> bytes:
    """A struct ifinfomsg: which link, 0 for one that is made, and which of its flags to set."""
    return IFINFOMSG.pack(0, 0, interface_index, flags, flags)


def encode_look(*, interface_index: int) -> Request:
    """Ask for one link."""
    return Request(_RTM_GETLINK, 0, pack_link(interface_index))


def encode_segments(limit: int, *, interface_index: int, group: int) -> Request:
    """Set a device's `gso_max_segs`, so that living connections follow.

    A socket keeps the limit that it found when its route was looked up. Naming the device's group as it is changes
    nothing, but makes the kernel announce a change of the device (NETDEV_CHANGE), upon which it throws cached routes
    away and every socket looks again. A new limit alone is not announced.
    """
    body = pack_link(interface_index) + pack_attribute(_IFLA_GSO_MAX_SEGS, _U32.pack(limit))
    body += pack_attribute(_IFLA_GROUP, _U32.pack(group))
    return Request(RTM_NEWLINK, 0, body)


def decode_link(_: int, body: bytes) -> Link:
    """Take the answer apart.

    Raises:
        KeyError: no group or no gso_max_segs, which every kernel since 4.18 gives.
    """
    attributes = attribute_map(body, IFINFOMSG.size)
    kind = attribute_map(attributes.get(IFLA_LINKINFO, b"")).get(IFLA_INFO_KIND, b"")
    return Link(
        kind=kind.rstrip(b"\0").decode("ascii", "replace"),
        group=_U32.unpack_from(attributes[_IFLA_GROUP])[0],
        gso_max_segs=_U32.unpack_from(attributes[_IFLA_GSO_MAX_SEGS])[0],
        tso_max_segs=_U32.unpack_from(attributes[_IFLA_TSO_MAX_SEGS])[0] if _IFLA_TSO_MAX_SEGS in attributes else None,
    )
