"""What a run must show: that the flood harms training at all, and what hive-qos has to reach."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

FLOODED_MIN = 1.5
"""Where the flood lengthens the step by less, the link is not what training waits for, and nothing can be shown."""
BROKERED_FULL_MAX = 1.10
BROKERED_HALF_MAX = 1.20
STORAGE_SHARE_MIN = 0.90
CLEARLY_BETTER = 0.9
"""Brokered at half rate at most this part of static's step time."""


def check_figures(phases: Mapping[str, Any], *, weights_identical: bool) -> list[dict[str, Any]]:
    """List what has to hold before the other figures mean anything: name, what was found, limit, whether it holds."""
    checks = [_at_least("weights identical on both hosts", float(weights_identical), 1.0)]
    ratio = phases.get("flooded", {}).get("full", {}).get("step_median_of_idle")
    if ratio is not None:
        checks.append(_at_least("flooded step, of idle", ratio, FLOODED_MIN))
    return checks


def goal_figures(
    phases: Mapping[str, Any], *, loss: Mapping[str, float], rate_bits_per_s: int, storage_guarantee: float
) -> list[dict[str, Any]]:
    """List what hive-qos has to reach, for the phases that there were.

    Args:
        rate_bits_per_s: of the link, at its full rate.
        storage_guarantee: part of the link that is promised to storage; 0 for no promise.
    """
    goals = []
    brokered, static = phases.get("brokered", {}), phases.get("static", {})
    halves = [(half, brokered[half]) for half in ("full", "half") if brokered.get(half, {}).get("steps")]
    for half, figures in halves:
        ratio = figures.get("step_median_of_idle")
        if ratio is not None:
            limit = BROKERED_FULL_MAX if half == "full" else BROKERED_HALF_MAX
            goals.append(_at_most(f"brokered step, of idle, {half} rate", ratio, limit))
    for half, figures in halves:
        if storage_guarantee > 0:
            promised = storage_guarantee * rate_bits_per_s * (1.0 if half == "full" else 0.5)
            kept = figures["storage_bits_per_s_min"] / promised
            goals.append(_at_least(f"storage's worst round, of its guarantee, {half} rate", kept, 1.0))
    if brokered.get("full", {}).get("steps"):
        share = brokered["full"]["storage_share_of_leftover"]
        goals.append(_at_least("storage, of what training leaves, full rate", share, STORAGE_SHARE_MIN))
    if brokered.get("half", {}).get("steps") and static.get("half", {}).get("steps"):
        better = brokered["half"]["step_s"]["median"] / static["half"]["step_s"]["median"]
        goals.append(_at_most("brokered step, of static, half rate", better, CLEARLY_BETTER))
    if loss:
        goals.append(_at_most("last loss, of the first", loss["last"] / loss["first"], 0.95))
    return goals


def _at_least(name: str, value: float, limit: float) -> dict[str, Any]:
    return {"name": name, "value": value, "at_least": limit, "passed": value >= limit}


def _at_most(name: str, value: float, limit: float) -> dict[str, Any]:
    return {"name": name, "value": value, "at_most": limit, "passed": value <= limit}
