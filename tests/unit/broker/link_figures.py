"""What is measured of a run over a simulated link: how soon a change is followed, what people wait, what is used."""

from __future__ import annotations

import math
from bisect import bisect_left
from collections.abc import Sequence

Figures = dict[str, float]
"""By name. What ends in `_s`, `_ms` or `_most` is the better the lower it is, every other the higher."""
DRAINING, FOLLOWED, HEADROOM = 0.3, 0.85, 0.95
"""A drain is half the rate: at least so much of the link counts as followed; a rise does from 0.85 of it on."""
USED_OVER_S = 2.0
"""What is used is counted over so long, in which a drain of a tick or two does not show."""


def followed_s(
    rates: Sequence[tuple[float, float]], change_s: float, low: float, high: float, *, for_s: float
) -> float:
    """How long after a change the rate came between two bounds and stayed there for so long."""
    entered = change_s
    for at_s, rate in rates:
        if at_s <= change_s:
            continue
        if at_s - entered >= for_s:
            break
        if not low <= rate <= high:
            entered = at_s + 1e-6
    return entered - change_s


def late(echoes: Sequence[tuple[float, float]], start_s: float, end_s: float) -> float:
    """The 95th percentile of what people waited."""
    waits = sorted(wait_s for at_s, wait_s in echoes if start_s <= at_s <= end_s)
    return round(waits[int(0.95 * len(waits))], 6) if waits else math.nan


def used(carried: Sequence[tuple[float, int]], start_s: float, end_s: float, rate: float) -> float:
    """The part of a rate that the link carried."""
    crossed = [size for at_s, size in carried if start_s <= at_s <= end_s]
    return (crossed[-1] - crossed[0]) * 8 / (end_s - start_s) / rate


def used_from_s(
    carried: Sequence[tuple[float, int]], change_s: float, end_s: float, rate: float, share: float
) -> float:  # fmt: skip
    """How long after a change the link began to carry a share of its rate in every two seconds until the end."""
    points = [(at_s, size) for at_s, size in carried if change_s <= at_s <= end_s]
    times_s = [at_s for at_s, _ in points]
    from_s = change_s
    for place, (at_s, size) in enumerate(points):
        later = bisect_left(times_s, at_s + USED_OVER_S)
        if later == len(points):
            break
        if (points[later][1] - size) * 8 < share * rate * (times_s[later] - at_s):
            from_s = times_s[place + 1]
    return from_s - change_s


def egress(mbit: float) -> str:
    """The configuration of a host with one link of a rate."""
    return f'version = 1\n[[interface]]\nname = "a"\negress = "{mbit:g} Mbit/s"\n'


def shift_s(seed: int) -> float:
    """The link changes at another place of a training step with every seed."""
    return 0.13 * (seed % 7)
