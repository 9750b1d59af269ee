"""What one rank does in a collective, as plain data: no I/O, no time, no tensors.

A schedule is a list of steps. A step may begin when those in its `after` are done; steps that are free to begin run in
any order, except that sends to one peer go out in list order, so the list says what is urgent. Regions count elements,
of one of the call's buffers or of scratch memory that the executor provides. Messages are matched by sender, receiver
and `part`, which both sides derive from the same arithmetic.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TypeAlias

SCRATCH = -1
"""Buffer number of scratch memory."""


@dataclass(frozen=True, slots=True)
class Region:
    """Elements `start` to `stop` of a buffer."""

    buffer: int
    start: int
    stop: int

    @property
    def elems(self) -> int:
        return self.stop - self.start


@dataclass(frozen=True, slots=True)
class Send:
    """Send `source` to a rank; done when it has been acknowledged."""

    peer: int
    part: int
    source: Region
    after: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class Receive:
    """Receive the part that `peer` sends into `target`."""

    peer: int
    part: int
    target: Region
    after: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class Reduce:
    """Reduce `sources`, which are in rank order, one from every rank, into `target`, which may be one of them."""

    target: Region
    sources: tuple[Region, ...]
    after: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class Copy:
    """Copy `source` to `target`, which do not overlap."""

    source: Region
    target: Region
    after: tuple[int, ...] = ()


Step: TypeAlias = Send | Receive | Reduce | Copy


@dataclass(frozen=True)
class Schedule:
    """One rank's steps, and how many elements of scratch memory they use."""

    steps: tuple[Step, ...] = ()
    scratch_elems: int = 0
