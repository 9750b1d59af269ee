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
from dataclasses import dataclass

from hive_qos.errors import KernelRejectedError
from hive_qos.netlink import IFINFOMSG, RTM_GETLINK, NetlinkSocket, Request, attribute_map
from shaping.model.names import REDIRECTION_PROTOCOL
from shaping.model.observations import Redirection
from shaping.netlink.fast_path import RTM_GETQDISC, TC_H_INGRESS, read_objects
from shaping.netlink.route import Route

_INGRESS = 0xFFFF0000  # the handle of every ingress qdisc
_EVERYTHING = ((0, 0, 0),)  # a word at offset 0 whose mask compares nothing

# linux/rtnetlink.h, linux/if_link.h, linux/if.h and linux/sockios.h; a name has IFNAMSIZ bytes, its zero included.
_IFLA_LINKINFO, _IFLA_INFO_KIND = 18, 1
_IFLA_GROUP, _IFLA_GSO_MAX_SEGS, _IFLA_TSO_MAX_SEGS = 27, 40, 60
_ADDR_GEN_NONE = 1  # IN6_ADDR_GEN_MODE_NONE
_IFF_UP = 1
_SIOCGIFFLAGS, _SIOCGIFINDEX = 0x8913, 0x8933
_NAME_BYTES = 16
_IFREQ, _IFREQ_NUMBER = struct.Struct(f"{_NAME_BYTES}si20x"), struct.Struct(f"={_NAME_BYTES}xi20x")


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


def read_link(tc: NetlinkSocket, interface: str, index: int) -> Link:
    """Ask for one link, without pyroute2: asked so, 0.9.7 keeps 2 KB of each answer for ever."""
    request = Request(RTM_GETLINK, 0, IFINFOMSG.pack(0, 0, index, 0, 0))
    return tc.ask(f"look at the link {interface}", request, decode_link)


def decode_link(_: int, body: bytes) -> Link:
    """Take the answer apart.

    Raises:
        KeyError: no group or no gso_max_segs, which every kernel since 4.18 gives.
    """
    attributes = attribute_map(body, IFINFOMSG.size)
    numbers = {kind: struct.unpack_from("=I", value)[0] for kind, value in attributes.items() if len(value) == 4}
    kind = attribute_map(attributes.get(_IFLA_LINKINFO, b"")).get(_IFLA_INFO_KIND, b"")
    return Link(
        kind=kind.rstrip(b"\0").decode("ascii", "replace"),
        group=numbers[_IFLA_GROUP],
        gso_max_segs=numbers[_IFLA_GSO_MAX_SEGS],
        tso_max_segs=numbers.get(_IFLA_TSO_MAX_SEGS),
    )


def set_segments(route: Route, interface: str, index: int, limit: int, *, group: int) -> None:
    """Set a device's `gso_max_segs`, so that living connections follow.

    A socket keeps the limit that it found when its route was looked up. Naming the device's group as it is changes
    nothing, but makes the kernel announce a change of the device (NETDEV_CHANGE), upon which it throws cached routes
    away and every socket looks again. A new limit alone is not announced.
    """
    route.link(f"set gso_max_segs {limit} of {interface}", "set", index=index, gso_max_segs=limit, group=group)


def make_ifb(route: Route, device: str) -> None:
    """Make an IFB, down, with one queue: HTB has one lock anyway."""
    route.link(f"make the IFB {device}", "add", ifname=device, kind="ifb", num_tx_queues=1)


def start_ifb(route: Route, device: str, index: int) -> None:
    """Set an IFB up, with no IPv6 address that it would announce: only what is redirected shall pass it."""
    no_addresses = {"attrs": [("AF_INET6", {"attrs": [("IFLA_INET6_ADDR_GEN_MODE", _ADDR_GEN_NONE)]})]}
    with contextlib.suppress(KernelRejectedError):  # a kernel without IPv6 gives it no addresses anyway
        route.link(f"keep IPv6 addresses off {device}", "set", index=index, IFLA_AF_SPEC=no_addresses)
    route.link(f"set {device} up", "set", index=index, state="up")


def redirect(route: Route, tc: NetlinkSocket, index: int, to_index: int) -> None:
    """Lead IPv4 and IPv6 that arrive at one interface to another, where nothing hangs at its ingress yet, or ours does.

    Raises:
        KernelRejectedError: no ingress qdisc, u32 or mirred in this kernel; or somebody was quicker.
    """
    hook = redirection(route, tc, index)
    if hook is None:
        route.tc("add an ingress qdisc", "add", "ingress", index)
    action = {"kind": "mirred", "direction": "egress", "action": "redirect", "ifindex": to_index}
    for preference in REDIRECTION_PROTOCOL.keys() - set(hook.preferences if hook is not None else ()):
        what = f"redirect what arrives ({preference:x})"
        wanted = {"parent": _INGRESS, "prio": preference, "protocol": REDIRECTION_PROTOCOL[preference]}
        route.tc(what, "add-filter", "u32", index, **wanted, matches=_EVERYTHING, action=action)


def redirection(route: Route, tc: NetlinkSocket, index: int) -> Redirection | None:
    """What hangs at the ingress of an interface, whoever made it."""
    queues = read_objects(tc, f"list queues of interface {index}", RTM_GETQDISC, index=index)
    kind = next((one.kind for one in queues if (one.interface_index, one.parent) == (index, TC_H_INGRESS)), None)
    if kind is None:
        return None
    targets, preferences = {}, set()
    for found in route.filters(f"list ingress filters of interface {index}", index, _INGRESS):
        preference = found["info"] >> 16
        preferences.add(preference)  # a filter's head is listed beside it
        mirred = found.get_nested("TCA_OPTIONS", "TCA_U32_ACT", "TCA_ACT_PRIO_1", "TCA_ACT_OPTIONS", "TCA_MIRRED_PARMS")
        if preference in REDIRECTION_PROTOCOL and mirred:
            targets[preference] = mirred["ifindex"]
    return Redirection(
        kind=kind,
        to_indexes=tuple(sorted({*targets.values()})),
        preferences=tuple(sorted(targets)),
        others=len(preferences - targets.keys()),
    )


def remove_empty_hook(route: Route, tc: NetlinkSocket, index: int) -> None:
    """Delete an ingress qdisc that nobody's filters hang at: what a crash between two messages of ours leaves."""
    hook = redirection(route, tc, index)
    if hook is not None and hook.kind == "ingress" and not hook.preferences and not hook.others:
        route.tc("delete the ingress qdisc", "del", "ingress", index)


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
