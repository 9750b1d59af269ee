"""Cutting a run of elements: into one shard per owner, and a shard into chunks that pipeline.

Pure arithmetic. Every rank computes the same cuts from the same arguments, so nothing about them is ever sent.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass

ALIGN_ELEMS = 16
"""Shards begin at multiples of this, so that vector instructions meet aligned memory (64 bytes of float32)."""


@dataclass(frozen=True, slots=True)
class Chunk:
    """A run of elements that one rank owns, and its number in the order in which all chunks are dealt with."""

    owner: int
    number: int
    start: int
    stop: int


def cut_shards(elems: int, weights: Sequence[float]) -> tuple[tuple[int, int], ...]:
    """One (start, stop) for each weight, in order, that cover `elems` elements exactly once.

    Args:
        weights: each owner's part; equal weights for equal links, 0 for an owner that gets none. Sizes follow them to
            within `ALIGN_ELEMS` elements.

    Raises:
        ValueError: a weight is negative or all are zero.
    """
    sums = list(itertools.accumulate(weights, initial=0.0))
    total = sums[-1]  # and not sum(), which rounds otherwise from Python 3.12 on: ranks may run different ones
    if total <= 0 or min(weights) < 0:
        raise ValueError(f"weights must not be negative and not all zero: {list(weights)}")
    cuts = [0]
    for reached in sums[1:]:
        share = reached / total
        cuts.append(elems if share >= 1.0 else max(int(elems * share) // ALIGN_ELEMS * ALIGN_ELEMS, cuts[-1]))
    last = max(i for i, weight in enumerate(weights) if weight > 0)
    cuts[last + 1 :] = [elems] * (len(weights) - last)
    return tuple(itertools.pairwise(cuts))


def cut_chunks(start: int, stop: int, chunk_elems: int) -> tuple[tuple[int, int], ...]:
    """Runs of at most `chunk_elems` elements and nearly equal size that cover start to stop; none for an empty run.

    Nearly equal, because a short last chunk would leave the link idle while it waits for a long one.
    """
    count = -(-(stop - start) // max(chunk_elems, 1))
    return tuple((start + (stop - start) * i // count, start + (stop - start) * (i + 1) // count) for i in range(count))


def cut(elems: int, weights: Sequence[float], chunk_elems: int) -> tuple[Chunk, ...]:
    """All chunks of all shards, numbered so that the owners take turns: first chunks first, then second ones."""
    per_owner = [cut_chunks(start, stop, chunk_elems) for start, stop in cut_shards(elems, weights)]
    turns = itertools.zip_longest(*per_owner)
    placed = ((owner, run) for turn in turns for owner, run in enumerate(turn) if run is not None)
    return tuple(Chunk(owner, number, run[0], run[1]) for number, (owner, run) in enumerate(placed))
