"""The values of the kernel side: what is wanted, what was found, what is done about it. No I/O and no policy.

An `InterfaceShape` says what one interface shall look like. `tree.desired_tree` turns it into a `Tree`, the kernel's
objects with their handles. `diff.diff` compares two trees and gives `Operation`s; a kernel applies them and reads back.
Rates are bits per second here; the one place that turns them into the kernel's bytes is `kernel.py`.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal, NamedTuple, TypeAlias

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

Direction: TypeAlias = Literal["egress", "ingress"]

DSCP: Mapping[str, int | None] = {"control": 40, "compute": 18, BULK_NAME: 8, "storage": 1, "other": None}
"""Codepoint of each leaf: CS5, AF21, CS1, LE (RFC 8622); `other` is left as its programs set it."""


def classid(minor: int) -> int:
    """The 32-bit class id `ffe0:minor`: what SO_PRIORITY must hold for HTB to take a packet there."""
    return MAJOR << 16 | minor


def show_classid(minor: int) -> str:
    """As tc writes it: `ffe0:210`."""
    return f"{MAJOR:x}:{minor:x}"


@dataclass(frozen=True)
class ClassShape:
    """What one class shall get. Policy made it; here it is only numbers.

    Args:
        name: one of `CLASS_NAMES`, or `BULK_NAME` for the part of compute that its bulk leaf gets.
        rate_bits_per_s: what it may always send, at least 1 000 for each of its leaves, spare ones included. The four
            rates together are at most the capacity (`InterfaceShape.open_bits_per_s` is the exception); that of
            `BULK_NAME` is part of compute's.
        ceil_bits_per_s: never more than this, borrowed or not; at least the rate.
        priority: who is offered the excess first, 0 to 7, the smaller goes first.
    """

    name: str
    rate_bits_per_s: int
    ceil_bits_per_s: int
    priority: int


@dataclass(frozen=True)
class Arrival:
    """Packets that arrive at one socket.

    Args:
        protocol: `tcp` or `udp`.
        address: where they arrive, a literal IPv4 or IPv6 address.
        port: likewise.
        remote: the address and port from which alone they come; None takes them from everywhere.
    """

    protocol: Literal["tcp", "udp"]
    address: str
    port: int
    remote: tuple[str, int] | None = None


@dataclass(frozen=True)
class Rule:
    """Traffic that belongs to a class without its socket having been passed: exactly one of the matches is set.

    Args:
        target: a key of `LEAF_MINOR`.
        port: TCP and UDP, source or destination, IPv4 and IPv6.
        protocol: narrows `port` to one of the two.
        dscp: codepoint 0..63, IPv4 and IPv6.
        address: a network, source or destination, as `ipaddress.ip_network` writes it.
        uid: sockets that this user makes from now on, in this network namespace.
        cgroup: sockets made from now on inside this cgroup v2 or below it; the path below the v2 mount, or absolute.
        arrives: on the way in, what arrives at one socket.
    """

    target: str
    port: int | None = None
    protocol: Literal["tcp", "udp"] | None = None
    dscp: int | None = None
    uid: int | None = None
    cgroup: str | None = None
    address: str | None = None
    arrives: Arrival | None = None


@dataclass(frozen=True)
class DestinationShape:
    """What a class may send to one address: a leaf of its own beside the class' default leaf.

    Args:
        address: a literal IPv4 or IPv6 address.
        target: `HELD_NAME`; no other class has such leaves.
        rate_bits_per_s: part of the class' rate, at least 1 000.
        ceil_bits_per_s: never more; at least the rate.
    """

    address: str
    target: str = HELD_NAME
    rate_bits_per_s: int = 1_000
    ceil_bits_per_s: int = 1_000


@dataclass(frozen=True)
class JobShape:
    """What one job of compute gets: the leaf of its slot.

    Args:
        slot: index into `JOB_MINOR`.
        rate_bits_per_s: part of compute's rate, at least 1 000.
        ceil_bits_per_s: never more; at least the rate.
        priority: who is offered the excess first, 0 to 7, the smaller goes first.
        weight: how what is borrowed is divided among jobs of the same priority, and compute's default leaf, which has
            1. HTB divides by quantum and not by rate. More than 0.
    """

    slot: int
    rate_bits_per_s: int
    ceil_bits_per_s: int
    priority: int
    weight: float = 1.0


@dataclass(frozen=True)
class InterfaceShape:
    """Everything wanted of one interface's egress.

    Args:
        interface: its name in the current network namespace.
        capacity_bits_per_s: rate and ceiling of the root class: what all classes together may send.
        open_bits_per_s: where class `UNHELD_NAME` is not held to the capacity, what all classes together may send, it
            included; at least the capacity. None holds all to the capacity.
        classes: the four of `CLASS_NAMES`, each once, in any order, and at most one `BULK_NAME`.
        rules: classification besides passed sockets; the first that matches wins among ports, DSCP and addresses.
        gso_max_segs: segments that TCP may hand over in one piece, at least 1; never more than the device had before
            us. None leaves, or puts back, the device's own.
        destinations: addresses that get a leaf of their own, at most as many as `DESTINATION_MINOR`. A flow that
            changes its leaf may have packets overtaken that still wait in the former: list an address early and keep it
            for as long as something waits, and change its rates.
        jobs: slots of compute that are in use; sockets are marked with their minors.
        direction: `ingress` for the tree of an IFB: only the default leaves, and queues for a receiver.
        line_bits_per_s: what the way out carries as far as anybody knows, measurements left out; journalled, and what
            ceilings are opened to when nobody decides any more (`ceilings`). None where nobody knows.
    """

    interface: str
    capacity_bits_per_s: int
    classes: tuple[ClassShape, ...]
    rules: tuple[Rule, ...] = ()
    gso_max_segs: int | None = None
    line_bits_per_s: int | None = None
    destinations: tuple[DestinationShape, ...] = ()
    jobs: tuple[JobShape, ...] = ()
    direction: Direction = "egress"
    open_bits_per_s: int | None = None


@dataclass(frozen=True)
class IngressShape:
    """Everything wanted of what arrives at one interface, shaped on an IFB behind it.

    Args:
        interface: its name in the current network namespace.
        capacity_bits_per_s: what may arrive altogether: a little less than the line carries, or the queue is elsewhere.
        classes: as of `InterfaceShape`.
        rules: how packets are told, in this order: ports (either end), codepoints and addresses. Marks of sockets,
            cgroups and users cannot be seen there: such rules do nothing. What no rule matches is `other`.
    """

    interface: str
    capacity_bits_per_s: int
    classes: tuple[ClassShape, ...]
    rules: tuple[Rule, ...] = ()


@dataclass(frozen=True)
class Capabilities:
    """What this kernel offers of traffic control.

    Qdiscs are probed once at start. `u32` is assumed until the first filter is refused: there is no way to ask without
    adding one. What sockets' rules need is told by `Classifier.apply`.
    """

    htb: bool = True
    bfifo: bool = True
    fq_codel: bool = False
    u32: bool = True


@dataclass(frozen=True)
class QdiscSpec:
    """The HTB root. Nothing of it can be changed while it lives."""

    handle_major: int = MAJOR
    default_minor: int = DEFAULT_MINOR


@dataclass(frozen=True)
class ClassSpec:
    """One HTB class: every field, because a change replaces them all.

    A class above others has priority 0 and quantum 0 here: HTB uses those of leaves only, and silently ignores a change
    of them anywhere else.
    """

    minor: int
    parent_minor: int  # 0 is the qdisc itself
    rate_bits_per_s: int
    ceil_bits_per_s: int
    priority: int
    burst_bytes: int
    cburst_bytes: int
    quantum_bytes: int


@dataclass(frozen=True)
class LeafSpec:
    """The queue at a leaf class. `limit` is bytes for bfifo and packets for fq_codel."""

    parent_minor: int
    kind: Literal["bfifo", "fq_codel"]
    limit: int
    handle_major: int


@dataclass(frozen=True)
class FilterSpec:
    """One filter: match 32-bit words of the packet (u32), at offsets from the network header.

    Args:
        preference: order; the smaller is asked first. Unique in a tree, so that it is also the filter's name.
        family: 4 or 6; None matches whatever the frame carries.
        matches: (offset bytes, mask, value), all of which must hold. An offset is from the start of the IP header;
            IPv4 ports are only matched in headers without options (`tree` adds that match) and IPv6 ones only
            directly after the fixed header.
        target_minor: the leaf, or an inner node whose own filters go on.
        parent_minor: whose filter it is: 0 is the HTB root, which asks it for packets without a priority of ours.
    """

    preference: int
    family: Literal[4, 6] | None
    matches: tuple[tuple[int, int, int], ...]
    target_minor: int
    parent_minor: int = 0


@dataclass(frozen=True)
class Tree:
    """All that is ours on one interface, wanted or found. Tuples are sorted by minor or preference."""

    qdisc: QdiscSpec
    classes: tuple[ClassSpec, ...]
    leaves: tuple[LeafSpec, ...]
    filters: tuple[FilterSpec, ...] = ()


@dataclass(frozen=True)
class AddRoot:
    """Put the HTB qdisc at the root, replacing what is there."""

    qdisc: QdiscSpec


@dataclass(frozen=True)
class AddClass:
    """Make one class; its parent is there already."""

    spec: ClassSpec


@dataclass(frozen=True)
class ChangeClass:
    """Replace every field of a class. Its queue stays."""

    spec: ClassSpec


@dataclass(frozen=True)
class AddLeaf:
    """Give a leaf class its queue, before any traffic can wait in the default one."""

    spec: LeafSpec


@dataclass(frozen=True)
class ChangeLeaf:
    """Change the limit of a leaf's queue in place."""

    spec: LeafSpec


