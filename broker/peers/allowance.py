"""How often something may happen: a token bucket. No clock: times come in."""

from __future__ import annotations


class Allowance:
    """`per_s` on average, `at_once` together after a pause."""

    def __init__(self, *, per_s: float, at_once: float, now_s: float) -> None:
        self._per_s, self._at_once = per_s, at_once
        self._left, self._as_of_s = at_once, now_s

    def take(self, *, now_s: float) -> bool:
        """Take one, if there is one."""
        self._left = min(self._at_once, self._left + max(0.0, now_s - self._as_of_s) * self._per_s)
        self._as_of_s = now_s
        if self._left < 1:
            return False
        self._left -= 1
        return True
