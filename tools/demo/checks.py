"""Is it an artefact? Checks of the measurement itself, and the goals, from the raw records alone."""

from __future__ import annotations

import math
import statistics
from collections.abc import Mapping, Sequence
from itertools import combinations_with_replacement
from typing import Any

from tools.demo.figures import Counters, Record, counted, interval_of

STORAGE_ALONE_MIN = 0.9
FLOODED_MIN = 1.5
OTHER_LINK_PART_MAX = 0.05
"""Of what the flood changes: what rsync costs the processors, on whatever link, must be no more of what is shown."""
TURNS_MIN, ERROR_MAX = 6, 0.005
"""A tenth of what is allowed where the flood doubles the step, a fifth where it does least."""
BROKERED_FULL_MAX = 1.10
BROKERED_HALF_MAX = 1.20
STORAGE_SHARE_MIN = 0.90
CLEARLY_BETTER = 0.9
"""Brokered at half rate at most this part of static's step time."""


def check_figures(
    *,
    steps: Sequence[Record],
    events: Sequence[Record],
    counters: Counters,
    phases: Mapping[str, Any],
    settings: Record,
) -> list[dict[str, Any]]:
    """List the checks: name, what was found, what it has to be, whether it holds."""
    checks = []
    alone = [entry for entry in events if entry["event"] == "storage-alone"]
    if alone:
        begin_s, end_s = float(alone[-1]["begin_s"]), float(alone[-1]["end_s"])
        found = 8 * counters.storage_bytes.delta((begin_s, end_s)) / (end_s - begin_s) / settings["rate_bits_per_s"]
        checks.append(_at_least("storage alone, share of the link", found, STORAGE_ALONE_MIN))
    ratio = phases.get("flooded", {}).get("full", {}).get("step_median_of_idle")
    if ratio is not None:
        checks.append(_at_least("flooded step, of idle", ratio, FLOODED_MIN))
    idle = counted(steps, kind="check", condition="idle", half="full")
    other = counted(steps, kind="check", condition="other-link", half="full")
    if idle and other:
        turns = changes((step_medians_s(idle), step_medians_s(other)))
        most = OTHER_LINK_PART_MAX * (max(ratio or FLOODED_MIN, FLOODED_MIN) - 1)
        entry = _at_most("rsync over another link changes the step by", abs(middle(turns)), most)
        checks.append({**entry, "turns": turns, **({"error": error(turns)} if len(turns) > 1 else {})})
        if counters.other_link_bytes is not None:
            intervals = [interval_of(block) for block in other]
            seconds = sum(end_s - begin_s for begin_s, end_s in intervals)
            moved = sum(counters.other_link_bytes.delta(interval) for interval in intervals)
            share = 8 * moved / seconds / settings["rate_bits_per_s"]
            checks.append(_at_least("that rsync's share of its link", share, STORAGE_ALONE_MIN))
    return checks


def goal_figures(
    phases: Mapping[str, Any], *, loss: Mapping[str, float], weights_identical: bool
) -> list[dict[str, Any]]:
    """List what the demonstration must show, for the phases that it had."""
    goals = []
    brokered, static = phases.get("brokered", {}), phases.get("static", {})
    for half, limit in (("full", BROKERED_FULL_MAX), ("half", BROKERED_HALF_MAX)):
        ratio = brokered.get(half, {}).get("step_median_of_idle")
        if ratio is not None:
            goals.append(_at_most(f"brokered step, of idle, {half} rate", ratio, limit))
    if brokered.get("full", {}).get("steps"):
        share = brokered["full"]["storage_share_of_leftover"]
        goals.append(
            _at_least("storage's share of what training leaves, brokered, full rate", share, STORAGE_SHARE_MIN)
        )
    if brokered.get("half", {}).get("steps") and static.get("half", {}).get("steps"):
        better = brokered["half"]["step_s"]["median"] / static["half"]["step_s"]["median"]
        goals.append(_at_most("brokered step, of static, half rate", better, CLEARLY_BETTER))
    if loss:
        goals.append(_at_most("last loss, of the first", loss["last"] / loss["first"], 0.95))
    goals.append(_at_least("weights identical on both hosts", float(weights_identical), 1.0))
    return goals


def step_medians_s(blocks: Sequence[Sequence[Record]]) -> list[float]:
    """The median step of each block."""
    return [statistics.median(float(step["step_s"]) for step in block) for block in blocks]


def changes(turns: tuple[Sequence[float], Sequence[float]]) -> list[float]:
    """By what part each turn's step with the other link's rsync is longer than the same turn's without.

    The machine's own speed changes by some percent within a minute, so neighbours are compared.
    """
    return [with_it / without - 1 for without, with_it in zip(*turns, strict=False)]


def middle(values: Sequence[float]) -> float:
    """The median of the means of every two values, each with itself, too (Hodges and Lehmann, 1963): nearly as precise
    as the mean, and one disturbed turn moves it little."""
    return statistics.median((first + second) / 2 for first, second in combinations_with_replacement(values, 2))


def error(values: Sequence[float]) -> float:
    """The standard error of their mean; infinite while there is but one."""
    return statistics.stdev(values) / math.sqrt(len(values)) if len(values) > 1 else math.inf


def known(values: Sequence[float]) -> bool:
    """Whether there were turns enough. What they say has no part in that, or one would stop where it pleases."""
    return len(values) >= TURNS_MIN and error(values) <= ERROR_MAX


def _at_least(name: str, value: float, limit: float) -> dict[str, Any]:
    return {"name": name, "value": value, "at_least": limit, "passed": value >= limit}


def _at_most(name: str, value: float, limit: float) -> dict[str, Any]:
    return {"name": name, "value": value, "at_most": limit, "passed": value <= limit}
