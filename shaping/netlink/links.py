"""Links: a device's segments, IFBs, and the redirection of what arrives at an interface to one.

    interface ── ingress qdisc ffff: ── u32, everything of IPv4 and of IPv6 ── mirred redirect ──▶ IFB ──▶ the host

Ours is told by its filters: u32, two preferences of our own. Other filters there are somebody's: they are asked before
ours. `failsafe.stop_redirecting` takes ours away.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
import socket
import struct
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from pyroute2.netlink.rtnl.ifinfmsg import ifinfmsg

from hive_qos.errors import KernelRejectedError
from hive_qos.netlink import NLM_F_CREATE, NLM_F_EXCL, NetlinkSocket
from shaping.model.names import REDIRECTION_PROTOCOL
from shaping.model.observations import Redirection
from shaping.netlink import messages, u32
from shaping.netlink.fast_path import (
    RTM_DELQDISC,
    RTM_GETQDISC,
    TC_H_INGRESS,
    Object,
    encode_delete,
    encode_queue,
    read_objects,
)

_INGRESS = 0xFFFF0000  # the handle of every ingress qdisc
_EVERYTHING = ((0, 0, 0),)  # a word at offset 0 whose mask compares nothing

# linux/rtnetlink.h, linux/if_link.h, linux/if.h and linux/sockios.h; a name has IFNAMSIZ bytes, its zero included.
_RTM_NEWLINK, _RTM_DELLINK, _RTM_GETLINK = 16, 17, 18
_ADDR_GEN_NONE = 1  # IN6_ADDR_GEN_MODE_NONE
_IFF_UP, _IFF_LOWER_UP = 1, 1 << 16
_SIOCGIFFLAGS, _SIOCGIFINDEX = 0x8913, 0x8933
_NAME_BYTES = 16
_IFREQ, _IFREQ_NUMBER = struct.Struct(f"{_NAME_BYTES}si20x"), struct.Struct(f"={_NAME_BYTES}xi20x")


@dataclass(frozen=True)
class Link:
    """One link.

    Fields: `number` of its interface; `carrier` whether it has one, never while it is set down; `carrier_changes` since
    the interface was made; `kind` the name of its driver ("veth", "ifb"), "" where it is a plain device; `group` as in
    `ip link set group`; `gso_max_segs` in force, and `tso_max_segs` what the device can take, None where the kernel
    does not say (before 5.19).
    """

    number: int
    carrier: bool
    carrier_changes: int
    kind: str
    group: int
    gso_max_segs: int
    tso_max_segs: int | None


def read_link(kernel: NetlinkSocket, interface: str) -> Link | None:
    """Ask for one link; None where there is none of that name.

    Raises:
        KernelRejectedError: no answer in time, or another refusal.
    """
    wanted = messages.request(ifinfmsg, _RTM_GETLINK, ("IFLA_IFNAME", os.fsencode(interface)))
    try:
        return kernel.ask(f"look at the link {interface}", wanted, decode_link)
    except KernelRejectedError as error:
        if error.errno_value != errno.ENODEV:
            raise
    return None


def decode_link(message_type: int, body: bytes) -> Link:
    """Take the answer apart."""
    found = messages.decode(ifinfmsg, message_type, body)
    return Link(
        number=found["index"],
        carrier=bool(found["flags"] & _IFF_LOWER_UP),
        carrier_changes=found.get_attr("IFLA_CARRIER_CHANGES"),
        kind=found.get_nested("IFLA_LINKINFO", "IFLA_INFO_KIND") or "",
        group=found.get_attr("IFLA_GROUP"),
        gso_max_segs=found.get_attr("IFLA_GSO_MAX_SEGS"),
        tso_max_segs=found.get_attr("IFLA_TSO_MAX_SEGS"),
    )


def set_segments(tc: NetlinkSocket, interface: str, index: int, limit: int, *, group: int) -> None:
    """Set a device's `gso_max_segs`, so that living connections follow.

    A socket keeps the limit that it found when its route was looked up. Naming the device's group as it is changes
    nothing, but makes the kernel announce a change of the device (NETDEV_CHANGE), upon which it throws cached routes
    away and every socket looks again. A new limit alone is not announced.
    """
    attributes = {"IFLA_GSO_MAX_SEGS": limit, "IFLA_GROUP": group}
    _change(tc, f"set gso_max_segs {limit} of {interface}", attributes, index=index)


def make_ifb(tc: NetlinkSocket, device: str) -> None:
    """Make an IFB, down, with one queue: HTB has one lock anyway."""
    kind = {"attrs": [("IFLA_INFO_KIND", "ifb")]}
    attributes = {"IFLA_IFNAME": device, "IFLA_NUM_TX_QUEUES": 1, "IFLA_LINKINFO": kind}
    _change(tc, f"make the IFB {device}", attributes, how=NLM_F_CREATE | NLM_F_EXCL)


def start_ifb(tc: NetlinkSocket, device: str, index: int) -> None:
    """Set an IFB up, with no IPv6 address that it would announce: only what is redirected shall pass it."""
    no_addresses = {"attrs": [("AF_INET6", {"attrs": [("IFLA_INET6_ADDR_GEN_MODE", _ADDR_GEN_NONE)]})]}
    with contextlib.suppress(KernelRejectedError):  # a kernel without IPv6 gives it no addresses anyway
        _change(tc, f"keep IPv6 addresses off {device}", {"IFLA_AF_SPEC": no_addresses}, index=index)
    _change(tc, f"set {device} up", index=index, flags=_IFF_UP, change=_IFF_UP)


def delete_link(tc: NetlinkSocket, device: str, index: int) -> None:
    """Delete a link with all that hangs at it."""
    tc.execute([(f"delete {device}", messages.request(ifinfmsg, _RTM_DELLINK, index=index))])


def _change(
    tc: NetlinkSocket, what: str, attributes: Mapping[str, Any] | None = None, *, how: int = 0, **fields: int
) -> None:
    tc.execute([(what, messages.request(ifinfmsg, _RTM_NEWLINK, *(attributes or {}).items(), how=how, **fields))])


def redirect(tc: NetlinkSocket, index: int, to_index: int) -> None:
    """Lead IPv4 and IPv6 that arrive at one interface to another, where nothing hangs at its ingress yet, or ours does.

    Raises:
        KernelRejectedError: no ingress qdisc, u32 or mirred in this kernel; or somebody was quicker.
    """
    hook = redirection(tc, index)
    if hook is None:
        flags = NLM_F_CREATE | NLM_F_EXCL
        add = encode_queue("ingress", b"", index=index, handle=_INGRESS, parent=TC_H_INGRESS, flags=flags)
        tc.execute([("add an ingress qdisc", add)])
    for preference in REDIRECTION_PROTOCOL.keys() - set(hook.preferences if hook is not None else ()):
        wanted = u32.Filter(
            parent=_INGRESS,
            preference=preference,
            protocol=REDIRECTION_PROTOCOL[preference],
            matches=_EVERYTHING,
            to_index=to_index,
        )
        tc.execute([(f"redirect what arrives ({preference:x})", u32.encode_add(wanted, index=index))])


def redirection(tc: NetlinkSocket, index: int) -> Redirection | None:
    """What hangs at the ingress of an interface, whoever made it."""
    queues = read_objects(tc, f"list queues of interface {index}", RTM_GETQDISC, index=index)
    kind = next((one.kind for one in queues if (one.interface_index, one.parent) == (index, TC_H_INGRESS)), None)
    if kind is None:
        return None
    targets, preferences = {}, set()
    for found in u32.read_filters(tc, f"list ingress filters of interface {index}", index=index, parent=_INGRESS):
        preferences.add(found.preference)  # a filter's head is listed beside it
        if found.preference in REDIRECTION_PROTOCOL and found.to_index is not None:
            targets[found.preference] = found.to_index
    return Redirection(
        kind=kind,
        to_indexes=tuple(sorted({*targets.values()})),
        preferences=tuple(sorted(targets)),
        others=len(preferences - targets.keys()),
    )


def remove_empty_hook(tc: NetlinkSocket, index: int) -> None:
    """Delete an ingress qdisc that nobody's filters hang at: what a crash between two messages of ours leaves."""
    hook = redirection(tc, index)
    if hook is not None and hook.kind == "ingress" and not hook.preferences and not hook.others:
        hook_qdisc = Object(index, _INGRESS, TC_H_INGRESS, 0, "ingress", b"")
        tc.execute([("delete the ingress qdisc", encode_delete(RTM_DELQDISC, hook_qdisc))])


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
    """The number of a device that is up, by two ioctls (2 µs), for every tick; None when down or gone."""
    request = _IFREQ.pack(device.encode(), 0)
    try:
        (flags,) = struct.unpack_from("=H", fcntl.ioctl(probe, _SIOCGIFFLAGS, request), 16)
        (number,) = struct.unpack_from("=i", fcntl.ioctl(probe, _SIOCGIFINDEX, request), 16)
    except OSError:
        return None
    return int(number) if flags & _IFF_UP else None
