"""From a shape to the kernel's objects: which classes, with what rates, bursts, quanta, queues and filters. Pure.

    ffe0:  HTB, default 410
    └─ ffe0:1  rate = ceil = capacity
       ├─ ffe0:10 control ── :110                priority 0 is offered the excess first
       ├─ ffe0:20 compute ── :210, :220 (bulk), :230 to :2a0 (jobs)
       ├─ ffe0:30 storage ── :310, :320 to :390 (destinations)
       └─ ffe0:40 other   ── :410 (default)

Rules that the tree keeps
- The rates of the leaves below a node add up to at most its rate: HTB sends from a leaf that is inside its own rate
  whatever its parent's ceiling is (two leaves of 4 Mbit/s under a parent of 4 sent 8.03). One exception makes use of
  that: where the capacity is some destination's alone, class other has a rate beyond the root's. What it sends is
  taken off what the others may borrow there (measured: 4.2 of the root's 10 Mbit/s for a class of rate 4 beside it).
- Every rate is a whole number of bytes per second and every burst a whole number of the kernel's 64 ns ticks, rounded
  here and not in the kernel, so that what is read back equals what was wanted.
- The structure does not depend on the rates, so that only `change-class` is ever needed after the first build.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from hive_qos.units import bytes_per_s_of
from shaping.model.names import (
    BULK_NAME,
    CLASS_NAMES,
    CLASS_OF_LEAF,
    INNER_MINOR,
    LEAF_MINOR,
    MARK_MINOR,
    ROOT_MINOR,
    UNHELD_NAME,
)
from shaping.model.observations import Capabilities
from shaping.model.shapes import ClassShape, InterfaceShape
from shaping.model.tree import ClassSpec, FilterSpec, LeafSpec, QdiscSpec, Tree
from shaping.netlink.psched_ticks import round_burst_bytes
from shaping.plan.destinations import assigned, canonical, destination_filters
from shaping.plan.leaves import check_parts, leaves_by_class, leaves_of, rate_bits_per_s_min
from shaping.plan.packet_filters import packet_filters

BURST_BYTES_MIN = 16 * 1024
BURST_S = 0.001
"""How late the kernel's timer may be before a class loses rate: 1 ms at any rate, and never less than 16 KiB, which is
3.3 ms at 40 Mbit/s. The burst is also what a class may put on the link at once after a pause, so it is delay for
everybody behind it: 64 KiB would be 13 ms at 40 Mbit/s. One TCP stream on two cores with nine runnable processes got
0.956 of 40, 200 and 1 000 Mbit/s with this (headers allow 0.956), no more with 64 KiB, and 0.93 of 1 000 Mbit/s with
1 600 bytes (docs/log/kernel.md)."""

QUEUE_S: Mapping[str, float] = {"control": 0.02, "compute": 0.05, BULK_NAME: 0.05, "storage": 0.05, "other": 0.025}
"""What may wait in a leaf, as time at the interface's capacity. Not at the class' ceiling: a hold lowers the ceiling
for a fraction of a second, and a limit that shrank with it would drop what only had to wait."""

INGRESS_QUEUE_S: Mapping[str, float] = {**QUEUE_S, "storage": 0.03}
"""The same where packets have come over the line already. Nobody blocks there: what does not fit is lost, and that is
the only word that the sender hears; a longer queue of storage would only tell him later."""

QUEUE_BYTES_MIN: Mapping[str, int] = {
    "control": 96 * 1024,
    "compute": 256 * 1024,
    BULK_NAME: 256 * 1024,
    "storage": 128 * 1024,
    "other": 96 * 1024,
}
"""No queue is smaller than one segmentation-offload packet of 64 KiB and a few more, or bfifo would drop each of them;
compute's fit one UDP socket's default send buffer (212 992 bytes), so that a local sender blocks rather than loses."""

QUEUE_BYTES_STEP = 32 * 1024
"""Limits are rounded up to whole steps, so that a capacity estimate that moves a little does not touch the queues."""

QUEUE_BYTES_MAX = 8 * 2**20
SPARE_QUEUE_BYTES_MAX = 2 * 2**20
"""Kernel memory: at most this for each of five leaves, and for each of the sixteen of jobs and destinations: 72 MiB of
packets, if all were full."""

FQ_CODEL_PACKETS = 10_240
"""Its own default. It bounds delay by time, not by this; and lowering it would drop packets, so it is never changed."""


def desired_tree(shape: InterfaceShape, capabilities: Capabilities, before: Tree | None = None) -> Tree:
    """Plan one interface.

    Args:
        shape: rates that fit: the four classes' rates add up to at most the capacity, or, with `open_bits_per_s`, to
            that, and without the unheld class' to the capacity; those of jobs and destinations to less than their
            class'.
        capabilities: decides the kind of the leaves' queues. Without u32 there are no filters, and nothing is told by
            its destination: the leaves of destinations are spare ones then.
        before: what is there; an address that has a leaf in it keeps that leaf.

    Raises:
        ValueError: a class is missing, doubled or unknown; rates do not fit; a rule has no or two matches; an address
            or a slot cannot be. The shape's author has to correct it; nothing here rounds a promise away.
    """
    by_name = _checked_classes(shape)
    check_parts(shape)
    addresses = [canonical(destination.address) for destination in shape.destinations]
    leaf_of_address = assigned(addresses, before) if capabilities.u32 else {}
    classes = [_class(ROOT_MINOR, 0, shape.capacity_bits_per_s, shape.capacity_bits_per_s)]
    for name in CLASS_NAMES:
        wanted = by_name[name]
        ceil = min(wanted.ceil_bits_per_s, _most(shape, name))
        inner = INNER_MINOR[name]
        classes.append(_class(inner, ROOT_MINOR, wanted.rate_bits_per_s, ceil))
        capped = replace(wanted, ceil_bits_per_s=ceil)
        for leaf in leaves_of(capped, bulk=by_name.get(BULK_NAME), shape=shape, leaf_of_address=leaf_of_address):
            spec = _class(leaf.minor, inner, leaf.rate_bits_per_s, leaf.ceil_bits_per_s)
            classes.append(replace(spec, priority=leaf.priority, quantum_bytes=leaf.quantum_bytes))
    leaves = [_leaf(minor, shape, capabilities) for minor in leaves_by_class(shape.direction)]
    filters = _all_filters(shape, leaf_of_address) if capabilities.u32 else ()
    return Tree(
        qdisc=QdiscSpec(),
        classes=tuple(sorted(classes, key=lambda spec: spec.minor)),
        leaves=tuple(sorted(leaves, key=lambda spec: spec.parent_minor)),
        filters=filters,
    )


def _checked_classes(shape: InterfaceShape) -> dict[str, ClassShape]:
    by_name = {wanted.name: wanted for wanted in shape.classes}
    names = set(by_name)
    if len(by_name) != len(shape.classes) or not set(CLASS_NAMES) <= names <= {*CLASS_NAMES, BULK_NAME}:
        raise ValueError(
            f"{shape.interface}: classes must be {', '.join(CLASS_NAMES)}, each once (and {BULK_NAME} at most once), "
            f"not {', '.join(wanted.name for wanted in shape.classes)}"
        )
    for wanted in shape.classes:
        least = rate_bits_per_s_min(wanted.name, shape.direction)
        if wanted.rate_bits_per_s < least:
            raise ValueError(
                f"{shape.interface}: class {wanted.name} has {wanted.rate_bits_per_s} bit/s, less than the {least} "
                "that the kernel can keep"
            )
        if wanted.ceil_bits_per_s < wanted.rate_bits_per_s:
            raise ValueError(f"{shape.interface}: class {wanted.name} has a ceiling below its rate")
        if not 0 <= wanted.priority <= 7:
            raise ValueError(f"{shape.interface}: class {wanted.name} has priority {wanted.priority}, not 0..7")
    for name in (UNHELD_NAME, ""):
        most = _most(shape, name)
        together = [one for one in CLASS_NAMES if _most(shape, one) <= most]
        total = sum(by_name[one].rate_bits_per_s for one in together)
        if total > most:
            raise ValueError(
                f"{shape.interface}: the rates of {', '.join(together)} add up to {total} bit/s, more than the {most} "
                "that they have together"
            )
    return by_name


def _most(shape: InterfaceShape, name: str) -> int:
    """What a class may send together with those that have no more."""
    if name == UNHELD_NAME and shape.open_bits_per_s is not None:
        return max(shape.open_bits_per_s, shape.capacity_bits_per_s)
    return shape.capacity_bits_per_s


def _class(minor: int, parent_minor: int, rate_bits_per_s: int, ceil_bits_per_s: int) -> ClassSpec:
    """A class above others: turns and priorities are the leaves' (model.ClassSpec)."""
    rate = bytes_per_s_of(rate_bits_per_s)
    ceil = bytes_per_s_of(ceil_bits_per_s)
    return ClassSpec(
        minor=minor,
        parent_minor=parent_minor,
        rate_bits_per_s=rate * 8,
        ceil_bits_per_s=ceil * 8,
        priority=0,
        burst_bytes=burst_bytes(rate),
        cburst_bytes=burst_bytes(ceil),
        quantum_bytes=0,
    )


