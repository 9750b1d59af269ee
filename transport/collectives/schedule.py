"""What one rank does in a collective, as plain data for any executor: no I/O, no time, no tensors, no closures.

A schedule is a list of steps. Each names the steps that it comes `after`, all of them earlier in the list, so that no
schedule can have a circle. A step may begin when those are done; steps that are free to begin run in any order, except
that sends to one peer go out in list order: the list says what is urgent. Two steps of which neither comes after the
other, directly or through others, never touch the same bytes, unless both only read them.

Regions count bytes of one of the call's buffers, or of scratch memory that the executor provides, uninitialised. A step
has its target first, then its sources:

| op | regions | done when |
|---|---|---|
| SEND | what is sent to `peer` | `peer` has acknowledged it, or the engine has a copy |
| RECEIVE | where what `peer` sends goes; its length is the message's | it has arrived |
| REDUCE | target, sources in rank order: at least one; the target may be one of them | computed |
| COPY | target, source | copied |
| ENCODE | target, source, and the residual where errors are fed back | computed |
| DECODE | target, source | computed |

Regions of one step are equally long, except of the last two: `codecs` says how long. They do not overlap, except where
it says so. A message is matched by sender, receiver and `part`, which both sides derive from the same arithmetic;
within one schedule no two sends to one peer have the same part. The operator and the element type are the call's, not
the schedule's. REDUCE computes ((x0 op x1) op x2) in the accumulator's type (float32 for 16-bit floats) and rounds
once. MEAN adds; a step with the flag FINISH then divides by the number of ranks, before it rounds. So partial sums may
be formed first. ENCODE has the flag where its source is a result, in whose units the residual is.

`encoded` is the bytes that a native executor takes, little-endian: the header HEADER, then all STEP, then all REGION,
then the `after` numbers as uint32. Steps refer to their regions and `after` numbers by first index and count.
"""

from __future__ import annotations

import enum
import functools
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple, TypeAlias

import numpy as np
import numpy.typing as npt

Array: TypeAlias = npt.NDArray[Any]

SCRATCH = -1
"""Buffer number of scratch memory."""
SCRATCH_ALIGN_BYTES = 64
"""What `Builder.scratch` hands out begins at multiples of this: a cache line, and any vector register."""
MAGIC = b"HCS1"
FINISH = 1
"""Flag of a reduction: its result is final, so MEAN divides. Of an encoding: its source was final."""

HEADER = np.dtype(
    [("magic", "S4"), ("steps", "<u4"), ("regions", "<u4"), ("after", "<u4"), ("scratch_bytes", "<u8")]
)  # 24 bytes
STEP = np.dtype(
    [
        ("op", "u1"),
        ("codec", "u1"),  # of the last two ops, and of messages that carry encoded bytes; 0 elsewhere
        ("flags", "u1"),
        ("reserved", "u1"),
        ("peer", "<u4"),  # rank in the group; 0 where there is none
        ("part", "<u4"),
        ("first_region", "<u4"),
        ("region_count", "<u4"),
        ("first_after", "<u4"),
        ("after_count", "<u4"),
        ("reserved_2", "<u4"),
    ]
)  # 32 bytes
REGION = np.dtype([("buffer", "<i4"), ("reserved", "<u4"), ("start", "<u8"), ("stop", "<u8")])  # 24 bytes


class Op(enum.IntEnum):
    """What a step does."""

    SEND = 1
    RECEIVE = 2
    REDUCE = 3
    COPY = 4
    ENCODE = 5
    DECODE = 6


class Region(NamedTuple):
    """Bytes `start` to `stop` of a buffer."""

    buffer: int
    start: int
    stop: int

    @property
    def nbytes(self) -> int:
        """Its length."""
        return self.stop - self.start


class Step(NamedTuple):
    """One step, as read back from the arrays."""

    op: Op
    peer: int
    part: int
    flags: int
    codec: int
    regions: tuple[Region, ...]
    after: tuple[int, ...]


