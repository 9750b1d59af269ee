"""What a schedule is made for: one rank's part of a collective without its tensors, and how it is to be done.

Both are hashable and the same arithmetic on every rank, so that schedules are made once for each shape.
"""

from __future__ import annotations

import enum
from dataclasses import dataclass

from transport.collectives.codecs import Codec, encoded_bytes

SMALL_BYTES = 32 * 1024
"""Up to this a tensor is not cut: cutting it would send more messages, and what they cost is rarely their bytes."""


class Operation(enum.IntEnum):
    """What is called. Part of the match key, so that ranks that call different things notice instead of waiting."""

    ALLREDUCE = 1
    BROADCAST = 2
    REDUCE = 3
    ALL_GATHER = 4
    REDUCE_SCATTER = 5
    GATHER = 6
    SCATTER = 7
    ALL_TO_ALL = 8
    BARRIER = 9


@dataclass(frozen=True, slots=True, kw_only=True)
class Problem:
    """One rank's part of a collective.

    Args:
        counts: elements. Of all-reduce, broadcast and reduce: of the tensor, buffer 0. Of reduce-scatter: of the part
            for each rank, buffers 0 to size - 1; the result is buffer `size`. Of all others but the barrier: of what
            goes to each rank, buffers size to 2 size - 1.
        receive_counts: of all others: elements from each rank, buffers 0 to size - 1; () elsewhere.
        chunk_bytes: longest message.
        turn: number of the operation in its group, modulo its size, where small tensors take turns; 0 elsewhere.
        codec: of messages of float32 between ranks; of reductions by site, between sites alone.
        narrow: what some ranks' values come to may be more than their dtype holds, although the result is not.
        feeds_back: what encoding leaves out of a reduction goes into further buffers, one for each that is reduced and
            as long, and is added the next time.
    """

    operation: Operation
    rank: int
    size: int
    item_bytes: int = 1
    counts: tuple[int, ...] = ()
    receive_counts: tuple[int, ...] = ()
    root: int = 0
    chunk_bytes: int = 512 * 1024
    turn: int = 0
    codec: Codec = Codec.NONE
    narrow: bool = False
    feeds_back: bool = False

    def message_bytes(self, elems: int) -> int:
        """Length of a message of so many elements, encoded where there is a codec."""
        return elems * self.item_bytes if self.codec is Codec.NONE else encoded_bytes(elems, self.codec)

    @property
    def first_residual(self) -> int:
        """Number of the buffer with what is left out of buffer 0; those of the others follow."""
        return self.size + 1 if self.operation is Operation.REDUCE_SCATTER else 1

    @property
    def chunk_elems(self) -> int:
        """Elements of the longest message, at least one."""
        return max(self.chunk_bytes // self.item_bytes, 1)

    @property
    def small_elems(self) -> int:
        """Elements of the largest tensor that is not cut."""
        return min(SMALL_BYTES, self.chunk_bytes) // self.item_bytes

    @property
    def takes_turns(self) -> bool:
        """Whether `turn` matters: a small tensor is reduced by one rank, where the plan has no weights."""
        return self.operation is Operation.ALLREDUCE and self.counts[0] <= self.small_elems


@dataclass(frozen=True, slots=True)
class Plan:
    """How a collective is done.

    Args:
        algorithm: a name that `algorithms.registry` knows.
        weights: each rank's part of the reducing, in rank order; () for equal ones, or a small tensor in one piece.
        sites: the site of each rank, in rank order, numbered in order of their first rank; () for one site.
        delegates: how many ranks of each site, its first ones, take turns to talk to other sites in all-reduce, reduce
            and broadcast, beside the root; 0 for all of them.
    """

    algorithm: str = "direct"
    weights: tuple[int, ...] = ()
    sites: tuple[int, ...] = ()
    delegates: int = 0