def burst_bytes(rate_bytes_per_s: int) -> int:
    """What a class of this rate may send at once: as `BURST_S` says, in whole ticks of the kernel."""
    wanted = max(BURST_BYTES_MIN, int(rate_bytes_per_s * BURST_S))
    return round_burst_bytes(wanted, rate_bytes_per_s=rate_bytes_per_s)


def _leaf(minor: int, shape: InterfaceShape, capabilities: Capabilities) -> LeafSpec:
    default = {own: name for name, own in LEAF_MINOR.items()}
    name = default.get(minor, CLASS_OF_LEAF[minor])
    handle_major = 0xF000 | minor  # 28,944 above the first that the kernel gives out by itself, 8000:
    if capabilities.fq_codel:
        return LeafSpec(parent_minor=minor, kind="fq_codel", limit=FQ_CODEL_PACKETS, handle_major=handle_major)
    queue_s = QUEUE_S if shape.direction == "egress" else INGRESS_QUEUE_S
    wanted = int(bytes_per_s_of(shape.capacity_bits_per_s) * queue_s[name])
    wanted = -(-wanted // QUEUE_BYTES_STEP) * QUEUE_BYTES_STEP
    most = QUEUE_BYTES_MAX if minor in default else SPARE_QUEUE_BYTES_MAX
    limit = min(max(wanted, QUEUE_BYTES_MIN[name]), most)
    return LeafSpec(parent_minor=minor, kind="bfifo", limit=limit, handle_major=handle_major)


def _all_filters(shape: InterfaceShape, leaf_of_address: Mapping[str, int]) -> tuple[FilterSpec, ...]:
    if shape.direction == "ingress":
        return packet_filters(shape.rules, LEAF_MINOR)
    return (*packet_filters(shape.rules, MARK_MINOR), *destination_filters(leaf_of_address))
