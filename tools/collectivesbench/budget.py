"""A run's time, divided among its parts: what one of them does not use, those after it have."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from typing import TypeVar

T = TypeVar("T")


def _alike(_item: object) -> float:
    return 1.0


class Budget:
    """So many seconds from now on. Nothing is stopped in the middle: whoever begins something asks before.

    Args:
        clock: seconds on a monotonic clock.
    """

    def __init__(self, seconds: float, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._due_s = clock() + seconds

    def left_s(self) -> float:
        """Seconds until it is used up; negative after that."""
        return self._due_s - self._clock()

    def parts(self, items: Sequence[T], weigh: Callable[[T], float] = _alike) -> Iterator[tuple[T, Budget]]:
        """Each item with its part of what is left when its turn comes.

        Args:
            weigh: how much of it an item gets, beside those after it; positive.
        """
        weights = [weigh(item) for item in items]
        for place, item in enumerate(items):
            share = weights[place] / sum(weights[place:])
            yield item, Budget(share * max(self.left_s(), 0.0), self._clock)
