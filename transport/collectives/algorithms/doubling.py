"""Twice as much known after each round: log2(n) messages sent per rank instead of n-1, for what is small.

Bruck's all-gather (IEEE TPDS 8(11), 1997): in round k a rank sends the first 2^k blocks that it has, its own first, to
the rank 2^k before it, and gets as many from the rank 2^k behind it. It works for any number of ranks. All-reduce
gathers every rank's values so, and then reduces them in rank order: no partial sums, so the bits are those of the
direct algorithm. (n-1) M bytes are sent per rank.
"""

from __future__ import annotations

from collections.abc import Sequence

from transport.collectives.algorithms.direct import region_of
from transport.collectives.algorithms.traffic import Matrix, Traffic, no_pairs
from transport.collectives.problem import Plan, Problem
from transport.collectives.schedule import SCRATCH, Builder, Region, Schedule


def all_reduce(problem: Problem, _plan: Plan) -> Schedule:
    """Everybody gets the reduction of buffer 0 in buffer 0."""
    builder = Builder(problem.rank, problem.size)
    own = region_of(problem, 0, 0, problem.counts[0])
    if own.nbytes:
        blocks, arrived = _gather(builder, own, [own.nbytes] * problem.size)
        builder.reduce(own, blocks, arrived)
    return builder.done()


def all_gather(problem: Problem, _plan: Plan) -> Schedule:
    """Buffer size + rank arrives in everybody's buffer `rank`."""
    builder = Builder(problem.rank, problem.size)
    nbytes = [count * problem.item_bytes for count in problem.receive_counts]
    own = Region(problem.size + problem.rank, 0, nbytes[problem.rank])
    blocks, arrived = _gather(builder, own, nbytes)
    for rank, block in enumerate(blocks):
        if block.nbytes:
            builder.copy(Region(rank, 0, block.nbytes), block, arrived)
    return builder.done()


def barrier(problem: Problem, _plan: Plan) -> Schedule:
    """Done when every rank has begun it: empty messages, each after those of the round before."""
    builder = Builder(problem.rank, problem.size)
    nothing = Region(SCRATCH, 0, 0)
    heard: list[int] = []
    for part, distance in enumerate(_distances(problem.size)):
        builder.send((problem.rank - distance) % problem.size, part, nothing, heard)
        heard = [*heard, builder.receive((problem.rank + distance) % problem.size, part, nothing)]
    return builder.done()


def all_reduce_traffic(problem: Problem, _plan: Plan) -> Traffic:
    """What `all_reduce` sends."""
    nbytes = [problem.counts[0] * problem.item_bytes] * problem.size
    return _traffic(nbytes, reduced_bytes=sum(nbytes))


def all_gather_traffic(problem: Problem, _plan: Plan) -> Traffic:
    """What `all_gather` sends."""
    return _traffic([count * problem.item_bytes for count in problem.receive_counts])


def barrier_traffic(problem: Problem, _plan: Plan) -> Traffic:
    """What `barrier` sends."""
    return _traffic([0] * problem.size)


def _gather(builder: Builder, own: Region, nbytes: Sequence[int]) -> tuple[list[Region], list[int]]:
    """Every rank's block, in rank order, and the steps after which they are here.

    Blocks lie in scratch memory in the order in which they become known, so that each message is one region.
    """
    rank, size = builder.rank, builder.size
    whole = builder.scratch(sum(nbytes))
    starts = [whole.start]
    for i in range(size):
        starts.append(starts[-1] + nbytes[(rank + i) % size])
    known = [builder.copy(Region(SCRATCH, starts[0], starts[1]), own)] if own.nbytes else []
    for part, distance in enumerate(_distances(size)):
        count = min(distance, size - distance)
        to, source = (rank - distance) % size, (rank + distance) % size
        builder.send(to, part, Region(SCRATCH, starts[0], starts[count]), known)
        place = Region(SCRATCH, starts[distance], starts[distance + count])
        known = [*known, builder.receive(source, part, place)]
    place_of = [(other - rank) % size for other in range(size)]
    return [Region(SCRATCH, starts[i], starts[i + 1]) for i in place_of], known


def _distances(size: int) -> list[int]:
    return [1 << k for k in range((size - 1).bit_length())]


def _traffic(nbytes: Sequence[int], *, reduced_bytes: int = 0) -> Traffic:
    size = len(nbytes)
    pairs: Matrix = no_pairs(size)
    for distance in _distances(size):
        for rank in range(size):
            blocks = range(min(distance, size - distance))
            pairs[rank, (rank - distance) % size] += sum(nbytes[(rank + i) % size] for i in blocks)
    rounds = len(_distances(size))
    return Traffic(pairs, latencies=rounds, messages=2 * rounds, reduced_bytes=reduced_bytes)
