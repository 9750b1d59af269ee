"""Rates of counters over a window: what each class, job, destination and connection sent on average. Pure.

The decision smooths over half a second, because it steers by that. A promise holds over a window of a minute, so who
asks whether it is kept needs the average over that window, and whether there was more to send all the time.
"""

from __future__ import annotations

import collections
from collections.abc import Hashable, Mapping
from dataclasses import dataclass, field
from types import MappingProxyType

from msgspec import Struct


class Average(Struct, frozen=True):
    """A rate over the last `over_s` seconds; for the last `waiting_s` of them something waited at every reading."""

    bits_per_s: int
    over_s: float
    waiting_s: float = 0.0


@dataclass
class _Followed:
    points: collections.deque[tuple[float, int]] = field(default_factory=collections.deque)
    free_s: float = 0.0
    last: tuple[float, int] = (0.0, 0)


class Averages:
    """For one thread.

    Args:
        parts: points of a window that are kept for each counter; the window is exact to one part.
    """

    def __init__(self, *, parts: int) -> None:
        self._parts = parts
        self._known: dict[Hashable, _Followed] = {}
        self._next: dict[Hashable, _Followed] = {}

    def follow(self, key: Hashable, sent_bytes: int, *, window_s: float, now_s: float, waiting: bool = False) -> None:
        """Take in one reading of a cumulative counter. One that goes back begins anew.

        Args:
            key: of the counter.
            sent_bytes: what it says.
            window_s: how far back its average goes.
            now_s: when it was read.
            waiting: whether there was more to send.
        """
        entry = self._known.get(key)
        if entry is None or sent_bytes < entry.last[1]:
            entry = _Followed(free_s=now_s)
        points, now = entry.points, (now_s, sent_bytes)
        if not points or now_s - points[-1][0] >= window_s / self._parts:
            points.append(now)
        while len(points) > 1 and now_s - points[1][0] >= window_s:
            points.popleft()
        if not waiting:
            entry.free_s = now_s
        entry.last = now
        self._next[key] = entry

    def known(self) -> Mapping[Hashable, Average]:
        """The averages of what was followed since the last call; what was not is forgotten."""
        self._known, self._next = self._next, {}
        return MappingProxyType({key: made for key, entry in self._known.items() if (made := _average(entry))})


def _average(entry: _Followed) -> Average | None:
    (began_s, before), (now_s, sent) = entry.points[0], entry.last
    if now_s <= began_s:
        return None
    return Average(int(8 * (sent - before) / (now_s - began_s)), now_s - began_s, now_s - max(entry.free_s, began_s))
