"""The least of a series over the last 40 s: what its samples are compared with.

Two clocks drift apart by 2 ms in that time at 50 ppm, and a queue that never empties for so long has been found by
then. It is kept as the least of each of a few parts of that time, so that its memory does not grow with the samples.
"""

from __future__ import annotations

PART_S, PARTS = 10.0, 4  # a sample is forgotten after 30 to 40 s
WINDOW_S = PARTS * PART_S

Least = tuple[tuple[float, float], ...]
"""(start, least) of each part, oldest first."""


def booked(least: Least, value: float, *, at_s: float) -> Least:
    """Take in a sample, not older than the last."""
    kept = [part for part in least if part[0] > at_s - WINDOW_S]
    if kept and at_s - kept[-1][0] < PART_S:
        kept[-1] = (kept[-1][0], min(kept[-1][1], value))
    else:
        kept.append((at_s, value))
    return tuple(kept)


def over(least: Least, value: float) -> float:
    """By how much a sample that was booked exceeds the least."""
    return value - min(lowest for _, lowest in least)