@dataclass(frozen=True)
class AddFilter:
    """Add one filter."""

    spec: FilterSpec


@dataclass(frozen=True)
class DeleteFilter:
    """Remove one filter by its preference."""

    spec: FilterSpec


Operation: TypeAlias = AddRoot | AddClass | ChangeClass | AddLeaf | ChangeLeaf | AddFilter | DeleteFilter


def describe(operation: Operation) -> str:
    """One operation in words, for errors and logs."""
    match operation:
        case AddRoot(qdisc):
            return f"add the root {qdisc.handle_major:x}: (htb, default {qdisc.default_minor:x})"
        case AddClass(spec) | ChangeClass(spec):
            verb = "add" if isinstance(operation, AddClass) else "change"
            return (
                f"{verb} class {show_classid(spec.minor)} (rate {spec.rate_bits_per_s}, ceil {spec.ceil_bits_per_s} "
                f"bit/s, prio {spec.priority})"
            )
        case AddLeaf(leaf) | ChangeLeaf(leaf):
            verb = "add" if isinstance(operation, AddLeaf) else "change"
            return f"{verb} {leaf.kind} (limit {leaf.limit}) at {show_classid(leaf.parent_minor)}"
        case AddFilter(rule):
            family = f"IPv{rule.family}" if rule.family else "everything"
            return f"add u32 filter {rule.preference} ({family} to {show_classid(rule.target_minor)})"
        case DeleteFilter(rule):
            return f"delete u32 filter {rule.preference}"


