"""What was found: what a kernel offers, counters, what was there before us, and how an interface came to be ours."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import NamedTuple

from shaping.model.tree import Operation


@dataclass(frozen=True)
class Capabilities:
    """What this kernel offers of traffic control.

    Qdiscs are probed once at start. `u32` is assumed until the first filter is refused: there is no way to ask without
    adding one. What sockets' rules need is told by `Classifier.apply`.
    """

    htb: bool = True
    fq_codel: bool = False
    u32: bool = True


class ClassCounters(NamedTuple):
    """What the kernel counted for one class since it was made, and what waits in it now.

    A tuple: 26 are made of each interface in each tick, and a frozen dataclass takes five times as long.
    """

    sent_bytes: int = 0
    sent_packets: int = 0
    dropped_packets: int = 0
    backlog_bytes: int = 0
    backlog_packets: int = 0


class TreeCounters(NamedTuple):
    """What a tree of ours has counted: of its classes by minor, and the packets that passed HTB unshaped. Those are 0,
    but for the moment in which it was built."""

    by_minor: Mapping[int, ClassCounters]
    direct_packets: int


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
        direct_packets: as of `TreeCounters`.
    """

    interface: str
    classes: Mapping[str, ClassCounters]
    direct_packets: int
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


SIZE_TABLE = "size_table"

NOT_TAKEN_BACK = frozenset({"choke", "ets", "mqprio", "red"})
"""Kinds of which the kernel refuses the very options that it reports."""


@dataclass(frozen=True)
class PriorQdisc:
    """What was at the root before us.

    Args:
        kind: e.g. `noqueue`, `fq_codel`, `tbf`.
        handle_major: 0 means that the kernel chose it, and that deleting ours brings it back.
        options: `raw`, the kernel's own bytes in hexadecimal, which can be given back as they are; and `SIZE_TABLE`,
            true where it has one (tc-stab(8)), which we cannot give back: the kernel does not tell all of it.
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
