"""What is ours in the kernel, by name and number: handles, minors, marks, codepoints, IFBs."""

from __future__ import annotations

import re
from collections.abc import Mapping

_IFB_PREFIX = "hqifb"
_IFB_NAME = re.compile(rf"{_IFB_PREFIX}\d+")

MAJOR = 0xFFE0
"""Handle major of everything that is ours. The kernel gives out 8000: and upwards, people write small ones."""

ROOT_MINOR = 0x1
DEFAULT_MINOR = 0x410
"""Unclassified traffic: the default leaf of `other`."""

CLASS_NAMES = ("control", "compute", "storage", "other")
"""The four classes of design.md, in the order of their inner nodes 10, 20, 30, 40 (hexadecimal)."""

BULK_NAME = "compute-bulk"
"""Bulk state of compute (checkpoints, a joiner's state): a leaf of its own, 220, inside compute's share."""

INNER_MINOR: Mapping[str, int] = {"control": 0x10, "compute": 0x20, "storage": 0x30, "other": 0x40}
LEAF_MINOR: Mapping[str, int] = {"control": 0x110, "compute": 0x210, BULK_NAME: 0x220, "storage": 0x310, "other": 0x410}
"""The default leaf of each class. (Marks of sockets: `MARK_MINOR`.)

The last digit is 0, because a mark outlives the tree: sockets keep it after a stop, and their packets also leave by
interfaces that nobody shapes. There pfifo_fast and prio take the lowest four bits as TC_PRIO_*, and 1 (filler) or 2
(bulk) would be the lowest strict band; 0 (best effort) is where an unmarked packet goes."""

HELD_NAME = "storage"
"""The only class whose packets find a leaf by their destination."""

UNHELD_NAME = "other"
"""The class that may have more than the capacity (`InterfaceShape.open_bits_per_s`): what nobody has classified."""

DESTINATION_MINOR = tuple(range(0x320, 0x3A0, 0x10))
"""Spare leaves of storage, one for each address that gets less than the rest of the class."""

JOB_MINOR = tuple(range(0x230, 0x2B0, 0x10))
"""Spare leaves of compute by slot: for `mark_socket`, like `MARK_MINOR`."""

MARK_MINOR: Mapping[str, int] = {**LEAF_MINOR, HELD_NAME: INNER_MINOR[HELD_NAME]}
"""Where a flow of a class goes: the minor for `mark_socket`, and the target of rules (`Shaper.mark_minor`).

A leaf takes a packet at once. Storage's mark names its inner node: HTB goes on with the filters of that node, which
know the destinations that have a leaf of their own, and send all else to the default leaf."""

CLASS_OF_LEAF: Mapping[int, str] = {
    **{minor: "compute" if name == BULK_NAME else name for name, minor in LEAF_MINOR.items()},
    **dict.fromkeys(DESTINATION_MINOR, HELD_NAME),
    **dict.fromkeys(JOB_MINOR, "compute"),
}
"""Back from a leaf's minor to the class of `CLASS_NAMES` in which it is counted."""

DEFAULT_LEAVES: Mapping[int, str] = {minor: CLASS_OF_LEAF[minor] for minor in LEAF_MINOR.values()}
"""The leaves of a tree that has no spare ones: that of an IFB."""

CLASS_OF_MARK: Mapping[int, str] = {**CLASS_OF_LEAF, INNER_MINOR[HELD_NAME]: HELD_NAME}
"""Back from a socket's mark, of this version or a former one, to its class."""

REDIRECTION_PROTOCOL: Mapping[int, int] = {0xFFE0: 0x0800, 0xFFE1: 0x86DD}
"""Preferences of the filters that redirect what arrives, and the protocol of each: IPv4 and IPv6 (linux/if_ether.h).

ARP and the rest arrive as ever: they need no shaping, and without ARP nothing else would arrive."""

DSCP: Mapping[str, int | None] = {"control": 40, "compute": 18, BULK_NAME: 8, "storage": 1, "other": None}
"""Codepoint of each leaf: CS5, AF21, CS1, LE (RFC 8622); `other` is left as its programs set it."""


def classid(minor: int) -> int:
    """The 32-bit class id `ffe0:minor`: what SO_PRIORITY must hold for HTB to take a packet there."""
    return MAJOR << 16 | minor


def show_classid(minor: int) -> str:
    """As tc writes it: `ffe0:210`."""
    return f"{MAJOR:x}:{minor:x}"


def device_of(interface_number: int) -> str:
    """The IFB of an interface."""
    return f"{_IFB_PREFIX}{interface_number}"


def number_behind(device: str) -> int:
    """Back from an IFB of ours to the number of its interface."""
    return int(device.removeprefix(_IFB_PREFIX))


def is_ours(name: str) -> bool:
    """Whether an interface's name is that of an IFB of ours."""
    return _IFB_NAME.fullmatch(name) is not None
