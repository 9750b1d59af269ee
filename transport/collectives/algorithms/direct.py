"""Direct reduce-scatter and all-gather, and the other direct exchanges: every rank talks to every other one.

A tensor of M bytes over n ranks is cut into one shard per owner and those into chunks. Everybody sends each chunk to
its owner, which reduces it in rank order and sends the result to everybody: [1 + (n-2) w] M bytes sent per rank, w its
share of the tensor. For equal shares that is 2 (n-1)/n M, the same as a ring, in two latencies instead of 2 (n-1). All
contributions are listed before all results: with the links always busy with contributions first, the last result is
never waited for with an idle link.

Small tensors have one owner, and the ranks take turns: 2 (n-1) messages instead of 2 n (n-1). A slow link makes more of
their bytes than of messages: with weights in its plan an all-reduce cuts them, too.
"""

from __future__ import annotations

from collections.abc import Sequence

from transport.collectives.algorithms.messages import Messages
from transport.collectives.algorithms.traffic import Traffic, no_pairs, sent_bytes, to_all
from transport.collectives.algorithms.window import Window
from transport.collectives.partition import Chunk, cut, cut_chunks, cut_shards
from transport.collectives.problem import Plan, Problem
from transport.collectives.schedule import SCRATCH, Builder, Region, Schedule

PIPELINE_CHUNKS = 4
"""A shard has at least so many chunks, unless they would be small: with one, every link idles for a round trip (and
what waits in its queue) between contributions and results."""


def all_reduce(problem: Problem, plan: Plan) -> Schedule:
    """Everybody gets the reduction of buffer 0 in buffer 0."""
    builder = Builder(problem.rank, problem.size)
    chunks = chunks_of(problem, plan, owner=problem.turn % problem.size)
    messages = Messages(builder, problem)
    sent = _contribute(problem, chunks, messages)
    for chunk, target, reduced in _own(builder, problem, chunks, in_place=True, messages=messages):
        messages.send(builder.others(), 2 * chunk.number + 1, target, (reduced,), of=target, adopts=target, finish=True)
    for chunk in chunks:
        if chunk.owner != problem.rank:
            # Our contribution lies where the result will: it has to be with the owner, or encoded, before.
            region = region_of(problem, 0, chunk.start, chunk.stop)
            messages.receive(chunk.owner, 2 * chunk.number + 1, region, sent[chunk.number])
    return builder.done()


def reduce(problem: Problem, plan: Plan) -> Schedule:
    """The root gets the reduction of buffer 0 in buffer 0; the others' buffers are only read.

    Owners send their results to the root alone: its link carries 2 (n-1)/n M instead of (n-1) M.
    """
    builder = Builder(problem.rank, problem.size)
    chunks = chunks_of(problem, plan, owner=problem.root)
    messages = Messages(builder, problem)
    sent = _contribute(problem, chunks, messages)
    is_root = problem.rank == problem.root
    _own(builder, problem, chunks, in_place=is_root, messages=messages, result_to=None if is_root else problem.root)
    if is_root:
        for chunk in chunks:
            if chunk.owner != problem.rank:
                region = region_of(problem, 0, chunk.start, chunk.stop)
                messages.receive(chunk.owner, 2 * chunk.number + 1, region, sent[chunk.number])
    return builder.done()


def reduce_scatter(problem: Problem, _plan: Plan) -> Schedule:
    """Buffer `size` gets the reduction of every rank's buffer `rank`; buffers 0 to size - 1 are only read."""
    builder = Builder(problem.rank, problem.size)
    messages = Messages(builder, problem)
    for peer in builder.others():
        for part, (start, stop) in enumerate(cut_chunks(0, problem.counts[peer], problem.chunk_elems)):
            region = region_of(problem, peer, start, stop)
            messages.send([peer], part, region, of=region)
    runs = cut_chunks(0, problem.counts[problem.rank], problem.chunk_elems)
    chunk_bytes = max((stop - start for start, stop in runs), default=0) * problem.item_bytes
    window = Window(builder, others=problem.size - 1, chunk_bytes=chunk_bytes, chunk_count=len(runs), messages=messages)
    for part, (start, stop) in enumerate(runs):
        own = region_of(problem, problem.rank, start, stop)
        target = region_of(problem, problem.size, start, stop)
        window.reduce(part, contributors=range(problem.size), own=own, target=target)
    return builder.done()


