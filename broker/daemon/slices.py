"""Work that is too long for one tick: done in slices between ticks, and never more than a share of a core."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator


class Sliced:
    """Something that is done again and again, each time as a generator that yields where it may be interrupted.

    Args:
        work: begins one pass.
        share: of a core, at most, over a pass and the pause after it.
        interval_s_min: from the begin of one pass to the next, at least.
        slice_s: CPU time of one slice; what lies between two yields is not cut.
        cpu_clock: CPU seconds of this thread.
    """

    def __init__(
        self,
        work: Callable[[], Iterator[None]],
        *,
        share: float,
        interval_s_min: float,
        slice_s: float,
        cpu_clock: Callable[[], float] = time.thread_time,
    ) -> None:
        self._work, self._cpu_clock = work, cpu_clock
        self._share, self._interval_s_min, self._slice_s = share, interval_s_min, slice_s
        self._pass: Iterator[None] | None = None
        self._due_s = self._began_s = float("-inf")
        self._cost_s = 0.0

    def hurry(self) -> None:
        """The next pass begins now; one under way is done first."""
        self._due_s = float("-inf")

    def hasten(self, *, share: float) -> None:
        """The next pass begins as soon as this larger share of a core allows it."""
        if self._pass is None:
            self._due_s = min(self._due_s, self._began_s + self._cost_s / share)

    def wait(self, until_s: float) -> None:
        """Give up the pass under way; the next one begins no sooner."""
        self._pass, self._due_s = None, until_s

    def go(self, *, now_s: float) -> bool:
        """Do a slice, where one is due; True when a pass has ended with it. What the work raises ends its pass."""
        if self._pass is None:
            if now_s < self._due_s:
                return False
            self._pass, self._began_s, self._cost_s = self._work(), now_s, 0.0
            self._due_s = float("inf")  # until this pass has ended, or somebody is in a hurry
        before_s = self._cpu_clock()
        try:
            for _ in self._pass:
                if self._cpu_clock() - before_s >= self._slice_s:
                    return False
            self._pass = None
        except BaseException:
            self._pass = None
            raise
        finally:
            self._cost_s += self._cpu_clock() - before_s
            if self._pass is None and self._due_s == float("inf"):
                self._due_s = self._began_s + max(self._interval_s_min, self._cost_s / self._share) * EARLY
        return True


EARLY = 0.95
"""A tick comes a little early as often as late."""
