"""By site: what crosses between two sites crosses once, not once for every rank there.

In each site the ranks take turns as delegates, chunk by chunk. All-reduce: a site's ranks send a chunk to its delegate,
which adds them up; the delegates of the chunk add the sites' sums up and send the result to their sites. Two sites send
each other their sums, in one latency. Of more, the sites take turns to add up, which is the direct algorithm between
sites: 2 (S-1)/S M bytes leave each of S sites, where the direct algorithm between n ranks sends up to n/S times that.

Sums of 16-bit floats are rounded once for each site and once for the result. All ranks hold the same bits.
"""

from __future__ import annotations

from dataclasses import dataclass

from transport.collectives.algorithms.direct import PIPELINE_CHUNKS, region_of
from transport.collectives.algorithms.messages import Messages
from transport.collectives.algorithms.traffic import Traffic, no_pairs
from transport.collectives.algorithms.window import Window
from transport.collectives.partition import cut_chunks
from transport.collectives.problem import Plan, Problem
from transport.collectives.schedule import Builder, Region, Schedule

_NOTHING: tuple[int, ...] = ()


@dataclass(frozen=True)
class Sites:
    """Which ranks are where.

    Args:
        of: the site of each rank.
        members: the ranks of each site, in rank order.
    """

    of: tuple[int, ...]
    members: tuple[tuple[int, ...], ...]

    @classmethod
    def from_plan(cls, plan: Plan, size: int) -> Sites:
        """The sites of a plan.

        Raises:
            ValueError: it does not name one for each rank, or leaves a number out.
        """
        members = [
            tuple(rank for rank, site in enumerate(plan.sites) if site == one) for one in range(len(set(plan.sites)))
        ]
        if len(plan.sites) != size or not all(members):
            raise ValueError(f"the sites of {size} ranks are numbers from 0 without a gap, not {plan.sites}")
        return cls(plan.sites, tuple(members))

    @property
    def count(self) -> int:
        """How many sites there are."""
        return len(self.members)

    @property
    def largest(self) -> int:
        """Ranks of the largest site."""
        return max(map(len, self.members))

    def mates(self, rank: int) -> list[int]:
        """The other ranks of a rank's site, beginning after it."""
        members = self.members[self.of[rank]]
        place = members.index(rank)
        return [*members[place + 1 :], *members[:place]]

    def delegates(self, turn: int) -> list[int]:
        """One rank of each site, another one at the next turn."""
        return [members[turn % len(members)] for members in self.members]

    def delegate_for(self, rank: int, site: int) -> int:
        """Who stands for a rank in a site; in its own it is itself."""
        members = self.members[site]
        return members[self.members[self.of[rank]].index(rank) % len(members)]

    def home(self, turn: int) -> int:
        """Whose delegate adds the sites' sums up, of more than two sites."""
        return turn // self.largest % self.count


def all_reduce(problem: Problem, plan: Plan) -> Schedule:
    """Everybody gets the reduction of buffer 0 in buffer 0."""
    sites = Sites.from_plan(plan, problem.size)
    builder = Builder(problem.rank, problem.size)
    rank, here = problem.rank, sites.of[problem.rank]
    runs = _runs(problem, sites)
    regions = [region_of(problem, 0, start, stop) for start, stop in runs]
    mine = [chunk for chunk in range(len(runs)) if sites.delegates(chunk)[here] == rank]
    sent = {
        chunk: builder.send(sites.delegates(chunk)[here], 4 * chunk, regions[chunk])
        for chunk in range(len(runs))
        if chunk not in set(mine)
    }
    chunk_bytes = max((region.nbytes for region in regions), default=0)
    mates = sites.mates(rank)
    inner = Window(
        builder, others=len(mates), chunk_bytes=chunk_bytes, chunk_count=len(mine) if mates else 0, keep_results=True
    )
    messages = Messages(builder, problem)  # between sites
    outer = Window(builder, others=sites.count - 1, chunk_bytes=chunk_bytes, chunk_count=len(mine), messages=messages)
    for chunk in mine:
        region, delegates, home = regions[chunk], sites.delegates(chunk), sites.home(chunk)
        partial, added = region, _NOTHING
        if mates:
            members = sites.members[here]
            partial, step = inner.reduce(4 * chunk, contributors=members, own=region, target=None, finish=False)
            added = (step,)
        others = [delegate for delegate in delegates if delegate != rank]
        if sites.count == 2 or home == here:
            # The result may go where the partial sum is, or our values: what reads them has to be done before.
            told = _NOTHING
            if sites.count == 2:
                told = messages.send(others, 4 * chunk + 1, partial, added, of=region, adopts=True)
            _, result = outer.reduce(
                4 * chunk + 1, contributors=delegates, own=partial, target=region, after=(*added, *told)
            )
            done: tuple[int, ...] = (result,)
            if sites.count > 2:
                sent_on = messages.send(others, 4 * chunk + 2, region, done, of=region, adopts=True)
                done = sent_on if problem.codec else done
        else:
            told = messages.send([delegates[home]], 4 * chunk + 1, partial, added, of=region)
            done = (messages.receive(delegates[home], 4 * chunk + 2, region, told),)
        if mates:
            inner.busy_until(*told, *done)
        for mate in mates:
            builder.send(mate, 4 * chunk + 3, region, done)
    for chunk, ours in sent.items():
        builder.receive(sites.delegates(chunk)[here], 4 * chunk + 3, regions[chunk], (ours,))
    return builder.done()


