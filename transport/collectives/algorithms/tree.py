"""Broadcast along a binomial tree: log2(n) latencies and messages, where the root would send n-1, for what is small.

Each rank that has the tensor sends it on to one that has not, the farthest first, so that their number doubles.
"""

from __future__ import annotations

from transport.collectives.algorithms.direct import region_of
from transport.collectives.algorithms.traffic import Traffic, no_pairs
from transport.collectives.partition import cut_chunks
from transport.collectives.problem import Plan, Problem
from transport.collectives.schedule import Builder, Schedule


def broadcast(problem: Problem, _plan: Plan) -> Schedule:
    """Everybody's buffer 0 becomes the root's."""
    builder = Builder(problem.rank, problem.size)
    parent, children = _family(problem, problem.rank)
    for part, (start, stop) in enumerate(cut_chunks(0, problem.counts[0], problem.chunk_elems)):
        region = region_of(problem, 0, start, stop)
        here = [] if parent is None else [builder.receive(parent, part, region)]
        for child in children:
            builder.send(child, part, region, here)
    return builder.done()


def broadcast_traffic(problem: Problem, _plan: Plan) -> Traffic:
    """What `broadcast` sends."""
    pairs = no_pairs(problem.size)
    for rank in range(problem.size):
        for child in _family(problem, rank)[1]:
            pairs[rank, child] = problem.counts[0] * problem.item_bytes
    rounds = (problem.size - 1).bit_length()
    return Traffic(pairs, latencies=rounds, messages=rounds)


def _family(problem: Problem, rank: int) -> tuple[int | None, list[int]]:
    """Of whom a rank receives, None for the root, and to whom it sends: the largest subtree first."""
    place = (rank - problem.root) % problem.size
    lowest = place & -place if place else 1 << (problem.size - 1).bit_length()
    parent = None if not place else (place - lowest + problem.root) % problem.size
    children = [place + distance for k in reversed(range(lowest.bit_length() - 1)) for distance in [1 << k]]
    return parent, [(child + problem.root) % problem.size for child in children if child < problem.size]
