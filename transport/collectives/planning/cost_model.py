"""Which algorithm a collective takes on a network, and why: predicted times from a table that all ranks share. Pure.

An algorithm says what it sends between each two ranks (`traffic`). No link, of a rank or of a site, is done before what
it has to carry is through; reductions run beside, and latencies and the handling of messages come on top:

    T = max(sent_i / up_i, received_i / down_i, crossing_s / site_s, processing) + latencies + messages

This is LogGP (Alexandrov et al., 1995) with a gap per byte for each link instead of one. The rates are those that
traffic reached, so what loss and congestion control take away is in them.

In an all-reduce of a small tensor in one piece nothing overlaps, and ranks take turns. In the mean of them each link is
busy with what it sends and then with what it receives, and none is done before its owner's link has carried all of it.

The last acknowledgement is one more latency, of all candidates alike: until it comes, a large tensor is not its
caller's again. The direct algorithm stays where no other is clearly better, for links and processors are never quite
what a table says.

All ranks evaluate the same table with the same arithmetic and so take the same choice; ties go to what the registry
lists first.
"""

from __future__ import annotations

import operator
from collections.abc import Callable
from dataclasses import dataclass, replace

import numpy as np

from transport.collectives.algorithms.registry import ALGORITHMS
from transport.collectives.algorithms.traffic import Traffic, to_all
from transport.collectives.algorithms.weighted import weights_of
from transport.collectives.codecs import Codec
from transport.collectives.problem import Operation, Plan, Problem

MESSAGE_S = 120e-6
"""Of a processor for a message, sent or received, on either side; the order of what a rank in Python takes."""
REDUCE_BYTES_PER_S = 3_000_000_000
"""Input that one core reduces: numpy's float32 sum reads some 3 to 6 GB/s on machines of 2020 and later."""
CODED_BYTES_PER_S = {Codec.BFLOAT16: 8_000_000_000, Codec.INT8: 5_000_000_000, Codec.INT4: 3_000_000_000}
"""Values that one core of those machines encodes or decodes natively, with error feedback on one of the ways."""

EQUAL_PERCENT = 30
"""Links whose rates differ by no more count as equal: measured rates of equal links differ by as much."""

BETTER_PERCENT = 20
"""Less predicted time than the direct algorithm's, for another one to be taken."""

DELEGATE_SPEED = 2
"""How many times faster than what joins two sites a site's delegates exchange the same with their own site."""


@dataclass(frozen=True)
class Network:
    """What all ranks of a group hold for true of the links between them.

    Args:
        up_bits_per_s, down_bits_per_s: of each rank's link, positive.
        latency_us: one way between each two ranks, of shape (size, size), symmetric.
        sites: the site of each rank, numbered from 0 in order of their first rank.
        site_up_bits_per_s, site_down_bits_per_s: of what leads from each site to the others.
        number: of the operation from which this table holds; 0 for none that was agreed on.
    """

    up_bits_per_s: tuple[int, ...]
    down_bits_per_s: tuple[int, ...]
    latency_us: tuple[tuple[int, ...], ...]
    sites: tuple[int, ...]
    site_up_bits_per_s: tuple[int, ...]
    site_down_bits_per_s: tuple[int, ...]
    number: int = 0

    @classmethod
    def uniform(cls, size: int, *, rate_bits_per_s: int = 1_000_000_000, latency_us: int = 100) -> Network:
        """Equal links within one site: what is assumed before anything was measured."""
        return cls(
            up_bits_per_s=(rate_bits_per_s,) * size,
            down_bits_per_s=(rate_bits_per_s,) * size,
            latency_us=((latency_us,) * size,) * size,
            sites=(0,) * size,
            site_up_bits_per_s=(rate_bits_per_s * size,),
            site_down_bits_per_s=(rate_bits_per_s * size,),
        )

    @property
    def size(self) -> int:
        """How many ranks it has."""
        return len(self.up_bits_per_s)

    def explained(self) -> dict[str, object]:
        """The table as JSON has it."""
        return {
            "number": self.number,
            "up_bits_per_s": list(self.up_bits_per_s),
            "down_bits_per_s": list(self.down_bits_per_s),
            "latency_us": [list(row) for row in self.latency_us],
            "sites": list(self.sites),
            "site_up_bits_per_s": list(self.site_up_bits_per_s),
            "site_down_bits_per_s": list(self.site_down_bits_per_s),
        }


@dataclass(frozen=True)
class Candidate:
    """One way to do a collective.

    Args:
        bound: what takes longest: "link of rank 3", "link of site 0", "the owner's link", "reducing", "encoding" or
            "latency".
    """

    plan: Plan
    predicted_s: float
    bound: str


