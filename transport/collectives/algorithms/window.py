"""The owner's half of a reduction: receive a chunk from every other contributor, reduce, and use the memory again."""

from __future__ import annotations

from collections.abc import Sequence

from transport.collectives.algorithms.messages import Messages
from transport.collectives.schedule import Builder, Region

WINDOW_CHUNKS = 8
"""Chunks that an owner receives at once. 8 of 512 KiB from every other rank hold 100 ms of a 320 Mbit/s link."""


class Window:
    """A ring of slots in scratch memory: each has places for the other contributors' parts of a chunk.

    Args:
        others: contributors at most, beside the builder's own rank.
        chunk_bytes: of the longest chunk.
        chunk_count: of all that are to come.
        keep_results: give each slot a place for a result, too.
        messages: how the contributions come; None: as they are.
    """

    def __init__(
        self,
        builder: Builder,
        *,
        others: int,
        chunk_bytes: int,
        chunk_count: int,
        keep_results: bool = False,
        messages: Messages | None = None,
    ) -> None:
        self._builder = builder
        self._messages = messages
        slots = range(min(WINDOW_CHUNKS, chunk_count))
        self._places = [[builder.scratch(chunk_bytes) for _ in range(others)] for _ in slots]
        self._encoded = [
            [None if messages is None else messages.place(chunk_bytes) for _ in range(others)] for _ in slots
        ]
        self._results = [builder.scratch(chunk_bytes) for _ in slots] if keep_results else []
        self._last_use: list[tuple[int, ...]] = [() for _ in slots]
        self._turn = 0

    def reduce(
        self,
        part: int,
        *,
        contributors: Sequence[int],
        own: Region,
        target: Region | None,
        finish: bool = True,
        after: Sequence[int] = (),
    ) -> tuple[Region, int]:
        """Receive `part` from the others into the next slot, when that is free again, and reduce it.

        Args:
            contributors: ranks in the order of reducing; the builder's own is one of them.
            own: this rank's values.
            target: where the result goes; None: into the slot.
            finish: whether the result is final.
            after: further steps that the reduction waits for.

        Returns:
            Where the result is, and the step that puts it there.
        """
        slot = self._turn % len(self._places)
        self._turn += 1
        free = self._last_use[slot]
        places = zip(self._places[slot], self._encoded[slot], strict=True)
        sources, arrived = [], []
        for rank in contributors:
            if rank == self._builder.rank:
                sources.append(own)
                continue
            place, encoded = next(places)
            place = _first(place, own.nbytes)
            if self._messages is None:
                arrived.append(self._builder.receive(rank, part, place, free))
            else:
                arrived.append(self._messages.receive(rank, part, place, free, place=encoded))
            sources.append(place)
        target = _first(self._results[slot], own.nbytes) if target is None else target
        step = self._builder.reduce(target, sources, (*arrived, *free, *after), finish=finish)
        self._last_use[slot] = (step,)
        return target, step

    def busy_until(self, *steps: int) -> None:
        """The slot used last is also read by these."""
        slot = (self._turn - 1) % len(self._places)
        self._last_use[slot] = (*self._last_use[slot], *steps)


def _first(place: Region, nbytes: int) -> Region:
    return place._replace(stop=place.start + nbytes)
