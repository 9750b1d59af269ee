"""Direct reduce-scatter and all-gather, and the other direct exchanges: every rank talks to every other one.

A tensor of M bytes over n ranks is cut into one shard per owner and
those into chunks. Everybody sends each chunk to its owner, which reduces it in rank order and sends the result to
everybody: [1 + (n-2) w] M bytes sent per rank, which is 2 (n-1)/n M for equal weights, the same as a ring, in two
latencies instead of 2 (n-1). All contributions are listed before all results: with the links always busy with
contributions first, the last result is never waited for with an idle link.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from transport.collectives.partition import Chunk, cut, cut_chunks
from transport.collectives.schedule import SCRATCH, Copy, Receive, Reduce, Region, Schedule, Send, Step

WINDOW_CHUNKS = 8
"""Chunks that an owner receives at once. 8 of 512 KiB from every other rank hold 100 ms of a 320 Mbit/s link."""

PIPELINE_CHUNKS = 4
"""A shard has at least so many chunks, unless they would be small: with one, every link idles for a round trip (and
what waits in its queue) between contributions and results."""

SMALL_BYTES = 32 * 1024
"""Below this a tensor is not cut: one owner, 2 (n-1) messages instead of 2 n (n-1)."""


@dataclass
class _Plan:
    """Collects the steps of one rank."""

    rank: int
    size: int
    steps: list[Step] = field(default_factory=list)
    scratch_elems: int = 0

    def add(self, step: Step) -> int:
        self.steps.append(step)
        return len(self.steps) - 1

    def scratch(self, elems: int) -> Region:
        region = Region(SCRATCH, self.scratch_elems, self.scratch_elems + elems)
        self.scratch_elems += elems
        return region

    def others(self) -> list[int]:
        """The other ranks, beginning after ours, so that not everybody sends to rank 0 first."""
        return [(self.rank + i) % self.size for i in range(1, self.size)]

    def done(self) -> Schedule:
        return Schedule(tuple(self.steps), self.scratch_elems)


def allreduce(
    *, rank: int, size: int, elems: int, chunk_elems: int, small_elems: int, turn: int, weights: Sequence[float] = ()
) -> Schedule:
    """Everybody gets the reduction of buffer 0 in buffer 0.

    Args:
        elems: elements of the tensor, the same on every rank.
        chunk_elems: largest chunk.
        small_elems: at most so many elements are not cut, and have one owner; also what makes a chunk small.
        turn: number of the operation; small tensors take turns between the owners by it.
        weights: each rank's part of the reducing, in rank order; () for equal parts.
    """
    plan = _Plan(rank, size)
    chunk_elems = _chunk_elems(size, elems, chunk_elems, small_elems)
    chunks = cut(elems, _owners(size, elems, small_elems, turn, weights), chunk_elems)
    sent = _contribute(plan, chunks)
    results = _own(plan, chunks, in_place=True)
    for chunk, reduced in results:
        for peer in plan.others():
            plan.add(Send(peer, 2 * chunk.number + 1, _of(0, chunk), (reduced,)))
    for chunk in chunks:
        if chunk.owner != rank:
            # Our contribution lies where the result will: it has to be with the owner before.
            plan.add(Receive(chunk.owner, 2 * chunk.number + 1, _of(0, chunk), (sent[chunk.number],)))
    return plan.done()


def reduce(
    *,
    rank: int,
    size: int,
    root: int,
    elems: int,
    chunk_elems: int,
    small_elems: int,
    weights: Sequence[float] = (),
) -> Schedule:
    """The root gets the reduction of buffer 0 in buffer 0; the others' buffers are only read.

    Owners send their results to the root alone: its link carries 2 (n-1)/n M instead of (n-1) M.
    """
    plan = _Plan(rank, size)
    chunk_elems = _chunk_elems(size, elems, chunk_elems, small_elems)
    chunks = cut(elems, _owners(size, elems, small_elems, root, weights), chunk_elems)
    sent = _contribute(plan, chunks)
    if rank != root:
        _own(plan, chunks, in_place=False, result_to=root)
        return plan.done()
    _own(plan, chunks, in_place=True)
    for chunk in chunks:
        if chunk.owner != rank:
            plan.add(Receive(chunk.owner, 2 * chunk.number + 1, _of(0, chunk), (sent[chunk.number],)))
    return plan.done()


def reduce_scatter(*, rank: int, size: int, input_elems: Sequence[int], chunk_elems: int) -> Schedule:
    """Buffer `size` gets the reduction of every rank's buffer `rank`; buffers 0 to size - 1 are only read.

    Args:
        input_elems: elements of buffers 0 to size - 1, the same list on every rank.
    """
    plan = _Plan(rank, size)
    for peer in plan.others():
        for part, (start, stop) in enumerate(cut_chunks(0, input_elems[peer], chunk_elems)):
            plan.add(Send(peer, part, Region(peer, start, stop)))
    runs = cut_chunks(0, input_elems[rank], chunk_elems)
    window = _Window(plan, max((stop - start for start, stop in runs), default=0), len(runs))
    for part, (start, stop) in enumerate(runs):
        own = Region(rank, start, stop)
        window.reduce(part, own=own, target=Region(size, start, stop))
    return plan.done()


def broadcast(*, rank: int, size: int, root: int, elems: int, chunk_elems: int, small_elems: int) -> Schedule:
    """Everybody's buffer 0 becomes the root's.

    Large tensors: the root sends each chunk to one relay, which passes it on to the rest, so that every link carries
    about M, instead of (n-1) M on the root's.
    """
    plan = _Plan(rank, size)
    others = [(root + i) % size for i in range(1, size)]
    relayed = size > 2 and elems > small_elems
    if relayed:
        chunk_elems = min(chunk_elems, -(-elems // (size - 1)))
    for part, (start, stop) in enumerate(cut_chunks(0, elems, chunk_elems)):
        region = Region(0, start, stop)
        if not relayed:
            if rank == root:
                for peer in others:
                    plan.add(Send(peer, part, region))
            else:
                plan.add(Receive(root, part, region))
            continue
        relay = others[part % len(others)]
        if rank == root:
            plan.add(Send(relay, part, region))
        elif rank == relay:
            here = plan.add(Receive(root, part, region))
            for peer in plan.others():
                if peer != root:
                    plan.add(Send(peer, part, region, (here,)))
        else:
            plan.add(Receive(relay, part, region))
    return plan.done()


def all_to_all(
    *, rank: int, size: int, send_elems: Sequence[int], receive_elems: Sequence[int], chunk_elems: int
) -> Schedule:
    """Buffer size + i goes to rank i, and arrives in its buffer `rank`; the general form of every direct exchange.

    Args:
        send_elems: elements of buffers size to 2 size - 1; 0 for a rank that gets nothing.
        receive_elems: elements of buffers 0 to size - 1; 0 for a rank that sends nothing.
    """
    plan = _Plan(rank, size)
    if send_elems[rank]:
        plan.add(Copy(Region(size + rank, 0, send_elems[rank]), Region(rank, 0, receive_elems[rank])))
    for peer in plan.others():
        for part, (start, stop) in enumerate(cut_chunks(0, receive_elems[peer], chunk_elems)):
            plan.add(Receive(peer, part, Region(peer, start, stop)))
    runs = {peer: cut_chunks(0, send_elems[peer], chunk_elems) for peer in plan.others()}
    for part in range(max((len(run) for run in runs.values()), default=0)):
        for peer, run in runs.items():
            if part < len(run):
                plan.add(Send(peer, part, Region(size + peer, *run[part])))
    return plan.done()


def barrier(*, rank: int, size: int) -> Schedule:
    """Done when every rank has begun it: an empty message to each from each."""
    plan = _Plan(rank, size)
    for peer in plan.others():
        plan.add(Send(peer, 0, Region(SCRATCH, 0, 0)))
        plan.add(Receive(peer, 0, Region(SCRATCH, 0, 0)))
    return plan.done()


def _owners(size: int, elems: int, small_elems: int, turn: int, weights: Sequence[float]) -> Sequence[float]:
    if elems <= small_elems:
        return [1.0 if rank == turn % size else 0.0 for rank in range(size)]
    return weights or [1.0] * size


def _chunk_elems(size: int, elems: int, chunk_elems: int, small_elems: int) -> int:
    """The largest chunk that still lets sending, reducing and receiving of a shard overlap."""
    return max(min(chunk_elems, max(-(-elems // (size * PIPELINE_CHUNKS)), small_elems)), 1)


def _of(buffer: int, chunk: Chunk) -> Region:
    return Region(buffer, chunk.start, chunk.stop)


def _contribute(plan: _Plan, chunks: Sequence[Chunk]) -> dict[int, int]:
    """Send our values of every chunk to its owner; the steps by chunk number."""
    ahead = sorted(chunks, key=lambda chunk: (chunk.number // plan.size, (chunk.owner - plan.rank) % plan.size))
    return {
        chunk.number: plan.add(Send(chunk.owner, 2 * chunk.number, _of(0, chunk)))
        for chunk in ahead
        if chunk.owner != plan.rank
    }


def _own(
    plan: _Plan, chunks: Sequence[Chunk], *, in_place: bool, result_to: int | None = None
) -> list[tuple[Chunk, int]]:
    """Receive and reduce the chunks that are ours; each with the step that reduces it."""
    mine = [chunk for chunk in chunks if chunk.owner == plan.rank]
    window = _Window(plan, max((chunk.stop - chunk.start for chunk in mine), default=0), len(mine))
    reduced = []
    for chunk in mine:
        own = _of(0, chunk)
        target = own if in_place else window.result(own.elems)
        step = window.reduce(2 * chunk.number, own=own, target=target)
        if result_to is not None:
            window.busy_until(plan.add(Send(result_to, 2 * chunk.number + 1, target, (step,))))
        reduced.append((chunk, step))
    return reduced


class _Window:
    """A ring of slots in scratch memory: each has a place for every other rank's part of a chunk, and for a result."""

    def __init__(self, plan: _Plan, slot_elems: int, chunk_count: int) -> None:
        self._plan = plan
        self._slot_elems = slot_elems
        self._last_use: list[int | None] = [None] * min(WINDOW_CHUNKS, chunk_count)
        self._places = [
            {peer: plan.scratch(slot_elems) for peer in range(plan.size) if peer != plan.rank} for _ in self._last_use
        ]
        self._results: list[Region | None] = [None] * len(self._last_use)
        self._turn = 0

    def result(self, elems: int) -> Region:
        """A place for the result of the chunk that `reduce` is called for next."""
        slot = self._turn % len(self._last_use)
        place = self._results[slot]
        if place is None:
            place = self._results[slot] = self._plan.scratch(self._slot_elems)
        return Region(SCRATCH, place.start, place.start + elems)

    def reduce(self, part: int, *, own: Region, target: Region) -> int:
        """Receive `part` from everybody else into the next slot, when that is free again, and reduce it."""
        slot = self._turn % len(self._last_use)
        self._turn += 1
        last_use = self._last_use[slot]
        free = () if last_use is None else (last_use,)
        places = {
            peer: Region(SCRATCH, place.start, place.start + own.elems) for peer, place in self._places[slot].items()
        }
        arrived = tuple(self._plan.add(Receive(peer, part, place, free)) for peer, place in places.items())
        places[self._plan.rank] = own
        step = self._plan.add(Reduce(target, tuple(places[rank] for rank in range(self._plan.size)), arrived + free))
        self._last_use[slot] = step
        return step

    def busy_until(self, step: int) -> None:
        """The slot used last is also read by `step`."""
        self._last_use[(self._turn - 1) % len(self._last_use)] = step
