"""What one side notes of a flow: time, bytes and CPU seconds so far, a few hundred times at most."""

from __future__ import annotations

import time
from typing import Any

from tools.bench.programs.conversation import cpu_s, peak_bytes, reset_peak

SAMPLES_MAX = 400
"""Enough for a curve; beyond it every other one is dropped and the notes come half as often."""


class Samples:
    """Notes of one side, and its memory from the first to the last of them."""

    def __init__(self) -> None:
        self.total_bytes = 0
        self._before_bytes = reset_peak()
        self._rows: list[tuple[float, int, float]] = []
        self._every, self._skipped = 1, 0
        self._stopped_s: float | None = None
        self.note()

    def add(self, size_bytes: int) -> None:
        """So many bytes more were moved."""
        self.total_bytes += size_bytes
        self._skipped += 1
        if self._skipped >= self._every:
            self.note()

    def note(self) -> None:
        """Write down where things stand."""
        self._skipped = 0
        self._rows.append((time.monotonic(), self.total_bytes, cpu_s()))
        if len(self._rows) > SAMPLES_MAX:
            self._rows, self._every = [*self._rows[:-1:2], self._rows[-1]], self._every * 2

    def stop(self) -> None:
        """From now on no message is started; what is under way still arrives."""
        if self._stopped_s is None:
            self._stopped_s = time.monotonic()

    def result(self) -> dict[str, Any]:
        """The raw record of this side; times on the machine's monotonic clock, which both sides share."""
        if self._skipped:
            self.note()
        return {
            "samples": self._rows,
            "stopped_s": self._stopped_s,
            "memory": {"before_bytes": self._before_bytes, "peak_bytes": peak_bytes()},
        }