@dataclass(frozen=True, eq=False)
class Schedule:
    """One rank's steps. Nobody may write to the arrays: schedules are shared by all calls of the same shape.

    Args:
        steps: of dtype STEP.
        regions: of dtype REGION.
        after: uint32, indices of steps.
        scratch_bytes: of scratch memory that the regions refer to.
    """

    steps: Array
    regions: Array
    after: Array
    scratch_bytes: int = 0

    @functools.cached_property
    def encoded(self) -> bytes:
        """The form that is handed to a native executor; see the module."""
        header = np.array(
            [(MAGIC, len(self.steps), len(self.regions), len(self.after), self.scratch_bytes)], dtype=HEADER
        )
        return b"".join(part.tobytes() for part in (header, self.steps, self.regions, self.after))

    @functools.cached_property
    def rows(self) -> tuple[Step, ...]:
        """The steps as tuples, for an executor in Python."""
        regions = [Region(buffer, start, stop) for buffer, _, start, stop in self.regions.tolist()]
        after = self.after.tolist()
        return tuple(
            Step(
                Op(op),
                peer,
                part,
                flags,
                codec,
                tuple(regions[first_region : first_region + region_count]),
                tuple(after[first_after : first_after + after_count]),
            )
            for op, codec, flags, _, peer, part, first_region, region_count, first_after, after_count, _ in (
                self.steps.tolist()
            )
        )

    @functools.cached_property
    def ops(self) -> frozenset[Op]:
        """What its steps do."""
        return frozenset(map(Op, np.unique(self.steps["op"]).tolist()))

    @functools.cached_property
    def followers(self) -> tuple[tuple[int, ...], ...]:
        """For each step those that wait for it."""
        followers: list[list[int]] = [[] for _ in self.rows]
        for number, step in enumerate(self.rows):
            for earlier in step.after:
                followers[earlier].append(number)
        return tuple(map(tuple, followers))

    @functools.cached_property
    def sent_bytes(self) -> tuple[tuple[int, int], ...]:
        """(peer, bytes) of each peer that something is sent to, by rank."""
        return self._bytes_by_peer(Op.SEND)

    @functools.cached_property
    def received_bytes(self) -> tuple[tuple[int, int], ...]:
        """(peer, bytes) of each peer that something is received from, by rank."""
        return self._bytes_by_peer(Op.RECEIVE)

    def _bytes_by_peer(self, op: Op) -> tuple[tuple[int, int], ...]:
        total: dict[int, int] = {}
        for step in self.rows:
            if step.op is op:
                total[step.peer] = total.get(step.peer, 0) + step.regions[0].nbytes
        return tuple(sorted(total.items()))


@dataclass
class Builder:
    """Collects the steps of one rank of a group of `size`. Each method but the last three gives its step's number."""

    rank: int
    size: int
    scratch_bytes: int = 0
    _steps: list[tuple[int, ...]] = field(default_factory=list)
    _regions: list[tuple[int, int, int, int]] = field(default_factory=list)
    _after: list[int] = field(default_factory=list)

    def send(self, peer: int, part: int, source: Region, after: Iterable[int] = (), *, codec: int = 0) -> int:
        return self._add(Op.SEND, (source,), after, peer=peer, part=part, codec=codec)

    def receive(self, peer: int, part: int, target: Region, after: Iterable[int] = (), *, codec: int = 0) -> int:
        return self._add(Op.RECEIVE, (target,), after, peer=peer, part=part, codec=codec)

    def reduce(
        self, target: Region, sources: Sequence[Region], after: Iterable[int] = (), *, finish: bool = True
    ) -> int:
        return self._add(Op.REDUCE, (target, *sources), after, flags=FINISH if finish else 0)

    def copy(self, target: Region, source: Region, after: Iterable[int] = ()) -> int:
        return self._add(Op.COPY, (target, source), after)

    def encode(
        self,
        target: Region,
        source: Region,
        residual: Region | None,
        after: Iterable[int] = (),
        *,
        codec: int,
        finish: bool,
    ) -> int:
        regions = (target, source) if residual is None else (target, source, residual)
        return self._add(Op.ENCODE, regions, after, flags=FINISH if finish else 0, codec=codec)

    def decode(self, target: Region, source: Region, after: Iterable[int] = (), *, codec: int) -> int:
        return self._add(Op.DECODE, (target, source), after, codec=codec)

    def scratch(self, nbytes: int) -> Region:
        """Scratch memory that nobody else has."""
        start = -(-self.scratch_bytes // SCRATCH_ALIGN_BYTES) * SCRATCH_ALIGN_BYTES
        self.scratch_bytes = start + nbytes
        return Region(SCRATCH, start, self.scratch_bytes)

    def others(self) -> list[int]:
        """The other ranks, beginning after ours, so that not everybody sends to rank 0 first."""
        return [(self.rank + i) % self.size for i in range(1, self.size)]

    def done(self) -> Schedule:
        """The schedule of what was collected."""
        arrays = (
            np.array(self._steps, dtype=STEP),
            np.array(self._regions, dtype=REGION),
            np.array(self._after, dtype="<u4"),
        )
        for array in arrays:
            array.flags.writeable = False
        return Schedule(*arrays, self.scratch_bytes)

    def _add(
        self,
        op: Op,
        regions: tuple[Region, ...],
        after: Iterable[int],
        *,
        peer: int = 0,
        part: int = 0,
        flags: int = 0,
        codec: int = 0,
    ) -> int:
        number = len(self._steps)
        waits = tuple(after)
        self._steps.append(
            (op, codec, flags, 0, peer, part, len(self._regions), len(regions), len(self._after), len(waits), 0)
        )
        self._regions.extend((region.buffer, 0, region.start, region.stop) for region in regions)
        self._after.extend(waits)
        return number
