"""DiLoCo and local SGD: members train apart, and meet once in many steps (arXiv 2311.08105).

Each member has an optimiser and data of its own. After `every` steps the members average their parameters, each
weighted by its tokens a step. The change of that average is the gradient of an outer optimiser, SGD with Nesterov
momentum, which all of them carry out alike. A member that is lost, comes or goes between two meetings changes only how
many are averaged. One whose part came too late has it count in the next meeting, and then goes on from the others'
parameters, as everybody does. A part that does not count there either stays in the model, and counts later.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import torch

from integrations.volatile.algorithm import GlobalAlgorithm, weighted, weighted_mean
from transport.volatile.steps import Committed


class DiLoCo(GlobalAlgorithm):
    """All parameters at once, while everybody waits.

    Args:
        parameters: of the model; after a meeting that this member counted in they hold the global ones.
        every: inner steps between two meetings.
        outer_rate, outer_momentum: the paper's are 0.7 and 0.9.
        quorum: with so many parts, and more than half of all, a meeting does not wait for a late one; 0 waits for all.
    """

    def __init__(
        self,
        parameters: Iterable[torch.nn.Parameter],
        *,
        every: int = 100,
        outer_rate: float = 0.7,
        outer_momentum: float = 0.9,
        quorum: int = 0,
    ) -> None:
        super().__init__(parameters, every=every, fragments=1, outer_rate=outer_rate, outer_momentum=outer_momentum)
        self.quorum = quorum
        self._learns = False  # since the last meeting that did not fail

    def _before(self, tokens: int) -> None:
        super()._before(tokens)
        self._learns = True

    def _after(self, tokens: int) -> None:
        super()._after(tokens)
        if self._inner % self.every == 0:
            self.meet()
        elif self._joined is not None and (met := self._joined.rejoin()) is not None:
            self._receive(0, keep=not met.contributed)
            self._inner = 0  # the others' round has just begun

    def meet(self, *, with_all: bool = False) -> Committed:
        """Average the parameters now, and let the outer optimiser step; `with_all` waits for late ones, too."""
        with self._unbroken():
            return self._meet(with_all=with_all)

    def _meet(self, *, with_all: bool) -> Committed:
        fragment, began = self._fragments[0], self._global[0]
        # What 16-bit parameters cannot hold of the global ones is nobody's change.
        own = fragment.read() + (began - fragment.rounded(self._held[0]))
        result = weighted(own.clone(), self._weight)
        met = self._take_over(self._group.all_reduce(result, quorum=self._quorum(with_all=with_all)), result)
        if not met.contributed and self.quorum:
            result = weighted(self._global[0] + (own - began), self._weight)  # from where the others are now
            made_up = self._group.make_up(result, quorum=self.quorum)
            if made_up is not None:
                met = self._take_over(made_up, result)
        # What is in no result stays in its model, as the paper's dropped workers go on from their own parameters.
        self._receive(0, keep=not met.contributed)
        self._learns = False
        return met

    def _take_over(self, met: Committed, result: list[torch.Tensor]) -> Committed:
        self.last = met
        if not met.applied:
            self._apply_committed(result)
        return met

    def _apply(self, result: Sequence[torch.Tensor]) -> None:
        mean = weighted_mean(result)
        self._step(mean, self._global[0] - mean)

    def _finish(self) -> None:
        """A last meeting, unless one has followed the last step: a second one at once would be momentum alone."""
        if self._learns:
            self.meet(with_all=True)
        self._end_with_means()


class LocalSGD(DiLoCo):
    """Members average their parameters after `every` steps, and that is all (arXiv 1805.09767)."""

    def __init__(self, parameters: Iterable[torch.nn.Parameter], *, every: int = 8) -> None:
        super().__init__(parameters, every=every, outer_rate=1.0, outer_momentum=0.0)
