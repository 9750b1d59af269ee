"""How a class' rate is divided among its leaves: the default one, bulk, those of jobs and of destinations. Pure.

A spare leaf that nobody uses keeps the least rate and the class' ceiling, so that what still waits in it leaves soon.
The default leaf has all the rest: the leaves' rates add up to the class' own.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

from shaping.model.names import (
    BULK_NAME,
    CLASS_OF_LEAF,
    DEFAULT_LEAVES,
    DESTINATION_MINOR,
    HELD_NAME,
    JOB_MINOR,
    LEAF_MINOR,
)
from shaping.model.shapes import ClassShape, DestinationShape, Direction, InterfaceShape, JobShape
from shaping.plan.destinations import canonical

RATE_BITS_PER_S_MIN = 1_000
"""Of a leaf: a frame of 1 514 bytes every 12 s, the least that still means something. At 480 bit/s a burst of 16 KiB
would not fit the kernel's 32-bit field of 64 ns ticks."""

QUANTUM_BYTES_MIN = 1_514
QUANTUM_BYTES_MAX = 60_000
QUANTUM_S = 0.001
"""Turns among leaves of the same priority: 1 ms at the leaf's rate, at least one Ethernet frame, and below the kernel's
warning level of 200 000."""

JOB_QUANTUM_BYTES_MIN = 8 * QUANTUM_BYTES_MIN
JOB_QUANTUM_S = 0.002
"""The turn of the job with the greatest weight: 2 ms at the interface's capacity, but at least eight packets, which our
engines send in one piece: a longer one goes as a whole, whatever the weight. The others' are in proportion."""


@dataclass(frozen=True)
class Leaf:
    """What one leaf gets of its class."""

    minor: int
    rate_bits_per_s: int
    ceil_bits_per_s: int
    priority: int
    quantum_bytes: int


def leaves_by_class(direction: Direction) -> Mapping[int, str]:
    """The minors of all leaves of a tree, with the class of each."""
    return CLASS_OF_LEAF if direction == "egress" else DEFAULT_LEAVES


def rate_bits_per_s_min(name: str, direction: Direction = "egress") -> int:
    """The least rate of a class, or of bulk: each of its leaves, spare ones too, keeps `RATE_BITS_PER_S_MIN`."""
    return RATE_BITS_PER_S_MIN * max(1, sum(owner == name for owner in leaves_by_class(direction).values()))


def quantum_bytes(rate_bits_per_s: int) -> int:
    """The turn of a leaf that borrows in proportion to its rate."""
    return min(max(int(rate_bits_per_s / 8 * QUANTUM_S), QUANTUM_BYTES_MIN), QUANTUM_BYTES_MAX)


def leaves_of(
    wanted: ClassShape, *, bulk: ClassShape | None, shape: InterfaceShape, leaf_of_address: Mapping[str, int]
) -> list[Leaf]:
    """All leaves of one of the four classes.

    Args:
        wanted: its ceiling is that of every leaf that has no lower one.
        bulk: the shape of `BULK_NAME`; None is the default part of compute.
        leaf_of_address: where each destination of the shape goes; empty where destinations cannot be told.

    Raises:
        ValueError: the leaves' rates are more than the class has.
    """
    there = leaves_by_class(shape.direction)
    leaves: dict[int, Leaf] = {}
    turns: dict[int, int] = {}
    if wanted.name == "compute":
        leaves = {minor: _spare(minor, wanted) for minor in JOB_MINOR if minor in there}
        turns = _turns_of_jobs(shape)
        for job in shape.jobs:
            minor = JOB_MINOR[job.slot]
            leaves[minor] = _leaf(minor, job, wanted, job.priority, turns[minor])
        bulk = bulk or _default_bulk(wanted, shape)
        minor = LEAF_MINOR[BULK_NAME]
        leaves[minor] = _leaf(minor, bulk, wanted, bulk.priority, quantum_bytes(bulk.rate_bits_per_s))
    elif wanted.name == HELD_NAME:
        leaves = {minor: _spare(minor, wanted) for minor in DESTINATION_MINOR if minor in there}
        for destination in shape.destinations if leaf_of_address else ():
            minor = leaf_of_address[canonical(destination.address)]
            leaves[minor] = _leaf(minor, destination, wanted, wanted.priority, quantum_bytes(wanted.rate_bits_per_s))
    rate_left = wanted.rate_bits_per_s - sum(leaf.rate_bits_per_s for leaf in leaves.values())
    if rate_left < RATE_BITS_PER_S_MIN:
        raise ValueError(
            f"{shape.interface}: the jobs, destinations and spare leaves of {wanted.name} leave {rate_left} bit/s of "
            f"its {wanted.rate_bits_per_s} to its default leaf, less than {RATE_BITS_PER_S_MIN}"
        )
    minor = LEAF_MINOR[wanted.name]
    turn = turns.get(minor) or quantum_bytes(wanted.rate_bits_per_s)
    return [*leaves.values(), Leaf(minor, rate_left, wanted.ceil_bits_per_s, wanted.priority, turn)]


