"""Receives from whichever rank sends first (MPI_ANY_SOURCE), and the heads that came before anybody took them."""

from __future__ import annotations

import itertools
from bisect import insort
from collections import deque
from collections.abc import Callable, Iterator

from transport.p2p.operation import P2POp


class AnySource:
    """Matches receives from any rank, in the order in which they began, with heads that nobody has posted for.

    Args:
        next_number: of the next message from a rank, by group, tag and rank. A head matches where it has that number.
    """

    def __init__(self, next_number: Callable[[str, int, int], int]) -> None:
        self._next_number = next_number
        self._heads: dict[tuple[str, int], dict[int, dict[int, int]]] = {}  # numbers by rank, each with its arrival
        self._waiting: dict[tuple[str, int], deque[P2POp]] = {}
        self._places = itertools.count()

    def __contains__(self, op: P2POp) -> bool:
        return op in self._waiting.get((op.group, op.tag), ())

    def ops(self) -> list[P2POp]:
        """The receives that wait."""
        return [op for ops in self._waiting.values() for op in ops]

    def add(self, op: P2POp) -> None:
        """A receive from any rank begins."""
        op.place = next(self._places)
        self.put_back(op)

    def put_back(self, op: P2POp) -> None:
        """One that was matched got no message: it waits again, before those that began after it."""
        insort(self._waiting.setdefault((op.group, op.tag), deque()), op, key=lambda one: one.place)

    def discard(self, op: P2POp) -> None:
        """One waits no longer."""
        if op in self:
            self._waiting[op.group, op.tag].remove(op)
            self._drop_empty(op.group, op.tag)

    def head_came(self, group: str, tag: int, rank: int, number: int) -> None:
        """A head came that nobody has posted for."""
        self._heads.setdefault((group, tag), {}).setdefault(rank, {})[number] = next(self._places)

    def head_taken(self, group: str, tag: int, rank: int, number: int) -> None:
        """A message is posted for: its head waits for nobody else."""
        heads = self._heads.get((group, tag))
        if heads is not None:
            heads.get(rank, {}).pop(number, None)
            self._drop_empty(group, tag)

    def matches(self, group: str, tag: int) -> Iterator[tuple[P2POp, int]]:
        """Receives that have a head now, each with the rank whose head came first. The caller takes each at once."""
        while ops := self._waiting.get((group, tag)):
            heads = self._heads.get((group, tag), {})
            next_of = {rank: self._next_number(group, tag, rank) for rank in heads}
            ready = {rank: heads[rank][number] for rank, number in next_of.items() if number in heads[rank]}
            if not ready:
                return
            op = ops.popleft()
            self._drop_empty(group, tag)
            yield op, min(ready, key=lambda rank: ready[rank])

    def forget(self, group: str) -> None:
        """Drop all of a group in which nothing is under way any more."""
        for name, tag in [*self._heads, *self._waiting]:
            if name == group:
                self._heads.pop((name, tag), None)
                self._waiting.pop((name, tag), None)

    def _drop_empty(self, group: str, tag: int) -> None:
        """Keep nothing of a tag that nothing waits for: programs take a new one for each step."""
        heads = self._heads.get((group, tag), {})
        for rank in [rank for rank, numbers in heads.items() if not numbers]:
            del heads[rank]
        if not heads:
            self._heads.pop((group, tag), None)
        if not self._waiting.get((group, tag)):
            self._waiting.pop((group, tag), None)
