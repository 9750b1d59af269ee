"""Who is lost when, and for how long: pure."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from tools.collectivesbench.networks import Network
from tools.volatilebench.settings import Settings

KILLED, CUT, APART, GONE = "killed", "cut off", "sites apart", "gone"


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


def live_s(outages: Sequence[Mapping[str, Any]], ranks: int, seconds: float) -> float:
    """Seconds of all ranks together in which they could work."""
    lost_s = sum(len(one["ranks"]) * float(one["end_s"] - one["begin_s"]) for one in outages)
    return ranks * seconds - lost_s
