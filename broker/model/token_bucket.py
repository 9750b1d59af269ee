"""How often something may happen: token buckets. No clock: times come in."""

from __future__ import annotations

from collections.abc import Hashable
from typing import Generic, TypeVar

Key = TypeVar("Key", bound=Hashable)


class TokenBucket:
    """`per_s` on average, `at_once` together after a pause."""

    def __init__(self, *, per_s: float, at_once: float, now_s: float) -> None:
        self._per_s, self._at_once = per_s, at_once
        self._left, self._as_of_s = at_once, now_s

    def take(self, *, count: int = 1, now_s: float) -> bool:
        """Take so many, or none where fewer are left."""
        self._refill(now_s)
        if self._left < count:
            return False
        self._left -= count
        return True

    def charge(self, *, count: int, now_s: float) -> float:
        """Take so many, on credit where fewer are left; return the seconds until that debt is paid."""
        self._refill(now_s)
        self._left -= count
        return max(0.0, -self._left / self._per_s)

    def wait_s(self) -> float:
        """How long until there is one to take, as of the last `take`."""
        return max(0.0, (1 - self._left) / self._per_s)

    def _refill(self, now_s: float) -> None:
        self._left = min(self._at_once, self._left + max(0.0, now_s - self._as_of_s) * self._per_s)
        self._as_of_s = now_s


class TokenBuckets(Generic[Key]):
    """An allowance for each of many: users, peers. Whose last use is longest ago is forgotten beyond `remembered`."""

    def __init__(self, *, per_s: float, at_once: float, remembered: int) -> None:
        self._per_s, self._at_once, self._remembered = per_s, at_once, remembered
        self._each: dict[Key, TokenBucket] = {}

    def __len__(self) -> int:
        return len(self._each)

    def take(self, key: Key, *, count: int = 1, now_s: float) -> bool:
        """Take so many of one's own, or none where fewer are left."""
        return self._own(key, now_s).take(count=count, now_s=now_s)

    def charge(self, key: Key, *, count: int, now_s: float) -> float:
        """Take so many of one's own, on credit where fewer are left; return the seconds until that debt is paid."""
        return self._own(key, now_s).charge(count=count, now_s=now_s)

    def _own(self, key: Key, now_s: float) -> TokenBucket:
        own = self._each.pop(key, None) or TokenBucket(per_s=self._per_s, at_once=self._at_once, now_s=now_s)
        self._each[key] = own
        while len(self._each) > self._remembered:
            del self._each[next(iter(self._each))]
        return own
