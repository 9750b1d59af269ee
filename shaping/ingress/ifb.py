"""The messages that make, start and delete an IFB, and a look at one that costs two microseconds. No pyroute2.

An IFB of ours is named after the number of the interface whose ingress it shapes, which a new name does not change.
"""

from __future__ import annotations

import errno
import fcntl
import os
import socket
import struct

from shaping.netlink.attributes import pack_attribute, pack_text
from shaping.netlink.links import IFLA_IFNAME, IFLA_INFO_KIND, IFLA_LINKINFO, RTM_DELLINK, RTM_NEWLINK, pack_link
from shaping.netlink.tc_codec import NLM_F_CREATE, NLM_F_EXCL, Request

# linux/if_link.h, linux/if.h and linux/sockios.h; a name has IFNAMSIZ bytes, its zero included.
_IFLA_AF_SPEC, _IFLA_NUM_TX_QUEUES = 26, 31
_IFLA_INET6_ADDR_GEN_MODE, _ADDR_GEN_NONE = 8, b"\1"
_IFF_UP = 1
_SIOCGIFFLAGS, _SIOCGIFINDEX = 0x8913, 0x8933
_NAME_BYTES = 16
_IFREQ, _IFREQ_NUMBER = struct.Struct(f"{_NAME_BYTES}si20x"), struct.Struct(f"={_NAME_BYTES}xi20x")


def encode_ifb(device: str) -> Request:
    """Make an IFB, down, with one queue: HTB has one lock anyway."""
    body = pack_link(0) + pack_text(IFLA_IFNAME, device)
    body += pack_attribute(_IFLA_NUM_TX_QUEUES, struct.pack("=I", 1))
    body += pack_attribute(IFLA_LINKINFO, pack_text(IFLA_INFO_KIND, "ifb"))
    return Request(RTM_NEWLINK, NLM_F_CREATE | NLM_F_EXCL, body)


def encode_no_addresses(*, interface_index: int) -> Request:
    """Let IPv6 give a device no address, so that it announces none: only what is redirected shall pass it."""
    of_ipv6 = pack_attribute(socket.AF_INET6, pack_attribute(_IFLA_INET6_ADDR_GEN_MODE, _ADDR_GEN_NONE))
    body = pack_link(interface_index) + pack_attribute(_IFLA_AF_SPEC, of_ipv6)
    return Request(RTM_NEWLINK, 0, body)


def encode_up(*, interface_index: int) -> Request:
    """Set a device up."""
    return Request(RTM_NEWLINK, 0, pack_link(interface_index, flags=_IFF_UP))


def encode_delete_link(*, interface_index: int) -> Request:
    """Delete a device."""
    return Request(RTM_DELLINK, 0, pack_link(interface_index))


def interface_number(probe: socket.socket, name: str) -> int:
    """The number of any interface, by an ioctl on any socket of the namespace: if_nametoindex(3) makes one each time.

    Raises:
        OSError: there is none of this name.
    """
    text = os.fsencode(name)
    if len(text) >= _NAME_BYTES or b"\0" in text:
        raise OSError(errno.ENODEV, "no interface is called so")
    return int(_IFREQ_NUMBER.unpack(fcntl.ioctl(probe, _SIOCGIFINDEX, _IFREQ.pack(text, 0)))[0])


def running_number(probe: socket.socket, device: str) -> int | None:
    """The number of a device that is up, by two ioctls on any socket of the namespace; None when down or gone."""
    request = _IFREQ.pack(device.encode(), 0)
    try:
        (flags,) = struct.unpack_from("=H", fcntl.ioctl(probe, _SIOCGIFFLAGS, request), 16)
        (number,) = struct.unpack_from("=i", fcntl.ioctl(probe, _SIOCGIFINDEX, request), 16)
    except OSError:
        return None
    return int(number) if flags & _IFF_UP else None