def broadcast(problem: Problem, plan: Plan) -> Schedule:
    """Everybody's buffer 0 becomes the root's.

    Large tensors: the root sends each chunk to one relay, which passes it on to the rest, so that every link carries
    about M, instead of (n-1) M on the root's. The relays' shares are the plan's weights.
    """
    builder = Builder(problem.rank, problem.size)
    rank, size, root, (elems,) = problem.rank, problem.size, problem.root, problem.counts
    if size <= 2 or elems <= problem.small_elems:
        for part, (start, stop) in enumerate(cut_chunks(0, elems, problem.chunk_elems)):
            region = region_of(problem, 0, start, stop)
            if rank != root:
                builder.receive(root, part, region)
                continue
            for i in range(1, size):
                builder.send((root + i) % size, part, region)
        return builder.done()
    chunk_elems = min(problem.chunk_elems, -(-elems // (size - 1)))
    for chunk in cut(elems, _relay_weights(problem, plan), chunk_elems):
        region = region_of(problem, 0, chunk.start, chunk.stop)
        if rank == root:
            builder.send(chunk.owner, chunk.number, region)
        elif rank == chunk.owner:
            here = builder.receive(root, chunk.number, region)
            for peer in builder.others():
                if peer != root:
                    builder.send(peer, chunk.number, region, (here,))
        else:
            builder.receive(chunk.owner, chunk.number, region)
    return builder.done()


def all_gather(problem: Problem, _plan: Plan) -> Schedule:
    """Buffer size + rank arrives in everybody's buffer `rank`."""
    builder = Builder(problem.rank, problem.size)
    messages = Messages(builder, problem)
    rank, size = problem.rank, problem.size
    for origin in builder.others():
        for part, (start, stop) in enumerate(cut_chunks(0, problem.receive_counts[origin], problem.chunk_elems)):
            messages.receive(origin, part, region_of(problem, origin, start, stop))
    for part, (start, stop) in enumerate(cut_chunks(0, problem.counts[rank], problem.chunk_elems)):
        source, target = region_of(problem, size + rank, start, stop), region_of(problem, rank, start, stop)
        messages.send(builder.others(), part, source, adopts=target)
        if not problem.codec:
            builder.copy(target, source)
    return builder.done()


def exchange(problem: Problem, _plan: Plan) -> Schedule:
    """Buffer size + i goes to rank i, and arrives in its buffer `rank`; the general form of every direct exchange."""
    builder = Builder(problem.rank, problem.size)
    rank, size = problem.rank, problem.size
    for start, stop in cut_chunks(0, problem.counts[rank], problem.chunk_elems):  # nothing is sent during a copy
        builder.copy(region_of(problem, rank, start, stop), region_of(problem, size + rank, start, stop))
    for peer in builder.others():
        for part, (start, stop) in enumerate(cut_chunks(0, problem.receive_counts[peer], problem.chunk_elems)):
            builder.receive(peer, part, region_of(problem, peer, start, stop))
    runs = {peer: cut_chunks(0, problem.counts[peer], problem.chunk_elems) for peer in builder.others()}
    for part in range(max((len(run) for run in runs.values()), default=0)):
        for peer, run in runs.items():
            if part < len(run):
                builder.send(peer, part, region_of(problem, size + peer, *run[part]))
    return builder.done()


def barrier(problem: Problem, _plan: Plan) -> Schedule:
    """Done when every rank has begun it: an empty message to each from each."""
    builder = Builder(problem.rank, problem.size)
    for peer in builder.others():
        builder.send(peer, 0, Region(SCRATCH, 0, 0))
        builder.receive(peer, 0, Region(SCRATCH, 0, 0))
    return builder.done()


def all_reduce_traffic(problem: Problem, plan: Plan) -> Traffic:
    """What `all_reduce` sends: every rank a contribution to each owner, each owner its result to all."""
    owned = _owned_bytes(problem, plan, owner=problem.turn % problem.size)
    by_owner = to_all(problem.size, _sent_bytes(problem, plan, owner=problem.turn % problem.size))
    is_small = problem.takes_turns
    return Traffic(
        by_owner + by_owner.T,
        latencies=2,
        messages=(4 if is_small and plan.weights else 2) * (problem.size - 1),
        in_turns=is_small and not plan.weights,
        reduced_bytes=problem.size * max(owned),
        coded_bytes=2 * sum(owned) + (problem.size - 1) * max(owned) if problem.codec else 0,
    )


def reduce_traffic(problem: Problem, plan: Plan) -> Traffic:
    """What `reduce` sends."""
    owned = _owned_bytes(problem, plan, owner=problem.root)
    sent = _sent_bytes(problem, plan, owner=problem.root)
    coded = [sum(owned) + (problem.size - 1) * one for one in owned]
    coded[problem.root] += sum(owned) - 2 * owned[problem.root]
    pairs = to_all(problem.size, sent).T.copy()
    for rank, nbytes in enumerate(sent):
        if rank != problem.root:
            pairs[rank, problem.root] += nbytes
    one_owner = sum(nbytes > 0 for nbytes in owned) <= 1
    return Traffic(
        pairs,
        latencies=1 if one_owner else 2,
        messages=(1 if one_owner else 2) * (problem.size - 1),
        reduced_bytes=problem.size * max(owned),
        coded_bytes=max(coded) if problem.codec else 0,
    )


def reduce_scatter_traffic(problem: Problem, _plan: Plan) -> Traffic:
    """What `reduce_scatter` sends."""
    nbytes = [count * problem.item_bytes for count in problem.counts]
    coded = sum(nbytes) + (problem.size - 2) * max(nbytes)
    return Traffic(
        to_all(problem.size, [sent_bytes(problem, count) for count in problem.counts]).T,
        latencies=1,
        messages=2 * (problem.size - 1),
        reduced_bytes=problem.size * max(nbytes),
        coded_bytes=coded if problem.codec else 0,
    )


def broadcast_traffic(problem: Problem, plan: Plan) -> Traffic:
    """What `broadcast` sends."""
    size, root, (elems,) = problem.size, problem.root, problem.counts
    pairs = no_pairs(size)
    if size <= 2 or elems <= problem.small_elems:
        pairs[root, :] = elems * problem.item_bytes
        pairs[root, root] = 0
        return Traffic(pairs, latencies=1, messages=size - 1)
    for relay, (start, stop) in enumerate(cut_shards(elems, _relay_weights(problem, plan))):
        if relay != root:
            pairs[relay, :] = (stop - start) * problem.item_bytes
            pairs[root, relay] = (stop - start) * problem.item_bytes
            pairs[relay, [relay, root]] = 0
    return Traffic(pairs, latencies=2, messages=2 * (size - 1))


def all_gather_traffic(problem: Problem, _plan: Plan) -> Traffic:
    """What `all_gather` sends."""
    counts = problem.receive_counts
    return Traffic(
        to_all(problem.size, [sent_bytes(problem, count) for count in counts]),
        latencies=1,
        messages=2 * (problem.size - 1),
        coded_bytes=(sum(counts) + max(counts)) * problem.item_bytes if problem.codec else 0,
    )


def barrier_traffic(problem: Problem, _plan: Plan) -> Traffic:
    """What `barrier` sends."""
    return Traffic(no_pairs(problem.size), latencies=1, messages=2 * (problem.size - 1))


def region_of(problem: Problem, buffer: int, start: int, stop: int) -> Region:
    """Elements `start` to `stop` of a buffer."""
    return Region(buffer, start * problem.item_bytes, stop * problem.item_bytes)


def chunks_of(problem: Problem, plan: Plan, *, owner: int) -> tuple[Chunk, ...]:
    """The chunks of a tensor and their owners.

    Args:
        owner: of a small tensor.
    """
    return cut(problem.counts[0], _owner_weights(problem, plan, owner), pipelined_elems(problem))


def pipelined_elems(problem: Problem) -> int:
    """Elements of the longest chunk that still lets sending, reducing and receiving of a shard overlap."""
    (elems,) = problem.counts
    per_shard = max(-(-elems // (problem.size * PIPELINE_CHUNKS)), problem.small_elems)
    return max(min(problem.chunk_elems, per_shard), 1)


def _owner_weights(problem: Problem, plan: Plan, owner: int) -> Sequence[int]:
    is_cut = bool(problem.takes_turns and plan.weights)
    if problem.counts[0] <= problem.small_elems and not is_cut:
        return [int(rank == owner) for rank in range(problem.size)]
    return plan.weights or [1] * problem.size


def _owned_bytes(problem: Problem, plan: Plan, *, owner: int) -> list[int]:
    shards = cut_shards(problem.counts[0], _owner_weights(problem, plan, owner))
    return [(stop - start) * problem.item_bytes for start, stop in shards]


def _sent_bytes(problem: Problem, plan: Plan, *, owner: int) -> list[int]:
    """Of each owner's shard, as messages have it."""
    nbytes = [0] * problem.size
    for chunk in chunks_of(problem, plan, owner=owner):
        nbytes[chunk.owner] += problem.message_bytes(chunk.stop - chunk.start)
    return nbytes


def _relay_weights(problem: Problem, plan: Plan) -> Sequence[int]:
    weights = [0 if i == problem.root else weight for i, weight in enumerate(plan.weights or [1] * problem.size)]
    if any(weights):
        return weights
    return [int(i != problem.root) for i in range(problem.size)]  # the root's link alone is good


def _contribute(problem: Problem, chunks: Sequence[Chunk], messages: Messages) -> dict[int, tuple[int, ...]]:
    """Send our values of every chunk to its owner; by chunk number the steps after which they may be overwritten."""
    rank, size = problem.rank, problem.size
    ahead = sorted(chunks, key=lambda chunk: (chunk.number // size, (chunk.owner - rank) % size))
    sent = {}
    for chunk in ahead:
        if chunk.owner != rank:
            region = region_of(problem, 0, chunk.start, chunk.stop)
            sent[chunk.number] = messages.send([chunk.owner], 2 * chunk.number, region, of=region)
    return sent


def _own(
    builder: Builder,
    problem: Problem,
    chunks: Sequence[Chunk],
    *,
    in_place: bool,
    messages: Messages,
    result_to: int | None = None,
) -> list[tuple[Chunk, Region, int]]:
    """Receive and reduce the chunks that are ours; each with the place of its result and the step that reduces it."""
    mine = [chunk for chunk in chunks if chunk.owner == problem.rank]
    chunk_bytes = max((chunk.stop - chunk.start for chunk in mine), default=0) * problem.item_bytes
    window = Window(
        builder,
        others=problem.size - 1,
        chunk_bytes=chunk_bytes,
        chunk_count=len(mine),
        keep_results=not in_place,
        messages=messages,
    )
    reduced = []
    for chunk in mine:
        own = region_of(problem, 0, chunk.start, chunk.stop)
        place = own if in_place else None
        target, step = window.reduce(2 * chunk.number, contributors=range(problem.size), own=own, target=place)
        if result_to is not None:
            sent = messages.send([result_to], 2 * chunk.number + 1, target, (step,), of=own, finish=True)
            window.busy_until(*sent)
        reduced.append((chunk, target, step))
    return reduced
