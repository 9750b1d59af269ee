"""When a training step's burst begins, how large it will be and when the next one is due, for the broker to plan by.

A burst is a run of collectives with pauses of less than `PAUSE_S` between them, such as the buckets of one backward
pass. At its first collective it is announced with the larger of what is known of it and what the last one had, per
destination; when more comes than was announced, the difference is announced too. Pure: time comes in as an argument.
"""

from __future__ import annotations

from collections.abc import Hashable, Mapping
from dataclasses import dataclass, field

PAUSE_S = 0.05
"""Longer than the gaps between buckets of one backward pass on a slow CPU, shorter than any forward pass of note."""
DEADLINE_S_DEFAULT = 1.0
DEADLINE_S_MIN = 0.05
DEADLINE_SLACK = 1.5
"""A burst may take half as long again as the last one before the broker stops making room for it: held up a little, it
needs the room most."""
PERIOD_S_MAX = 60.0
"""Pauses longer than this (evaluation, checkpoints) say nothing of when the next burst is due."""
STEPS_BYTES_MIN = 16 * 1024
"""Barriers and scalars are no burst worth announcing."""


@dataclass(frozen=True)
class Announcement:
    """What to tell the broker; times are durations from now."""

    step: int
    bytes_by_destination: Mapping[str, int]
    deadline_s: float
    next_s: float | None


@dataclass
class BurstTracker:
    """Watches the collectives of one endpoint."""

    step: int = 0
    _open: set[Hashable] = field(default_factory=set)
    _running: bool = False
    _begun_s: float = 0.0
    _idle_since_s: float = 0.0
    _period_s: float | None = None
    _last_bytes: dict[str, int] = field(default_factory=dict)
    _last_duration_s: float | None = None
    _bytes: dict[str, int] = field(default_factory=dict)
    _announced: dict[str, int] = field(default_factory=dict)

    def begun(self, now_s: float, collective: Hashable, bytes_by_destination: Mapping[str, int]) -> Announcement | None:
        """A collective begins that will send so many bytes to each address; what to announce, if anything."""
        self._open.add(collective)
        if not self._running:
            if sum(bytes_by_destination.values()) < STEPS_BYTES_MIN:
                return None
            self._begin(now_s)
        for destination, size in bytes_by_destination.items():
            self._bytes[destination] = self._bytes.get(destination, 0) + size
        wanted = {
            destination: max(self._bytes.get(destination, 0), self._last_bytes.get(destination, 0))
            for destination in self._bytes.keys() | self._last_bytes.keys()
        }
        missing = {
            destination: size - self._announced.get(destination, 0)
            for destination, size in wanted.items()
            if size > self._announced.get(destination, 0)
        }
        if not missing:
            return None
        self._announced = wanted
        last_s = self._last_duration_s
        deadline_s = DEADLINE_S_DEFAULT if last_s is None else max(DEADLINE_SLACK * last_s, DEADLINE_S_MIN)
        next_s = None if self._period_s is None else max(self._begun_s + self._period_s - now_s, 0.0)
        return Announcement(self.step, missing, deadline_s, next_s)

    def ended(self, now_s: float, collective: Hashable) -> None:
        """A collective has ended; one that `begun` was not told of, or that has ended before, changes nothing.

        Other threads may be in `begun` meanwhile, which adds to what is open and reads nothing that is written here.
        """
        if collective in self._open:
            self._idle_since_s = now_s
            self._open.discard(collective)

    def tick(self, now_s: float) -> int | None:
        """The number of the burst that has just turned out to be over, once."""
        if not self._running or self._open or now_s < self._idle_since_s + PAUSE_S:
            return None
        self._running = False
        self._last_duration_s = self._idle_since_s - self._begun_s
        self._last_bytes = self._bytes
        return self.step

    def next_wake_s(self) -> float:
        """When `tick` may next have something to say."""
        return self._idle_since_s + PAUSE_S if self._running and not self._open else float("inf")

    def _begin(self, now_s: float) -> None:
        if self.step:
            period_s = now_s - self._begun_s
            self._period_s = period_s if period_s <= PERIOD_S_MAX else None
        self.step += 1
        self._running = True
        self._begun_s = now_s
        self._bytes = {}
        self._announced = {}
