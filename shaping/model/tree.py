"""The kernel's objects, wanted or found, and what is done to them. Bits per second, bytes."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, TypeAlias

from shaping.model.names import DEFAULT_MINOR, MAJOR, show_classid


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