def reduce_scatter(problem: Problem, plan: Plan) -> Schedule:
    """Buffer `size` gets the reduction of every rank's buffer `rank`; buffers 0 to size - 1 are only read."""
    sites = Sites.from_plan(plan, problem.size)
    builder = Builder(problem.rank, problem.size)
    rank, here, mates = problem.rank, sites.of[problem.rank], sites.mates(problem.rank)
    parts = _Parts(problem, problem.counts)
    ours = [to for to in range(problem.size) if sites.delegate_for(to, here) == rank]
    for to in _far_first(problem, sites):
        if to not in ours:
            for part, region in parts.of(to, buffer=to):
                builder.send(sites.delegate_for(to, here), part, region)
    chunk_bytes = max((region.nbytes for to in ours for _, region in parts.of(to, buffer=to)), default=0)
    chunk_count = sum(len(parts.of(to, buffer=to)) for to in ours)
    inner = Window(
        builder, others=len(mates), chunk_bytes=chunk_bytes, chunk_count=chunk_count if mates else 0, keep_results=True
    )
    own_parts = parts.of(rank, buffer=rank)
    outer = Window(builder, others=sites.count - 1, chunk_bytes=chunk_bytes, chunk_count=len(own_parts))
    for to in [*(to for to in ours if to != rank), rank]:
        for number, (part, region) in enumerate(parts.of(to, buffer=to)):
            partial, added = region, _NOTHING
            if mates:
                members = sites.members[here]
                partial, step = inner.reduce(part, contributors=members, own=region, target=None, finish=False)
                added = (step,)
            if to == rank:
                _, target = parts.of(rank, buffer=problem.size)[number]
                delegates = [sites.delegate_for(rank, site) for site in range(sites.count)]
                _, last = outer.reduce(part, contributors=delegates, own=partial, target=target, after=added)
            else:
                last = builder.send(to, part, partial, added)
            if mates:
                inner.busy_until(last)
    return builder.done()


def all_gather(problem: Problem, plan: Plan) -> Schedule:
    """Buffer size + rank arrives in everybody's buffer `rank`; a delegate in each other site passes it on."""
    sites = Sites.from_plan(plan, problem.size)
    builder = Builder(problem.rank, problem.size)
    rank, size, here = problem.rank, problem.size, sites.of[problem.rank]
    parts = _Parts(problem, problem.receive_counts)
    own = parts.of(rank, buffer=size + rank)
    for (_, target), (_, source) in zip(parts.of(rank, buffer=rank), own, strict=True):
        builder.copy(target, source)
    delegates = [sites.delegate_for(rank, site) for site in range(sites.count) if site != here]
    for part, region in own:
        for peer in (*delegates, *sites.mates(rank)):
            builder.send(peer, part, region)
    for origin in _far_first(problem, sites):
        if origin == rank:
            continue
        delegate = origin if sites.of[origin] == here else sites.delegate_for(origin, here)
        for part, region in parts.of(origin, buffer=origin):
            if delegate != rank:
                builder.receive(delegate, part, region)
                continue
            arrived = builder.receive(origin, part, region)
            for mate in sites.mates(rank):
                builder.send(mate, part, region, (arrived,))
    return builder.done()


def broadcast(problem: Problem, plan: Plan) -> Schedule:
    """Everybody's buffer 0 becomes the root's: chunk by chunk to a delegate in each site, which passes it on."""
    sites = Sites.from_plan(plan, problem.size)
    builder = Builder(problem.rank, problem.size)
    rank, here = problem.rank, sites.of[problem.rank]
    for chunk, (start, stop) in enumerate(_runs(problem, sites)):
        region = region_of(problem, 0, start, stop)
        delegates = _broadcast_delegates(problem, sites, chunk)
        if rank == problem.root:
            for peer in delegates:
                if peer != rank:
                    builder.send(peer, chunk, region)
            continue
        if rank != delegates[here]:
            builder.receive(delegates[here], chunk, region)
            continue
        arrived = builder.receive(problem.root, chunk, region)
        for mate in sites.mates(rank):
            if mate != problem.root:
                builder.send(mate, chunk, region, (arrived,))
    return builder.done()


