"""What an algorithm sends, as reckoned before any schedule is made: the cost model's input. Pure arithmetic."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import TypeAlias

import numpy as np
import numpy.typing as npt

from transport.collectives.partition import cut_chunks
from transport.collectives.problem import Problem

Matrix: TypeAlias = npt.NDArray[np.int64]


@dataclass(frozen=True, eq=False)
class Traffic:
    """Of one collective, over all ranks.

    Args:
        pairs: bytes from each rank (row) to each other one (column), of shape (size, size).
        latencies: one-way latencies that follow each other, between any two ranks.
        near_latencies: those within a site, beside.
        in_turns: one rank reduces all, another one the next time: what a link receives and what it sends follow each
            other.
        messages: that the busiest rank sends and receives, where one waits for another or for its processor: of
            large tensors those of the first chunk, since later ones overlap with it.
        reduced_bytes: input of the reductions of the busiest rank.
        coded_bytes: of values that the busiest rank encodes and decodes; 0 without a codec.
    """

    pairs: Matrix
    latencies: int
    messages: int
    near_latencies: int = 0
    in_turns: bool = False
    reduced_bytes: int = 0
    coded_bytes: int = 0


def no_pairs(size: int) -> Matrix:
    """A matrix of zeros, to add to."""
    return np.zeros((size, size), dtype=np.int64)


def to_all(size: int, nbytes: Iterable[int]) -> Matrix:
    """Rank i sends `nbytes[i]` to every other rank; its transpose: receives so much from every other rank."""
    pairs = np.repeat(np.array(list(nbytes), dtype=np.int64)[:, None], size, axis=1)
    np.fill_diagonal(pairs, 0)
    return pairs


def sent_bytes(problem: Problem, elems: int) -> int:
    """Of a run of elements in messages of at most `chunk_bytes` before encoding."""
    return sum(problem.message_bytes(stop - start) for start, stop in cut_chunks(0, elems, problem.chunk_elems))
