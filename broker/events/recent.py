"""The last events of the daemon's log, in memory: `hive-qos log` needs no journal, and no right to read one.

What is wrong is kept apart: however much happens as it should, it pushes no warning out.
"""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable, Mapping
from typing import Final

from msgspec import Struct

KEPT: Final = {"error": 300, "warning": 300, "info": 700, "debug": 700}
"""Events of each level: about a megabyte in all, and weeks of a quiet host."""
VALUE_MAX = 300
"""Characters of one value; the journal has the whole of a longer one."""
LEVELS: Final = ("debug", "info", "warning", "error")


class RecentEvent(Struct, frozen=True):
    """One event. `number` counts from 1 since the daemon began; `at_s` is seconds since 1970."""

    number: int
    at_s: float
    level: str
    event: str
    keys: Mapping[str, str | int | bool]


class RecentEvents:
    """For any thread.

    Args:
        wall_clock: seconds since 1970.
    """

    def __init__(self, *, wall_clock: Callable[[], float] = time.time) -> None:
        self._wall_clock, self._lock = wall_clock, threading.Lock()
        self._kept: dict[str, deque[RecentEvent]] = {level: deque(maxlen=most) for level, most in KEPT.items()}
        self._number = 0
        self.began_s = wall_clock()
        """When the first could have come, in seconds since 1970: other numbers belong to another daemon."""

    def add(self, level: str, event: str, keys: Mapping[str, object]) -> None:
        """Keep an event; the oldest of its level goes where there are too many."""
        shown = {name: value if isinstance(value, int) else str(value)[:VALUE_MAX] for name, value in keys.items()}
        with self._lock:
            self._number += 1
            self._kept[level].append(RecentEvent(self._number, self._wall_clock(), level, event, shown))

    def after(self, number: int = 0, *, since_s: float = 0.0, level: str = "debug") -> list[RecentEvent]:
        """Those with a larger number that happened since then and are at least as grave, the oldest first."""
        wanted = LEVELS[LEVELS.index(level) :]
        with self._lock:
            found = [one for name in wanted for one in self._kept[name] if one.number > number and one.at_s >= since_s]
        return sorted(found, key=lambda one: one.number)