def all_reduce_traffic(problem: Problem, plan: Plan) -> Traffic:
    """What `all_reduce` sends."""
    sites = Sites.from_plan(plan, problem.size)
    pairs = no_pairs(problem.size)
    reduced = [0] * problem.size
    for chunk, (start, stop) in enumerate(_runs(problem, sites)):
        nbytes = (stop - start) * problem.item_bytes
        delegates = sites.delegates(chunk)
        for delegate in delegates:
            for mate in sites.mates(delegate):
                pairs[mate, delegate] += nbytes
                pairs[delegate, mate] += nbytes
            reduced[delegate] += (len(sites.mates(delegate)) + sites.count) * nbytes
            for other in delegates:
                home = delegates[sites.home(chunk)]
                if other != delegate and (sites.count == 2 or home in (delegate, other)):
                    pairs[delegate, other] += problem.message_bytes(stop - start)
    inner = 2 if sites.largest > 1 else 0
    return Traffic(
        pairs,
        latencies=1 if sites.count == 2 else 2,
        near_latencies=inner,
        messages=inner * (sites.largest - 1) + 2 * (sites.count - 1),
        reduced_bytes=max(reduced),
    )


def reduce_scatter_traffic(problem: Problem, plan: Plan) -> Traffic:
    """What `reduce_scatter` sends."""
    sites = Sites.from_plan(plan, problem.size)
    pairs = no_pairs(problem.size)
    reduced = [0] * problem.size
    for to, count in enumerate(problem.counts):
        for site in range(sites.count):
            delegate = sites.delegate_for(to, site)
            for mate in sites.mates(delegate):
                pairs[mate, delegate] += count * problem.item_bytes
            reduced[delegate] += len(sites.members[site]) * count * problem.item_bytes
            if delegate != to:
                pairs[delegate, to] += count * problem.item_bytes
    return Traffic(
        pairs,
        latencies=1,
        near_latencies=1 if sites.largest > 1 else 0,
        messages=2 * (sites.largest - 1) + 2 * (sites.count - 1),
        reduced_bytes=max(reduced),
    )


def all_gather_traffic(problem: Problem, plan: Plan) -> Traffic:
    """What `all_gather` sends."""
    sites = Sites.from_plan(plan, problem.size)
    pairs = no_pairs(problem.size)
    for origin, count in enumerate(problem.receive_counts):
        for site in range(sites.count):
            delegate = sites.delegate_for(origin, site)
            if delegate != origin:
                pairs[origin, delegate] += count * problem.item_bytes
            for mate in sites.mates(delegate):
                pairs[delegate, mate] += count * problem.item_bytes
    return Traffic(
        pairs,
        latencies=1,
        near_latencies=1 if sites.largest > 1 else 0,
        messages=2 * (sites.largest - 1) + 2 * (sites.count - 1),
    )


def broadcast_traffic(problem: Problem, plan: Plan) -> Traffic:
    """What `broadcast` sends."""
    sites = Sites.from_plan(plan, problem.size)
    pairs = no_pairs(problem.size)
    for chunk, (start, stop) in enumerate(_runs(problem, sites)):
        for delegate in _broadcast_delegates(problem, sites, chunk):
            if delegate != problem.root:
                pairs[problem.root, delegate] += (stop - start) * problem.item_bytes
                for mate in sites.mates(delegate):
                    if mate != problem.root:
                        pairs[delegate, mate] += (stop - start) * problem.item_bytes
    return Traffic(
        pairs,
        latencies=1,
        near_latencies=1 if sites.largest > 1 else 0,
        messages=sites.count + sites.largest - 1,
    )


class _Parts:
    """The chunks of each rank's block, numbered over all blocks, since a delegate sends those of several ranks."""

    def __init__(self, problem: Problem, counts: tuple[int, ...]) -> None:
        self._item_bytes = problem.item_bytes
        self._runs = [cut_chunks(0, count, problem.chunk_elems) for count in counts]
        self._first = [sum(map(len, self._runs[:rank])) for rank in range(len(counts))]

    def of(self, rank: int, *, buffer: int) -> list[tuple[int, Region]]:
        """Part and region, in a buffer that holds that rank's block."""
        size = self._item_bytes
        return [
            (self._first[rank] + i, Region(buffer, start * size, stop * size))
            for i, (start, stop) in enumerate(self._runs[rank])
        ]


def _runs(problem: Problem, sites: Sites) -> tuple[tuple[int, int], ...]:
    """Chunks of a tensor, enough of them that all delegates work at the same time."""
    (elems,) = problem.counts
    per_delegate = max(-(-elems // (sites.largest * PIPELINE_CHUNKS)), problem.small_elems)
    return cut_chunks(0, elems, max(min(problem.chunk_elems, per_delegate), 1))


def _far_first(problem: Problem, sites: Sites) -> list[int]:
    """All ranks, those of other sites first: what crosses takes longest. Beginning after ours."""
    ahead = [(problem.rank + i) % problem.size for i in range(problem.size)]
    return sorted(ahead, key=lambda rank: sites.of[rank] == sites.of[problem.rank])


def _broadcast_delegates(problem: Problem, sites: Sites, chunk: int) -> list[int]:
    """Who gets a chunk from the root, in each site; in its own another one, where there is one."""
    delegates = sites.delegates(chunk)
    home = sites.of[problem.root]
    mates = sites.mates(problem.root)
    delegates[home] = mates[chunk % len(mates)] if mates else problem.root
    return delegates