@dataclass(frozen=True)
class Choice:
    """What is done, and what else could have been.

    Args:
        taken: the candidate that is used.
        candidates: all of them, in the registry's order.
        reason: why it was taken, in words.
        network_number: of the table that it follows from.
        forced: whether a user asked for an algorithm.
        uncompressed_s: the shortest predicted time without the codec that was asked for; None where none was.
    """

    taken: Candidate
    candidates: tuple[Candidate, ...]
    reason: str
    network_number: int = 0
    forced: bool = False
    uncompressed_s: float | None = None

    def explained(self) -> dict[str, object]:
        """The choice as JSON has it."""
        return {
            "algorithm": self.taken.plan.algorithm,
            "reason": self.reason,
            "predicted_s": self.taken.predicted_s,
            "network_number": self.network_number,
            "uncompressed_s": self.uncompressed_s,
            "candidates": [
                {
                    "algorithm": one.plan.algorithm,
                    "predicted_s": one.predicted_s,
                    "bound": one.bound,
                    "weights": list(one.plan.weights),
                    "sites": list(one.plan.sites),
                    "delegates": one.plan.delegates,
                }
                for one in self.candidates
            ],
        }


def choose(problem: Problem, network: Network, *, forced: str = "") -> Choice:
    """The direct algorithm, or another one that is predicted to be clearly faster.

    Args:
        problem: any rank's; its `size` is the network's.
        forced: an algorithm to take where it can do this operation on this network; "" for the best.

    Raises:
        ValueError: problem and network differ in size.
    """
    if problem.size != network.size:
        raise ValueError(f"a network of {network.size} ranks for a collective of {problem.size}")
    candidates = tuple(
        evaluate(problem, network, plan)
        for name, algorithm in ALGORITHMS[problem.operation].items()
        if (algorithm.encodes or problem.codec is Codec.NONE) and (plan := _plan(name, problem, network))
    )
    taken = min(candidates, key=lambda one: one.predicted_s)
    reason = f"shortest predicted time, bound by {taken.bound}"
    direct = next(one for one in candidates if one.plan.algorithm == "direct")
    is_close = 100 * taken.predicted_s > (100 - BETTER_PERCENT) * direct.predicted_s
    # Between two ranks what needs fewer messages in turn is faster over every path.
    is_certain = network.size == 2 and taken.bound == "latency"
    if taken is not direct and is_close and not is_certain:
        reason = f"{taken.plan.algorithm} is not {BETTER_PERCENT} % better"
        taken = direct
    if forced:
        named = [one for one in candidates if one.plan.algorithm == forced]
        taken = named[0] if named else taken
        reason = "forced" if named else f"{forced} was asked for, but it is none of the candidates here"
    if not problem.codec:
        return Choice(taken, candidates, reason, network.number, forced=bool(forced))
    plain = choose(replace(problem, codec=Codec.NONE), network, forced=forced).taken.predicted_s
    if plain <= taken.predicted_s:
        reason += "; compression saves no time here"
    return Choice(taken, candidates, reason, network.number, forced=bool(forced), uncompressed_s=plain)


def _plan(name: str, problem: Problem, network: Network) -> Plan | None:
    """An algorithm with its parameters; None where the network gives it none that differ from the direct one's."""
    if name == "weighted":
        rates = [min(pair) for pair in zip(network.up_bits_per_s, network.down_bits_per_s, strict=True)]
        unequal = 100 * min(rates) < (100 - EQUAL_PERCENT) * max(rates)
        weights = weights_of(rates) if unequal else ()
        if problem.takes_turns and network.size > 2:  # the direct algorithm does not cut it
            weights = weights or (1,) * network.size
        return Plan(name, weights=weights) if weights else None
    if name == "two_level":  # a site's result is kept in the tensor's dtype
        if not _has_sites(network) or problem.narrow:
            return None
        return Plan(name, sites=network.sites, delegates=_delegates(network, problem))
    if name == "doubling":  # it copies what it gathers in one go, and the engine's thread sends nothing then
        gathered = sum(problem.receive_counts) or network.size * sum(problem.counts)
        return Plan(name) if gathered <= problem.chunk_elems else None
    return Plan(name)


def _has_sites(network: Network) -> bool:
    """Whether some ranks share a link to others; where each has its own, that is the rank's."""
    return 1 < len(network.site_up_bits_per_s) < network.size


