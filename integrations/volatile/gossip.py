"""Who exchanges with whom, and how strongly, where members average in pairs: a ring along the shortest links. Pure.

A ring because a member of it has two neighbours, however many there are, and its exchanges cross from site to site
twice. It is the graph from which A2CiD2 gains most (arXiv 2306.08289, section 4); where averages would spread as fast
without it, in a complete graph, nothing is gained. Pairs are fixed by an event's number, so nobody has to ask.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

Edge = tuple[int, int]


@dataclass(frozen=True)
class Pace:
    """How a member and its shadow move, with one exchange of a member as the unit of time.

    Args:
        kept: of the difference between a member and its shadow, over one unit.
        pull: how much of the difference to its partner a shadow moves, in an exchange. A member moves by half of it.
    """

    kept: float
    pull: float


@dataclass(frozen=True)
class Ring:
    """Members in a circle; with fewer than four, in a line.

    Args:
        order: the ranks, each beside those that it exchanges with.
    """

    order: tuple[int, ...]

    @property
    def is_closed(self) -> bool:
        """Whether the last one exchanges with the first: a circle of three would be the complete graph."""
        return len(self.order) > 3

    @property
    def edges(self) -> tuple[Edge, ...]:
        """All pairs that exchange."""
        closing = [(self.order[-1], self.order[0])] if self.is_closed else []
        return (*zip(self.order, self.order[1:], strict=False), *closing)

    def partner(self, rank: int, event: int) -> int | None:
        """With whom a rank exchanges at an event, 0 and on; None for nobody.

        Events take turns: first the pairs that begin at even places, then those at odd ones. In a circle of an odd
        number, the last and the first have a turn of their own.
        """
        place, size = self.order.index(rank), len(self.order)
        turns = 3 if self.is_closed and size % 2 else 2
        turn = event % turns
        if turn == 2 or (turn == 1 and self.is_closed and not size % 2 and place in (0, size - 1)):
            return {0: self.order[-1], size - 1: self.order[0]}.get(place)
        other = place + 1 if place % 2 == turn else place - 1
        return self.order[other] if 0 <= other < size else None


def ring(costs: Sequence[Sequence[int]]) -> Ring:
    """The ring that takes the cheapest links first, as long as they lie in one ring (the greedy tour).

    Args:
        costs: of an exchange between each two ranks, such as microseconds, symmetric.
    """
    size = len(costs)
    paths = {rank: [rank] for rank in range(size)}  # each rank's path; the ends of a path may still be joined
    links = [(costs[one][two], one, two) for one in range(size) for two in range(one + 1, size)]
    for _, first, second in sorted(links):
        left, right = paths[first], paths[second]
        if left is right or first not in (left[0], left[-1]) or second not in (right[0], right[-1]):
            continue
        if left[-1] != first:
            left.reverse()
        if right[0] != second:
            right.reverse()
        left.extend(right)
        paths.update(dict.fromkeys(right, left))
    return Ring(tuple(paths[0]))


def pace(edges: Sequence[Edge], *, size: int) -> Pace:
    """The constants of A2CiD2 for a graph on which every member exchanges once in a unit of time.

    With the Laplacian of the exchanges' rates, c1 is 1 by its second eigenvalue, and c2 half of the largest effective
    resistance of an edge. Then each of a member and its shadow approaches the other at the rate 1 / (2 sqrt(c1 c2)),
    and the shadow's pull is sqrt(c1 / c2) / 2 (arXiv 2306.08289, section 3).
    """
    if not edges:
        return Pace(kept=1.0, pull=0.5)
    degrees = np.bincount(np.asarray(edges).reshape(-1), minlength=size)
    rate = 1.0 / float(degrees.max())  # a member of most neighbours has its turn with each of them as often
    laplacian = np.zeros((size, size))
    for one, two in edges:
        laplacian[[one, two], [one, two]] += rate
        laplacian[[one, two], [two, one]] -= rate
    spread = np.linalg.pinv(laplacian, hermitian=True)
    resistance = max(spread[one, one] + spread[two, two] - 2 * spread[one, two] for one, two in edges)
    c1, c2 = 1.0 / float(np.linalg.eigvalsh(laplacian)[1]), float(resistance) / 2.0
    return Pace(kept=math.exp(-1.0 / math.sqrt(c1 * c2)), pull=0.5 * math.sqrt(c1 / c2))
