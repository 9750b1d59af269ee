"""Measure an interface's send rate between ticks, so that a decision follows when the rate crosses a watched one.

A tick costs milliseconds; a look costs 40 µs: one file, of which two numbers change. So fifty looks a second take 0.2 %
of a core, and there are none while no decision has set a watch.

A crossing is reported at `REPORTED_LOOKS` looks, and again only after the rate has been on the other side.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass

from broker.law.bursts.detector import WINDOW_S_MIN
from broker.model.values import Watch

LOOK_S = 0.02
FRESH_S = 0.05
"""An older pace is none."""
REPORTED_LOOKS = 2
"""The decision's own counters may need the second look; what it does not see then is left to the next tick."""


@dataclass
class _Watched:
    watch: Watch
    sent_bytes: int = 0
    at_s: float | None = None
    pace_bits_per_s: int | None = None
    looks: int = 0


class RateWatch:
    """For the loop's thread.

    Args:
        sent_bytes: the counters of all interfaces.
        clock: monotonic seconds.
    """

    def __init__(self, sent_bytes: Callable[[], Mapping[str, int]], *, clock: Callable[[], float]) -> None:
        self._sent_bytes, self._clock = sent_bytes, clock
        self._watched: dict[str, _Watched] = {}
        self._next_s = float("inf")
        self.crossed = False
        """Something has crossed since `want` was called."""

    @property
    def next_s(self) -> float:
        """When to look next; never, while nobody wants it."""
        return self._next_s

    def want(self, watches: Iterable[Watch]) -> None:
        """From now on look for these, and for nothing else."""
        before, self._watched, self.crossed = self._watched, {}, False
        for watch in watches:
            entry = before.get(watch.interface) or _Watched(watch)
            entry.looks = entry.looks if entry.watch.rising is watch.rising else 0
            entry.watch = watch
            self._watched[watch.interface] = entry
        if not self._watched:
            self._next_s = float("inf")
        elif self._next_s == float("inf"):
            self._next_s = self._clock() + LOOK_S

    def look(self) -> bool:
        """Look, where it is time; whether something crosses now."""
        now_s = self._clock()
        if now_s < self._next_s:
            return False
        self._next_s = now_s + LOOK_S
        counters = self._sent_bytes()
        due = False
        for interface, entry in self._watched.items():
            sent_bytes = counters.get(interface)
            if sent_bytes is not None:
                due |= _crossed(entry, sent_bytes, now_s=now_s)
        self.crossed |= due
        return due

    def pace_bits_per_s(self, interface: str) -> int | None:
        """The send rate of the last look; None without a watch."""
        entry = self._watched.get(interface)
        if entry is None or entry.at_s is None or self._clock() - entry.at_s > FRESH_S:
            return None
        return entry.pace_bits_per_s


def _crossed(entry: _Watched, sent_bytes: int, *, now_s: float) -> bool:
    """Add a counter reading; whether to report a crossing."""
    elapsed_s = now_s - entry.at_s if entry.at_s is not None else 0.0
    if entry.at_s is not None and elapsed_s < WINDOW_S_MIN:
        return False
    known = entry.at_s is not None and sent_bytes >= entry.sent_bytes
    pace = int(8 * (sent_bytes - entry.sent_bytes) / elapsed_s) if known else None
    entry.sent_bytes, entry.at_s, entry.pace_bits_per_s = sent_bytes, now_s, pace
    if pace is None:
        return False
    crosses = (pace >= entry.watch.bits_per_s) is entry.watch.rising
    entry.looks = entry.looks + 1 if crosses else 0
    return 1 <= entry.looks <= REPORTED_LOOKS