def _delegates(network: Network, problem: Problem) -> int:
    """As few of each site as are `DELEGATE_SPEED` times faster than what joins the sites.

    Connections side by side share that unequally. Who is through first leaves its part idle, until others have grown.
    """
    plain, sent = problem.chunk_elems * problem.item_bytes, problem.message_bytes(problem.chunk_elems)
    needed = 1
    for site, rates in enumerate(zip(network.site_up_bits_per_s, network.site_down_bits_per_s, strict=True)):
        members = [rank for rank, where in enumerate(network.sites) if where == site]
        slowest = min(min(network.up_bits_per_s[rank], network.down_bits_per_s[rank]) for rank in members)
        inside, across = DELEGATE_SPEED * len(members) * plain * min(rates), sent * slowest
        needed = max(needed, min(-(-inside // across), len(members)))
    return needed


def evaluate(problem: Problem, network: Network, plan: Plan) -> Candidate:
    """How long a plan takes on a network, and what takes longest."""
    traffic = ALGORITHMS[problem.operation][plan.algorithm].traffic(problem, plan)
    busy_s, bound = max(_busy(traffic, network, problem.codec))
    latency_s = _latency_s(traffic, network) + traffic.messages * MESSAGE_S
    return Candidate(plan, busy_s + latency_s, bound if busy_s > latency_s else "latency")


def _busy(traffic: Traffic, network: Network, codec: Codec) -> list[tuple[float, str]]:
    """How long each link and the processor are busy."""
    reducing_s = traffic.reduced_bytes / REDUCE_BYTES_PER_S
    coding_s = traffic.coded_bytes / CODED_BYTES_PER_S[codec] if codec else 0.0
    seconds = [(reducing_s + coding_s, "encoding" if coding_s > reducing_s else "reducing")]
    size, pairs = network.size, traffic.pairs
    both: Callable[[float, float], float] = max
    if traffic.in_turns:
        both, pairs = operator.add, to_all(size, [int(pairs.sum()) // (size * max(size - 1, 1))] * size)
    one_way_s = 0.0
    sent, received = pairs.sum(axis=1).tolist(), pairs.sum(axis=0).tolist()
    for rank in range(size):
        up_s = 8 * sent[rank] / network.up_bits_per_s[rank]
        down_s = 8 * received[rank] / network.down_bits_per_s[rank]
        one_way_s += max(up_s, down_s)
        seconds.append((both(up_s, down_s), f"link of rank {rank}"))
    if traffic.in_turns:  # as the owner a link carries size / 2 times its mean, each way
        seconds.append((one_way_s / 2, "the owner's link"))
    if _has_sites(network):
        where = np.array(network.sites)
        for site, (up, down) in enumerate(zip(network.site_up_bits_per_s, network.site_down_bits_per_s, strict=True)):
            inside = where == site
            out_s = 8 * int(pairs[inside][:, ~inside].sum()) / up
            in_s = 8 * int(pairs[~inside][:, inside].sum()) / down
            seconds.append((both(out_s, in_s), f"link of site {site}"))
    return seconds


def _latency_s(traffic: Traffic, network: Network) -> float:
    """Those that follow each other, the last acknowledgement among them: the longest of all, and of a site."""
    latency_us = np.array(network.latency_us)
    where = np.array(network.sites)
    same_site = where[:, None] == where[None, :]
    np.fill_diagonal(latency_us, 0)
    longest, near = int(latency_us.max()), int(latency_us[same_site].max())
    return ((traffic.latencies + 1) * longest + traffic.near_latencies * near) / 1e6


def operation_name(operation: Operation) -> str:
    """As users write it."""
    return operation.name.lower().replace("allreduce", "all_reduce")


def problem_of(operation: str, *, nbytes: int, size: int, codec: Codec = Codec.NONE) -> Problem:
    """A collective of float32 as the command line names it: of so many bytes a rank's tensor.

    Of all-gather that is what each rank gives, of reduce-scatter what each rank gets.

    Raises:
        ValueError: there is no choice of algorithms for that operation, or it is none; or it is never compressed.
    """
    by_name = {operation_name(one): one for one in ALGORITHMS}
    if operation not in by_name:
        raise ValueError(f"{operation}: one of {', '.join(by_name)}")
    elems = -(-nbytes // 4)
    kind = by_name[operation]
    if codec and not any(one.encodes for one in ALGORITHMS[kind].values()):
        raise ValueError(f"{operation} is never compressed")
    per_rank = operation in ("all_gather", "reduce_scatter")
    return Problem(
        operation=kind,
        rank=0,
        size=size,
        item_bytes=4,
        counts=() if operation == "barrier" else (elems,) * (size if per_rank else 1),
        receive_counts=(elems,) * size if operation == "all_gather" else (),
        codec=codec,
    )
