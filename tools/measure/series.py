"""Counters over time, and percentiles: pure arithmetic on raw samples."""

from __future__ import annotations

import bisect
import math
from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True)
class Series:
    """A counter over time; times rise strictly."""

    times_s: tuple[float, ...]
    values: tuple[float, ...]

    def at(self, t_s: float) -> float:
        """Interpolate linearly; outside the samples the nearest one holds, without any it is 0."""
        if not self.times_s:
            return 0.0
        index = bisect.bisect_right(self.times_s, t_s)
        if index == 0:
            return self.values[0]
        if index == len(self.times_s):
            return self.values[-1]
        before_s, after_s = self.times_s[index - 1], self.times_s[index]
        before, after = self.values[index - 1], self.values[index]
        return before + (after - before) * (t_s - before_s) / (after_s - before_s)

    def delta(self, interval: tuple[float, float]) -> float:
        """How much it grew in an interval."""
        return self.at(interval[1]) - self.at(interval[0])


def percentile(values: Sequence[float], fraction: float) -> float:
    """Interpolated percentile (type 7, as numpy's default); `values` need not be sorted, but not empty."""
    ordered = sorted(values)
    place = (len(ordered) - 1) * fraction
    low = math.floor(place)
    high = min(low + 1, len(ordered) - 1)
    return ordered[low] + (ordered[high] - ordered[low]) * (place - low)