def check_parts(shape: InterfaceShape) -> None:
    """Raise ValueError for destinations and jobs that cannot be, whatever the class has."""
    if shape.direction == "ingress" and (shape.destinations or shape.jobs):
        raise ValueError(f"{shape.interface}: what arrives is not told by destinations and jobs")
    addresses = [canonical(destination.address) for destination in shape.destinations]
    doubled = {address for address in addresses if addresses.count(address) > 1}
    if doubled:
        raise ValueError(f"{shape.interface}: destinations are listed twice: {', '.join(sorted(doubled))}")
    if len(addresses) > len(DESTINATION_MINOR):
        raise ValueError(
            f"{shape.interface}: {len(addresses)} destinations, but only {len(DESTINATION_MINOR)} leaves for them"
        )
    for destination in shape.destinations:
        if destination.target != HELD_NAME:
            raise ValueError(
                f"{shape.interface}: destination {destination.address} is for {destination.target}; only {HELD_NAME} "
                "can be told by its destination"
            )
        _check_rates(shape.interface, f"destination {destination.address}", destination)
    slots = [job.slot for job in shape.jobs]
    if len({*slots}) != len(slots) or not {*slots} <= {*range(len(JOB_MINOR))}:
        raise ValueError(f"{shape.interface}: jobs have slots 0 to {len(JOB_MINOR) - 1}, each once, not {slots}")
    for job in shape.jobs:
        _check_rates(shape.interface, f"job {job.slot}", job)
        if not 0 <= job.priority <= 7:
            raise ValueError(f"{shape.interface}: job {job.slot} has priority {job.priority}, not 0..7")
        if not 0 < job.weight < math.inf:
            raise ValueError(f"{shape.interface}: job {job.slot} has weight {job.weight}, not more than 0")


def _check_rates(interface: str, what: str, part: DestinationShape | JobShape) -> None:
    if not RATE_BITS_PER_S_MIN <= part.rate_bits_per_s <= part.ceil_bits_per_s:
        raise ValueError(
            f"{interface}: {what} has a rate of {part.rate_bits_per_s} bit/s and a ceiling of {part.ceil_bits_per_s}; "
            f"a rate is at least {RATE_BITS_PER_S_MIN}, and at most the ceiling"
        )


def _leaf(
    minor: int, part: ClassShape | DestinationShape | JobShape, wanted: ClassShape, priority: int, turn_bytes: int
) -> Leaf:
    ceil = min(part.ceil_bits_per_s, wanted.ceil_bits_per_s)
    return Leaf(minor, part.rate_bits_per_s, ceil, priority, turn_bytes)


def _spare(minor: int, wanted: ClassShape) -> Leaf:
    turn = quantum_bytes(wanted.rate_bits_per_s)
    return Leaf(minor, RATE_BITS_PER_S_MIN, wanted.ceil_bits_per_s, wanted.priority, turn)


def _default_bulk(compute: ClassShape, shape: InterfaceShape) -> ClassShape:
    """A tenth of compute's rate, but at most half of what its jobs leave; all of its ceiling, after everybody else."""
    of_jobs = sum(job.rate_bits_per_s - RATE_BITS_PER_S_MIN for job in shape.jobs)
    free = max(0, compute.rate_bits_per_s - rate_bits_per_s_min("compute", shape.direction) - of_jobs)
    rate = max(RATE_BITS_PER_S_MIN, min(compute.rate_bits_per_s // 10, free // 2))
    return ClassShape(BULK_NAME, rate_bits_per_s=rate, ceil_bits_per_s=compute.ceil_bits_per_s, priority=4)


def _turns_of_jobs(shape: InterfaceShape) -> dict[int, int]:
    """Turns of the jobs' leaves, and of compute's default leaf, in proportion to the weights; empty without jobs."""
    if not shape.jobs:
        return {}
    weights = {LEAF_MINOR["compute"]: 1.0, **{JOB_MINOR[job.slot]: job.weight for job in shape.jobs}}
    longest = min(max(int(shape.capacity_bits_per_s / 8 * JOB_QUANTUM_S), JOB_QUANTUM_BYTES_MIN), QUANTUM_BYTES_MAX)
    most = max(weights.values())
    return {minor: max(QUANTUM_BYTES_MIN, int(longest * weight / most)) for minor, weight in weights.items()}
