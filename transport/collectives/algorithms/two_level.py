"""By site: what crosses between two sites crosses once, not once for every rank there.

In each site ranks take turns as delegates, chunk by chunk. All-reduce: a site's ranks send a chunk to its delegate,
which adds them up; the delegates of the chunk add the sites' sums up and send the result to their sites. Two sites send
each other their sums, in one latency. Of more, the sites take turns to add up, which is the direct algorithm between
sites: 2 (S-1)/S M bytes leave each of S sites, where the direct algorithm between n ranks sends up to n/S times that.

Sums of 16-bit floats are rounded once for each site and once for the result. All ranks hold the same bits.
"""

from __future__ import annotations

from transport.collectives.algorithms.direct import region_of
from transport.collectives.algorithms.messages import Messages
from transport.collectives.algorithms.sites import Parts, Sites, far_first, runs_of
from transport.collectives.algorithms.traffic import Traffic, no_pairs
from transport.collectives.algorithms.window import Window
from transport.collectives.problem import Plan, Problem
from transport.collectives.schedule import Builder, Region, Schedule

_NOTHING: tuple[int, ...] = ()


def all_reduce(problem: Problem, plan: Plan) -> Schedule:
    """Everybody gets the reduction of buffer 0 in buffer 0."""
    sites = Sites.from_plan(plan, problem.size)
    builder = Builder(problem.rank, problem.size)
    rank, here = problem.rank, sites.of[problem.rank]
    runs = runs_of(problem, sites)
    regions = [region_of(problem, 0, start, stop) for start, stop in runs]
    mine, sent = _hand_in(builder, sites, rank, regions, parts_each=4)
    chunk_bytes = max((region.nbytes for region in regions), default=0)
    mates = sites.mates(rank)
    inner = _inner_window(builder, len(mates), chunk_bytes=chunk_bytes, chunk_count=len(mine))
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
                told = messages.send(others, 4 * chunk + 1, partial, added, of=region, adopts=partial)
            _, result = outer.reduce(
                4 * chunk + 1, contributors=delegates, own=partial, target=region, after=(*added, *told)
            )
            done: tuple[int, ...] = (result,)
            if sites.count > 2:
                sent_on = messages.send(others, 4 * chunk + 2, region, done, of=region, adopts=region, finish=True)
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


def reduce(problem: Problem, plan: Plan) -> Schedule:
    """The root gets the reduction of buffer 0 in buffer 0; the others' buffers are only read.

    As all-reduce, but for where a chunk's sums go: to the root's site, of more than two sites to one after the other.
    """
    sites = Sites.from_plan(plan, problem.size)
    builder = Builder(problem.rank, problem.size)
    rank, root, here = problem.rank, problem.root, sites.of[problem.rank]
    runs = runs_of(problem, sites)
    regions = [region_of(problem, 0, start, stop) for start, stop in runs]
    mine, sent = _hand_in(builder, sites, rank, regions, parts_each=3)
    chunk_bytes = max((region.nbytes for region in regions), default=0)
    mates = sites.mates(rank)
    inner = _inner_window(builder, len(mates), chunk_bytes=chunk_bytes, chunk_count=len(mine))
    messages = Messages(builder, problem)  # between sites
    outer = Window(
        builder,
        others=sites.count - 1,
        chunk_bytes=chunk_bytes,
        chunk_count=len(mine),
        keep_results=rank != root,
        messages=messages,
    )
    for chunk in mine:
        region, delegates, home = regions[chunk], sites.delegates(chunk), _reduce_home(problem, sites, chunk)
        partial, done = region, _NOTHING
        if mates:
            members = sites.members[here]
            partial, step = inner.reduce(3 * chunk, contributors=members, own=region, target=None, finish=False)
            done = (step,)
        if home == here:
            target, step = outer.reduce(
                3 * chunk + 1,
                contributors=delegates,
                own=partial,
                target=region if rank == root else None,
                after=done,
            )
            done = (step,)
            if rank != root:
                done = _to_root(builder, messages, sites, problem, 3 * chunk + 2, target, done, of=region)
                outer.busy_until(*done)
        else:
            done = messages.send([delegates[home]], 3 * chunk + 1, partial, done, of=region)
        if mates:
            inner.busy_until(*done)
        sent[chunk] = done[0]
    if rank == root:
        for chunk, region in enumerate(regions):
            adds = sites.delegates(chunk)[_reduce_home(problem, sites, chunk)]
            if adds != rank:
                receive = builder.receive if sites.of[adds] == here else messages.receive
                receive(adds, 3 * chunk + 2, region, (sent[chunk],))
    return builder.done()


