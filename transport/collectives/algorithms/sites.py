"""Which ranks are where, who stands for whom between sites, and how tensors are cut for that. Pure arithmetic."""

from __future__ import annotations

from dataclasses import dataclass

from transport.collectives.algorithms.direct import PIPELINE_CHUNKS
from transport.collectives.partition import cut_chunks
from transport.collectives.problem import Plan, Problem
from transport.collectives.schedule import Region


@dataclass(frozen=True)
class Sites:
    """Which ranks are where.

    Args:
        of: the site of each rank.
        members: the ranks of each site, in rank order.
        standing: those of them that talk to other sites in all-reduce, reduce and broadcast.
    """

    of: tuple[int, ...]
    members: tuple[tuple[int, ...], ...]
    standing: tuple[tuple[int, ...], ...]

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
        standing = tuple(ranks[: plan.delegates or size] for ranks in members)
        return cls(plan.sites, tuple(members), standing)

    @property
    def count(self) -> int:
        """How many sites there are."""
        return len(self.members)

    @property
    def largest(self) -> int:
        """Ranks of the largest site."""
        return max(map(len, self.members))

    @property
    def turns(self) -> int:
        """How many delegates the site with most of them has."""
        return max(map(len, self.standing))

    def mates(self, rank: int) -> list[int]:
        """The other ranks of a rank's site, beginning after it."""
        members = self.members[self.of[rank]]
        place = members.index(rank)
        return [*members[place + 1 :], *members[:place]]

    def delegates(self, turn: int) -> list[int]:
        """One rank of each site, another one at the next turn; after each round others of one site meet others."""
        rounds = turn // self.turns
        return [ranks[(turn + site * rounds) % len(ranks)] for site, ranks in enumerate(self.standing)]

    def delegate_for(self, rank: int, site: int, number: int) -> int:
        """Who stands in a site for a chunk of a rank's block, another one for the next; in its own it is itself."""
        if site == self.of[rank]:
            return rank
        members = self.members[site]
        return members[(self.members[self.of[rank]].index(rank) + number) % len(members)]

    def home(self, turn: int) -> int:
        """Whose delegate adds the sites' sums up, of more than two sites."""
        return turn // self.turns % self.count


class Parts:
    """The chunks of each rank's block, numbered over all blocks, since a delegate sends those of several ranks."""

    def __init__(self, problem: Problem, counts: tuple[int, ...]) -> None:
        self._item_bytes = problem.item_bytes
        self._runs = [cut_chunks(0, count, problem.chunk_elems) for count in counts]
        self._first = [sum(map(len, self._runs[:rank])) for rank in range(len(counts))]

    def of(self, rank: int, *, buffer: int = 0) -> list[tuple[int, Region]]:
        """Part and region, in a buffer that holds that rank's block."""
        size = self._item_bytes
        return [
            (self._first[rank] + i, Region(buffer, start * size, stop * size))
            for i, (start, stop) in enumerate(self._runs[rank])
        ]


def runs_of(problem: Problem, sites: Sites) -> tuple[tuple[int, int], ...]:
    """Chunks of a tensor, enough of them that all delegates work at the same time."""
    (elems,) = problem.counts
    per_delegate = max(-(-elems // (sites.turns * PIPELINE_CHUNKS)), problem.small_elems)
    return cut_chunks(0, elems, max(min(problem.chunk_elems, per_delegate), 1))


def far_first(problem: Problem, sites: Sites) -> list[int]:
    """All ranks, those of other sites first: what crosses takes longest. Beginning after ours."""
    ahead = [(problem.rank + i) % problem.size for i in range(problem.size)]
    return sorted(ahead, key=lambda rank: sites.of[rank] == sites.of[problem.rank])
