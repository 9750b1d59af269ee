"""Streaming DiLoCo: fragments of the model are exchanged in turn, while everybody goes on training (arXiv 2501.18512).

Every `every / fragments` inner steps the next fragment's change leaves, 4 bits a value, and what that leaves out is
added to the fragment's next one. `overlap` inner steps later the members wait for the merged change, step the outer
optimiser, and move to what it gives. So a link has the time of `overlap` steps for a part of the model, where DiLoCo
stops for all of it at once. One fragment is under way at a time.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any

import torch

from hive_qos.errors import MisuseError
from integrations.volatile.algorithm import GlobalAlgorithm, weighted, weighted_mean
from transport.volatile import interrupts
from transport.volatile.steps import Committed


@dataclass(frozen=True)
class _Flight:
    """A fragment under way, and the inner step at which it is due."""

    place: int
    due: int
    ended: Future[Committed]


class StreamingDiLoCo(GlobalAlgorithm):
    """See the module. The paper's outer rate was tuned at small scale to 0.4 and kept.

    Args:
        parameters: of the model.
        every: inner steps between two exchanges of the same fragment, a multiple of the fragments.
        fragments: a number of balanced bins, or the parameters of each: `strided(model.layers, 3)`.
        overlap: inner steps that an exchange may take. The paper advises 5 at most; up to 10 cost it 0.2 %.
        alpha: how much of a member's own values it keeps when it receives: 0 takes the global ones, 1 none of them.
            With 0.5, the paper's, a small model lost 2.2 % against DiLoCo at an overlap of 1; with 0, 0.3 %.
        compression: "int4", "int8", "bfloat16" or "" for none. Small fragments are sent as they are.
        quorum: with so many parts, and more than half of all, none waits for a late one; 0 waits for all.
    """

    def __init__(
        self,
        parameters: Iterable[torch.nn.Parameter],
        *,
        every: int = 100,
        fragments: int | Iterable[Iterable[torch.nn.Parameter]] = 4,
        overlap: int = 5,
        alpha: float = 0.0,
        outer_rate: float = 0.4,
        outer_momentum: float = 0.9,
        compression: str = "int4",
        quorum: int = 0,
    ) -> None:
        super().__init__(
            parameters, every=every, fragments=fragments, outer_rate=outer_rate, outer_momentum=outer_momentum
        )
        if not 0 <= overlap <= self._interval:
            raise MisuseError(
                f"overlap is {overlap}: a fragment leaves every {self._interval} steps, and one is under way at a time"
            )
        if not 0.0 <= alpha <= 1.0:
            raise MisuseError(f"alpha is {alpha}: it is a part of 1")
        self.overlap, self.alpha, self.compression, self.quorum = overlap, alpha, compression, quorum
        self._flight: _Flight | None = None
        self._thread: ThreadPoolExecutor | None = None

    def _begin(self) -> None:
        super()._begin()
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="hive-fragments")

    def _end(self) -> None:
        """What is still under way is given up, unless it was merged already: the others go on without it."""
        if self._thread is not None:
            self._thread.shutdown()
        if self._flight is not None and self._flight.ended.exception() is None:
            self._arrive(self.alpha)  # else what is in it would count again in the next group
        self._thread = self._flight = None

    def _alike(self) -> dict[str, Any]:
        return {**super()._alike(), "compression": self.compression}

    def _under_way(self) -> Future[Committed] | None:
        flight = self._flight  # the thread that trains may receive it meanwhile
        return None if flight is None else flight.ended

    def _after(self, tokens: int) -> None:
        super()._after(tokens)
        if self._flight is not None and self._inner >= self._flight.due:
            self._arrive(self.alpha)
        if self._inner % self._interval == 0:
            self._send(self.overlap)
            if not self.overlap:
                self._arrive(self.alpha)

    def _finish(self) -> None:
        """One more exchange of each fragment, to the means."""
        if self._flight is not None:
            self._arrive(1.0)
        for _ in self._fragments:
            self._send(0, with_all=True)
            self._arrive(0.0)
        self._end_with_means()

    def _send(self, overlap: int, *, with_all: bool = False) -> None:
        group, place, quorum = self._group, self._place, self._quorum(with_all=with_all)
        fragment = self._fragments[place]
        result = weighted(fragment.rounded(self._held[place]) - fragment.read(), self._weight)

        def exchange() -> Committed:
            committed = group.all_reduce(result, quorum=quorum, compression=self.compression, feedback=place)
            if not committed.applied:
                self._apply_committed(result)
            return committed

        assert self._thread is not None
        self._flight = _Flight(place, self._inner + overlap, self._thread.submit(exchange))

    def _apply(self, result: Sequence[torch.Tensor]) -> None:
        gradient = weighted_mean(result)
        self._step(self._global[self._place] - gradient, gradient)

    def _arrive(self, alpha: float) -> None:
        """Wait for the fragment under way, and mix it into the model."""
        flight = self._flight
        assert flight is not None
        with interrupts.may_raise():  # it stays under way then
            flight.ended.exception()
        self._flight = None
        self.last = flight.ended.result()
        for place, merged in enumerate(self._global):
            if self._held[place] is merged:
                continue
            if place == flight.place and self.last.contributed:
                own = self._fragments[place].read()
                self._fragments[place].write(merged + alpha * (own - merged))
                self._held[place] = merged
            else:  # this member was late, or left behind: what it learned is part of the fragment's next exchange
                self._receive(place, keep=True)