def reduce_scatter(problem: Problem, plan: Plan) -> Schedule:
    """Buffer `size` gets the reduction of every rank's buffer `rank`; buffers 0 to size - 1 are only read."""
    sites = Sites.from_plan(plan, problem.size)
    builder = Builder(problem.rank, problem.size)
    rank, here, mates = problem.rank, sites.of[problem.rank], sites.mates(problem.rank)
    parts = Parts(problem, problem.counts)
    ours = []
    for to in far_first(problem, sites):
        for number, (part, region) in enumerate(parts.of(to, buffer=to)):
            delegate = sites.delegate_for(to, here, number)
            if delegate == rank:
                ours.append((to, number, part, region))
            else:
                builder.send(delegate, part, region)
    chunk_bytes = max((region.nbytes for *_, region in ours), default=0)
    inner = _inner_window(builder, len(mates), chunk_bytes=chunk_bytes, chunk_count=len(ours))
    own_parts = parts.of(rank, buffer=rank)
    messages = Messages(builder, problem)  # between sites
    outer = Window(
        builder, others=sites.count - 1, chunk_bytes=chunk_bytes, chunk_count=len(own_parts), messages=messages
    )
    for to, number, part, region in ours:
        partial, added = region, _NOTHING
        if mates:
            members = sites.members[here]
            partial, step = inner.reduce(part, contributors=members, own=region, target=None, finish=False)
            added = (step,)
        if to == rank:
            _, target = parts.of(rank, buffer=problem.size)[number]
            delegates = [sites.delegate_for(rank, site, number) for site in range(sites.count)]
            _, step = outer.reduce(part, contributors=delegates, own=partial, target=target, after=added)
            last: tuple[int, ...] = (step,)
        else:
            last = messages.send([to], part, partial, added, of=region)
        if mates:
            inner.busy_until(*last)
    return builder.done()


def all_gather(problem: Problem, plan: Plan) -> Schedule:
    """Buffer size + rank arrives in everybody's buffer `rank`; a delegate in each other site passes it on."""
    sites = Sites.from_plan(plan, problem.size)
    builder = Builder(problem.rank, problem.size)
    messages = Messages(builder, problem)
    rank, size, here = problem.rank, problem.size, sites.of[problem.rank]
    parts = Parts(problem, problem.receive_counts)
    targets, sources = parts.of(rank, buffer=rank), parts.of(rank, buffer=size + rank)
    for number, ((part, target), (_, source)) in enumerate(zip(targets, sources, strict=True)):
        if not problem.codec:
            builder.copy(target, source)
        delegates = [sites.delegate_for(rank, site, number) for site in range(sites.count) if site != here]
        messages.send([*delegates, *sites.mates(rank)], part, source, adopts=target)
    for origin in far_first(problem, sites):
        if origin == rank:
            continue
        for number, (part, region) in enumerate(parts.of(origin, buffer=origin)):
            delegate = sites.delegate_for(origin, here, number)
            if delegate == rank:
                messages.receive(origin, part, region, pass_on=sites.mates(rank))
            else:
                messages.receive(delegate, part, region)
    return builder.done()


def broadcast(problem: Problem, plan: Plan) -> Schedule:
    """Everybody's buffer 0 becomes the root's: chunk by chunk to a delegate in each site, which passes it on."""
    sites = Sites.from_plan(plan, problem.size)
    builder = Builder(problem.rank, problem.size)
    rank, here = problem.rank, sites.of[problem.rank]
    for chunk, (start, stop) in enumerate(runs_of(problem, sites)):
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
    reduced, coded = [0] * problem.size, [0] * problem.size
    for chunk, (start, stop) in enumerate(runs_of(problem, sites)):
        nbytes = (stop - start) * problem.item_bytes
        delegates = sites.delegates(chunk)
        for site, delegate in enumerate(delegates):
            adds = sites.count == 2 or site == sites.home(chunk)
            coded[delegate] += (sites.count + 1 if adds else 2) * nbytes if sites.count > 1 else 0
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
        coded_bytes=max(coded) if problem.codec else 0,
    )


def reduce_traffic(problem: Problem, plan: Plan) -> Traffic:
    """What `reduce` sends."""
    sites = Sites.from_plan(plan, problem.size)
    pairs = no_pairs(problem.size)
    root, size = problem.root, problem.size
    reduced, coded = [0] * size, [0] * size
    for chunk, (start, stop) in enumerate(runs_of(problem, sites)):
        nbytes, encoded = (stop - start) * problem.item_bytes, problem.message_bytes(stop - start)
        delegates, home = sites.delegates(chunk), _reduce_home(problem, sites, chunk)
        adds = delegates[home]
        for site, delegate in enumerate(delegates):
            for mate in sites.mates(delegate):
                pairs[mate, delegate] += nbytes
            reduced[delegate] += len(sites.members[site]) * nbytes
            if site != home:
                pairs[delegate, adds] += encoded
                coded[delegate] += nbytes
        reduced[adds] += sites.count * nbytes
        coded[adds] += (sites.count - 1) * nbytes
        crosses = home != sites.of[root]
        if adds != root:
            pairs[adds, root] += encoded if crosses else nbytes
        for one in (adds, root) if crosses else ():
            coded[one] += nbytes
    return Traffic(
        pairs,
        latencies=1 if sites.count == 2 else 2,
        near_latencies=2 if sites.largest > 1 else 0,
        messages=2 * (sites.largest - 1) + 2 * (sites.count - 1),
        reduced_bytes=max(reduced),
        coded_bytes=max(coded) if problem.codec else 0,
    )


