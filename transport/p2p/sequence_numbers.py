"""Running numbers of messages, one sequence for each key, where a number that was not used can be given back."""

from __future__ import annotations

import heapq
from collections.abc import Callable, Hashable
from dataclasses import dataclass, field
from typing import Generic, TypeVar

K = TypeVar("K", bound=Hashable)


@dataclass
class SequenceNumbers(Generic[K]):
    """Numbers from 0 on for each key. What was given back comes first again, the smallest first."""

    _next: dict[K, int] = field(default_factory=dict)
    _returned: dict[K, list[int]] = field(default_factory=dict)

    def peek(self, key: K) -> int:
        """What `take` would give."""
        returned = self._returned.get(key)
        return returned[0] if returned else self._next.get(key, 0)

    def take(self, key: K) -> int:
        """The next number."""
        returned = self._returned.get(key)
        if returned:
            number = heapq.heappop(returned)
            if not returned:
                del self._returned[key]
            return number
        number = self._next.get(key, 0)
        self._next[key] = number + 1
        return number

    def give_back(self, key: K, number: int) -> None:
        """A taken number was not used after all."""
        heapq.heappush(self._returned.setdefault(key, []), number)

    def forget(self, is_over: Callable[[K], bool]) -> None:
        """Drop the keys that are over: should one come again, it begins at 0."""
        for numbers in (self._next, self._returned):
            for key in [key for key in numbers if is_over(key)]:
                del numbers[key]

    def is_open(self, key: K, number: int) -> bool:
        """Whether a number may still be taken."""
        return number >= self._next.get(key, 0) or number in self._returned.get(key, ())