class ClassCounters(NamedTuple):
    """What the kernel counted for one class since it was made, and what waits in it now.

    A tuple: 26 are made of each interface in each tick, and a frozen dataclass takes five times as long.
    """

    sent_bytes: int = 0
    sent_packets: int = 0
    dropped_packets: int = 0
    overlimits: int = 0
    backlog_bytes: int = 0
    backlog_packets: int = 0
    lends: int = 0
    borrows: int = 0
    tokens: int = 0
    ctokens: int = 0


@dataclass(frozen=True)
class InterfaceCounters:
    """One reading of an interface.

    Args:
        classes: the four of `CLASS_NAMES`, each with all its leaves, and `BULK_NAME` by itself (it is counted in
            compute, too). Bytes are those of the link layer: Ethernet header included, frame check and gap not.
        destinations: each address that has a leaf now, as `ipaddress` writes it; counted in storage, too. What a
            former address of the leaf sent is in it: take differences. One that is in the shape and not here is not
            held back: this kernel has no u32.
        jobs: each slot of compute; counted in compute, too.
        direct_packets: packets that passed HTB unshaped. Anything but 0 is a fault. None: not asked for.
    """

    interface: str
    classes: Mapping[str, ClassCounters]
    direct_packets: int | None
    destinations: Mapping[str, ClassCounters] = field(default_factory=dict)
    jobs: Mapping[int, ClassCounters] = field(default_factory=dict)


