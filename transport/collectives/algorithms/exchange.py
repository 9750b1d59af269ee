"""Everybody sends its whole tensor to everybody, and reduces for itself: one latency, (n-1) M bytes sent per rank.

For two ranks these are the bytes of any other algorithm, and half the latency. For more it is for small tensors. All
ranks compute the same values in the same order, so they hold the same bits.
"""

from __future__ import annotations

from transport.collectives.algorithms.direct import pipelined_elems, region_of
from transport.collectives.algorithms.messages import Messages
from transport.collectives.algorithms.traffic import Traffic, to_all
from transport.collectives.algorithms.window import Window
from transport.collectives.partition import cut_chunks
from transport.collectives.problem import Plan, Problem
from transport.collectives.schedule import Builder, Schedule


def all_reduce(problem: Problem, _plan: Plan) -> Schedule:
    """Everybody gets the reduction of buffer 0 in buffer 0."""
    builder = Builder(problem.rank, problem.size)
    (elems,) = problem.counts
    runs = cut_chunks(0, elems, pipelined_elems(problem))
    chunk_bytes = max((stop - start for start, stop in runs), default=0) * problem.item_bytes
    messages = Messages(builder, problem)
    window = Window(builder, others=problem.size - 1, chunk_bytes=chunk_bytes, chunk_count=len(runs), messages=messages)
    regions = [region_of(problem, 0, start, stop) for start, stop in runs]
    sent = [
        messages.send(builder.others(), part, region, of=region, adopts=region) for part, region in enumerate(regions)
    ]
    for part, region in enumerate(regions):
        # The result goes where our values are: they have to be with everybody before.
        window.reduce(part, contributors=range(problem.size), own=region, target=region, after=sent[part])
    return builder.done()


def all_reduce_traffic(problem: Problem, _plan: Plan) -> Traffic:
    """What `all_reduce` sends."""
    (elems,) = problem.counts
    nbytes = sum(problem.message_bytes(stop - start) for start, stop in cut_chunks(0, elems, pipelined_elems(problem)))
    return Traffic(
        to_all(problem.size, [nbytes] * problem.size),
        latencies=1,
        messages=2 * (problem.size - 1),
        reduced_bytes=problem.size * elems * problem.item_bytes,
        coded_bytes=(problem.size + 1) * elems * problem.item_bytes if problem.codec else 0,
    )
