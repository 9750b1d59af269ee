"""What each user may bring about in a second, whatever he opens: a bucket of tokens a user, for the latest users."""

from __future__ import annotations

USERS_MAX = 256
"""Users whose allowance is remembered, the latest; there are not more sessions than that."""


class UserAllowance:
    """So many at once, and so many more a second.

    Args:
        per_s: how many come back a second.
        at_once: how many there are at most.
    """

    def __init__(self, *, per_s: float, at_once: float) -> None:
        self._per_s, self._at_once = per_s, at_once
        self._left: dict[int, tuple[float, float]] = {}

    def __len__(self) -> int:
        return len(self._left)

    def take(self, uid: int, *, count: int = 1, now_s: float) -> bool:
        """Take so many of a user's, or none where he has fewer left."""
        left, as_of_s = self._left.pop(uid, (self._at_once, now_s))
        left = min(self._at_once, left + (now_s - as_of_s) * self._per_s)
        enough = left >= count
        self._left[uid] = (left - count if enough else left, now_s)
        while len(self._left) > USERS_MAX:
            del self._left[next(iter(self._left))]
        return enough