@dataclass(frozen=True)
class DeviceSegments:
    """How many segments a device takes in one piece.

    Args:
        limit: what holds now (`gso_max_segs` of ip-link).
        default: what its driver started with (`tso_max_segs`); the limit itself where the kernel, before 6.0, does not
            say. Another limit than this was set by somebody.
    """

    limit: int
    default: int


@dataclass(frozen=True)
class SegmentState:
    """What came of an interface's `gso_max_segs`: the limit that we left there, and why it is not the wanted one.

    `limit` is None when the kernel would not even say. `note` is a sentence, None when all is as wanted.
    """

    limit: int | None
    note: str | None = None


@dataclass(frozen=True)
class PriorQdisc:
    """What was at the root before us.

    Args:
        kind: e.g. `noqueue`, `fq_codel`, `tbf`.
        handle_major: 0 means that the kernel chose it, and that deleting ours brings it back.
        options: `raw`, the kernel's own bytes in hexadecimal, which can be given back as they are; and `readable`.
        nested: number of classes, child qdiscs and filters below it, which we cannot give back.
    """

    kind: str
    handle_major: int
    options: Mapping[str, object] = field(default_factory=dict)
    nested: int = 0


@dataclass(frozen=True)
class Redirection:
    """What hangs at the ingress of an interface.

    Args:
        kind: `ingress` or `clsact`.
        to_indexes: numbers of the interfaces to which filters of ours redirect; 0 for one that is gone.
        preferences: those filters.
        others: how many filters are there that are not ours.
    """

    kind: str
    to_indexes: tuple[int, ...] = ()
    preferences: tuple[int, ...] = ()
    others: int = 0


@dataclass(frozen=True)
class IngressAttachment:
    """How an interface's ingress came to be ours.

    Args:
        device: the IFB.
        adopted: the IFB and a tree of ours were there, and its queues were kept.
        operations: what was done to the tree now.
    """

    interface: str
    device: str
    adopted: bool
    operations: tuple[Operation, ...]


@dataclass(frozen=True)
class Attachment:
    """How an interface came to be ours.

    Args:
        adopted: a tree of ours was there (a crash before, or a restart), and its queues were kept.
        prior: what `detach` will put back.
        operations: what was done now.
        notes: sentences for the log: what differs, what the kernel lacks, what cannot be restored later.
    """

    interface: str
    adopted: bool
    prior: PriorQdisc
    operations: tuple[Operation, ...]
    notes: tuple[str, ...] = ()


def device_of(interface_number: int) -> str:
    """The IFB of an interface."""
    return f"{_IFB_PREFIX}{interface_number}"


def number_behind(device: str) -> int:
    """Back from an IFB of ours to the number of its interface."""
    return int(device.removeprefix(_IFB_PREFIX))


def is_ours(name: str) -> bool:
    """Whether an interface's name is that of an IFB of ours."""
    return _IFB_NAME.fullmatch(name) is not None