def reduce_scatter_traffic(problem: Problem, plan: Plan) -> Traffic:
    """What `reduce_scatter` sends."""
    sites = Sites.from_plan(plan, problem.size)
    pairs = no_pairs(problem.size)
    reduced, coded, inside = [0] * problem.size, [0] * problem.size, [0] * problem.size
    parts = Parts(problem, problem.counts)
    chunks = [(to, number, one.nbytes) for to in range(problem.size) for number, (_, one) in enumerate(parts.of(to))]
    for to, number, nbytes in chunks:
        coded[to] += (sites.count - 1) * nbytes
        for site in range(sites.count):
            delegate = sites.delegate_for(to, site, number)
            inside[delegate] += nbytes
            reduced[delegate] += len(sites.members[site]) * nbytes
            if delegate != to:
                pairs[delegate, to] += problem.message_bytes(nbytes // problem.item_bytes)
                coded[delegate] += nbytes
    for delegate, nbytes in enumerate(inside):
        pairs[sites.mates(delegate), delegate] += nbytes
    return Traffic(
        pairs,
        latencies=1,
        near_latencies=1 if sites.largest > 1 else 0,
        messages=2 * (sites.largest - 1) + 2 * (sites.count - 1),
        reduced_bytes=max(reduced),
        coded_bytes=max(coded) if problem.codec else 0,
    )


def all_gather_traffic(problem: Problem, plan: Plan) -> Traffic:
    """What `all_gather` sends."""
    sites = Sites.from_plan(plan, problem.size)
    pairs = no_pairs(problem.size)
    inside = [0] * problem.size
    counts = problem.receive_counts
    parts = Parts(problem, counts)
    chunks = [
        (rank, number, one.nbytes) for rank in range(problem.size) for number, (_, one) in enumerate(parts.of(rank))
    ]
    for origin, number, elem_bytes in chunks:
        nbytes = problem.message_bytes(elem_bytes // problem.item_bytes)
        for site in range(sites.count):
            delegate = sites.delegate_for(origin, site, number)
            if delegate != origin:
                pairs[origin, delegate] += nbytes
            inside[delegate] += nbytes
    for delegate, nbytes in enumerate(inside):
        pairs[delegate, sites.mates(delegate)] += nbytes
    return Traffic(
        pairs,
        latencies=1,
        near_latencies=1 if sites.largest > 1 else 0,
        messages=2 * (sites.largest - 1) + 2 * (sites.count - 1),
        coded_bytes=(sum(counts) + max(counts)) * problem.item_bytes if problem.codec else 0,
    )


def broadcast_traffic(problem: Problem, plan: Plan) -> Traffic:
    """What `broadcast` sends."""
    sites = Sites.from_plan(plan, problem.size)
    pairs = no_pairs(problem.size)
    for chunk, (start, stop) in enumerate(runs_of(problem, sites)):
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


def _hand_in(
    builder: Builder, sites: Sites, rank: int, regions: list[Region], *, parts_each: int
) -> tuple[list[int], dict[int, int]]:
    """Send our values of each chunk to the chunk's delegate in our site.

    Args:
        parts_each: how many numbers of parts each chunk takes; values have the first.

    Returns:
        The chunks that we are the delegate of, and the step that sends each other one.
    """
    delegates = [sites.delegates(chunk)[sites.of[rank]] for chunk in range(len(regions))]
    mine = [chunk for chunk, delegate in enumerate(delegates) if delegate == rank]
    sent = {
        chunk: builder.send(delegate, parts_each * chunk, regions[chunk])
        for chunk, delegate in enumerate(delegates)
        if delegate != rank
    }
    return mine, sent


def _inner_window(builder: Builder, mates: int, *, chunk_bytes: int, chunk_count: int) -> Window:
    """What a delegate adds up of its own site."""
    return Window(
        builder, others=mates, chunk_bytes=chunk_bytes, chunk_count=chunk_count if mates else 0, keep_results=True
    )


def _broadcast_delegates(problem: Problem, sites: Sites, chunk: int) -> list[int]:
    """Who gets a chunk from the root, in each site; in its own another one, where there is one."""
    delegates = sites.delegates(chunk)
    home = sites.of[problem.root]
    mates = sites.mates(problem.root)
    delegates[home] = mates[chunk % len(mates)] if mates else problem.root
    return delegates


def _reduce_home(problem: Problem, sites: Sites, chunk: int) -> int:
    """The site that adds up all sites' sums of a chunk for the root."""
    return sites.of[problem.root] if sites.count == 2 else sites.home(chunk)


def _to_root(
    builder: Builder,
    messages: Messages,
    sites: Sites,
    problem: Problem,
    part: int,
    result: Region,
    after: tuple[int, ...],
    *,
    of: Region,
) -> tuple[int, ...]:
    """Send a result to the root; the steps after which its place is free again."""
    if sites.of[problem.rank] == sites.of[problem.root]:
        return (builder.send(problem.root, part, result, after),)
    return messages.send([problem.root], part, result, after, of=of, finish=True)
