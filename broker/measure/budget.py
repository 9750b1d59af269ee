"""Work that is too long for one tick: done in slices between ticks, and never more than a share of a core."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator


class CpuBudget:
    """Something that is done again and again, each time as a generator that yields where it may be interrupted.

    Args:
        work: begins one pass.
        share: of a core, at most, over a pass and the pause after it.
        interval_s_min, interval_s_max: from one pass' begin to the next, at least, and at most, whatever the share.
        slice_s: CPU time of one slice; what lies between two yields is not cut.
        cpu_clock: CPU seconds of this thread.
    """

    def __init__(
        self,
        work: Callable[[], Iterator[None]],
        *,
        share: float,
        interval_s_min: float,
        interval_s_max: float = float("inf"),
        slice_s: float,
        cpu_clock: Callable[[], float] = time.thread_time,
    ) -> None:
        self._work, self._cpu_clock = work, cpu_clock
        self._share, self._slice_s = share, slice_s
        self._interval_s_min, self._interval_s_max = interval_s_min, interval_s_max
        self._pass: Iterator[None] | None = None
        self._due_s = self._began_s = float("-inf")
        self._cost_s = 0.0

    @property
    def under_way(self) -> bool:
        """A pass has begun and not ended."""
        return self._pass is not None

    def hasten(self, *, share: float) -> None:
        """The next pass begins as soon as this larger share of a core allows it."""
        if self._pass is None:
            self._due_s = min(self._due_s, self._began_s + self._cost_s / share)

    def space(self, interval_s: float) -> None:
        """The least time from one pass' begin to the next one's, unless `hasten` is called."""
        if self._pass is None:
            self._due_s = max(self._due_s, self._began_s + interval_s * EARLY)

    def wait(self, until_s: float) -> None:
        """Give up the pass under way; the next one begins no sooner."""
        self._pass, self._due_s = None, until_s

    def go(self, *, now_s: float, slice_s: float | None = None) -> bool:
        """Do a slice, where one is due; True when a pass has ended with it. What the work raises ends its pass.

        Args:
            slice_s: another length for this one.
        """
        slice_s = self._slice_s if slice_s is None else slice_s
        if self._pass is None:
            if now_s < self._due_s:
                return False
            self._pass, self._began_s, self._cost_s = self._work(), now_s, 0.0
            self._due_s = float("inf")  # until this pass has ended
        before_s = self._cpu_clock()
        try:
            for _ in self._pass:
                if self._cpu_clock() - before_s >= slice_s:
                    return False
            self._pass = None
        except BaseException:
            self._pass = None
            raise
        finally:
            self._cost_s += self._cpu_clock() - before_s
            if self._pass is None and self._due_s == float("inf"):
                pause_s = min(self._interval_s_max, max(self._interval_s_min, self._cost_s / self._share))
                self._due_s = self._began_s + pause_s * EARLY
        return True


EARLY = 0.95
"""A tick comes a little early as often as late."""
