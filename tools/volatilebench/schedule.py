"""Who is lost when, and for how long: pure."""

from __future__ import annotations

import math
import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from tools.collectivesbench.networks import Network
from tools.volatilebench.settings import Settings

KILLED, CUT, APART, GONE = "killed", "cut off", "sites apart", "gone"
SEED = 0
"""Of the times in `plan_of_each`, so that all contenders lose the same ones."""


@dataclass(frozen=True, kw_only=True)
class Outage:
    """Ranks that cannot work from one time to another, in seconds since the begin.

    Args:
        how: KILLED (SIGKILL, back as a joiner), CUT (its link), APART (the link between the sites: those at the second
            one, which then do not reach the register), GONE (SIGKILL, for good).
    """

    how: str
    ranks: tuple[int, ...]
    begin_s: float
    end_s: float


def plan(settings: Settings, network: Network) -> tuple[Outage, ...]:
    """One outage each `lost_every_s`, of another rank each time: in the middle the sites' link, the last one for good.

    One rank in eight is lost for good, and at least one.
    """
    every_s, ranks = settings.lost_every_s, network.ranks
    count = max(3, int(settings.churn_s / every_s))
    found = []
    for place in range(count):
        begin_s = every_s * (place + 0.5)
        how, away_s = (KILLED, CUT)[place % 2], settings.away_s
        lost: tuple[int, ...] = ((place + 1) % ranks,)
        if place == count // 2:
            second = tuple(rank for rank in range(ranks) if network.site_of(rank) == 1)
            how, lost, away_s = APART, second, settings.apart_s
        elif place == count - 1:
            how, away_s = GONE, math.inf
            lost = tuple((place + 1 + more) % ranks for more in range(max(1, ranks // 8)))
        found.append(Outage(how=how, ranks=lost, begin_s=begin_s, end_s=min(begin_s + away_s, settings.churn_s)))
    return tuple(found)


def plan_of_each(settings: Settings, network: Network) -> tuple[Outage, ...]:
    """Each rank is lost every `lost_every_s`, at times of its own: outages overlap, also that of the sites' link.

    Of the sites' link and of those who are lost for good (at their last time) there are as many as in `plan`.
    """
    every_s, ranks, draw = settings.lost_every_s, network.ranks, random.Random(SEED)
    apart_s = settings.churn_s / 2
    second = tuple(rank for rank in range(ranks) if network.site_of(rank) == 1)
    found = [Outage(how=APART, ranks=second, begin_s=apart_s, end_s=apart_s + settings.apart_s)]
    gone = draw.sample(range(ranks), max(1, ranks // 8))
    for rank in range(ranks):
        first_s = draw.uniform(0.0, every_s - settings.away_s)  # so the last time, too, is over in the run
        times = max(1, int(settings.churn_s / every_s))
        for place in range(times):
            begin_s, how = first_s + every_s * place, (KILLED, CUT)[(rank + place) % 2]
            end_s = begin_s + settings.away_s
            if rank in gone and place == times - 1:
                how, end_s = GONE, settings.churn_s
            found.append(Outage(how=how, ranks=(rank,), begin_s=begin_s, end_s=end_s))
    return tuple(sorted(found, key=lambda one: one.begin_s))


def live_s(outages: Sequence[Mapping[str, Any]], ranks: int, seconds: float) -> float:
    """Seconds of all ranks together in which they could work. Where outages of a rank overlap, that counts once."""
    lost_s = 0.0
    for rank in range(ranks):
        until_s = 0.0
        for one in sorted((one for one in outages if rank in one["ranks"]), key=lambda one: float(one["begin_s"])):
            lost_s += max(0.0, one["end_s"] - max(one["begin_s"], until_s))
            until_s = max(until_s, one["end_s"])
    return ranks * seconds - lost_s
