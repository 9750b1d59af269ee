"""Figures of every scenario and the goals, as one JSON document made from raw records."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeAlias

from tools.brokerbench.figures import blocks, changing, failing, fresh, inbound
from tools.brokerbench.settings import IDLE, SCENARIOS
from tools.measure.records import Record

Goal: TypeAlias = tuple[str, float | None, str, float]
"""What it is about, what was found, `at_least` or `at_most`, the bound."""

FIGURES: Mapping[str, Callable[[Sequence[Record]], Mapping[str, Any]]] = {
    "sender": blocks.shares,
    "receiver": blocks.shares,
    "fresh": fresh.fresh,
    "remote": blocks.shares,
    "capacity": changing.capacity,
    "inbound": inbound.inbound,
    "jobs": changing.jobs,
    "flows": failing.flows,
    "faults": failing.faults,
    "hold": failing.holds,
}

STEP_GOALS = {"sender": (1.03, 1.10, 0.95), "receiver": (1.10, None, 0.85), "remote": (1.10, None, 0.85)}
"""Step of idle: median and 95th percentile, at most; storage of what is left, at least."""

FRESH_STARTS, FRESH_GOALS = 20, (1.05, 1.3, 0.80)
"""Of each start: step of idle, median and 95th percentile, at most; storage of what is left, at least."""

HOLDS_MADE = 0.99
"""Of the bursts that are announced, so many at least make the sender hold storage back."""

STEPS_COUNTED_MIN = 200
"""Of each condition there: fewer say little of a 95th percentile. A short run (`--quick`) misses it, and says so."""

COMPARISON = "no broker"
"""What the names of faults end with that are there for comparison."""

ALL = "all"
"""What the names of failures begin with that are of no fault alone, but of a whole stage or scenario."""


def compute(head: Record, records: Sequence[Record]) -> dict[str, Any]:
    """The report. Pure."""
    scenarios = {}
    for scenario in SCENARIOS:
        blocks = [record for record in records if record["scenario"] == scenario and record["kind"] == "block"]
        if blocks:
            scenarios[scenario] = dict(FIGURES[scenario](blocks))
    return {
        "run": head,
        "scenarios": scenarios,
        "goals": [
            {
                "name": name,
                "value": value,
                side: bound,
                "passed": None if value is None else (value >= bound if side == "at_least" else value <= bound),
            }
            for name, value, side, bound in (
                *goals(scenarios, _conditions(head)),
                *_tried(scenarios, records),
                *_missing(scenarios, head, records),
            )
        ],
        "not_tried": [record for record in records if record["kind"] == "not-tried"],
        "failures": [record for record in records if record["kind"] == "failure"],
    }


def _conditions(head: Record) -> dict[str, list[str]]:
    """The conditions that were to be measured of each scenario of training."""
    return {name: [IDLE, *head["settings"].get("variants", ())] for name in STEP_GOALS.keys() & head["scenarios"]}


def _tried(scenarios: Mapping[str, Mapping[str, Any]], records: Sequence[Record]) -> list[Goal]:
    """Faults that could not be brought about, or broke down: 1 where a later round of the records has them.

    What failed as a whole ("all", "all at the sender") is no fault: no round can have it.
    """
    lacking = [record["condition"] for record in records if record["kind"] == "not-tried"]
    lacking += [record["what"] for record in records if record["kind"] == "failure" and record["scenario"] == "faults"]
    return [
        (f"{fault}: tried", float(fault in scenarios.get("faults", {})), "at_least", 1.0)
        for fault in dict.fromkeys(lacking)
        if not fault.endswith(COMPARISON) and fault.split()[0] != ALL
    ]


def _missing(scenarios: Mapping[str, Mapping[str, Any]], head: Record, records: Sequence[Record]) -> list[Goal]:
    """What was to be measured: scenarios of which nothing was, and what failed of the others.

    Training's scenarios have their steps as a goal, and each fault has been tried or not.
    """
    asked = set(head["scenarios"]) - STEP_GOALS.keys() - scenarios.keys()
    failed = [(each["scenario"], each["what"]) for each in records if each["kind"] == "failure"]
    names = [f"{scenario}: all of it" for scenario in SCENARIOS if scenario in asked]
    names += [
        f"{scenario}: {what}, all of it"
        for scenario, what in dict.fromkeys(failed)
        if scenario in scenarios.keys() - STEP_GOALS.keys() - {"faults"}
    ]
    return [(name, None, "at_least", 1.0) for name in names]


def goals(scenarios: Mapping[str, Mapping[str, Any]], asked: Mapping[str, Sequence[str]]) -> list[Goal]:
    """What our own must reach; None where it was not measured.

    Args:
        asked: conditions of scenarios of training that were to be measured, whether they were or not.
    """
    found: list[Goal] = []
    for scenario, (median, p95, storage) in STEP_GOALS.items():
        if scenario in scenarios or scenario in asked:
            measured = scenarios.get(scenario, {})
            for condition in dict.fromkeys((*asked.get(scenario, ()), *measured)):
                counted = measured[condition]["step_s"]["n"] if condition in measured else 0
                found.append((f"{scenario}: steps counted, {condition}", counted, "at_least", STEPS_COUNTED_MIN))
            ours = measured.get("brokered", {})
            ratio = ours.get("ratio", {})
            found.append((f"{scenario}: step of idle, median", ratio.get("median"), "at_most", median))
            if p95 is not None:
                found.append((f"{scenario}: step of idle, 95th percentile", ratio.get("p95"), "at_most", p95))
            of_left = ours.get("storage_of_left", {}).get("all")
            found.append((f"{scenario}: storage of what is left", of_left, "at_least", storage))
    if "fresh" in scenarios:
        found += _fresh_goals(scenarios["fresh"])
    for scenario in ("capacity", "inbound"):
        if scenario in scenarios:
            found += _capacity_goals(scenario, scenarios[scenario].get("brokered", {}))
    if "inbound" in scenarios:
        found += _way_in_step_goals(scenarios["inbound"].get("brokered", {}))
    if "flows" in scenarios:
        found += _flow_goals(scenarios["flows"])
    if "faults" in scenarios:
        found += _fault_goals(scenarios["faults"])
    if "hold" in scenarios:
        holds = scenarios["hold"]["brokered"]
        latency = holds["latency_s"] or {}
        found.append(("hold: made, of those asked for", holds["made"], "at_least", HOLDS_MADE))
        found.append(("hold: beyond the way there, median, s", latency.get("median"), "at_most", 0.010))
        found.append(("hold: the same, 95th percentile, s", latency.get("p95"), "at_most", 0.025))
    if "jobs" in scenarios:
        ours = scenarios["jobs"].get("brokered", {})
        found.append(("jobs: fairness", ours.get("fairness", {}).get("low"), "at_least", 0.98))
        for name, kept in ours.get("kept", {}).items():
            found.append((f"jobs: guarantee of {name} kept", kept, "at_least", 0.98))
    return found


def _fresh_goals(starts: Mapping[str, Any]) -> list[Goal]:
    """The worst start's figures; one that has no step in its flood is worse than any bound."""

    def worst(name: str) -> float:
        return max(math.inf if start[name] is None else float(start[name]) for start in starts.values())

    median, p95, storage = FRESH_GOALS
    of_left = min(float(start["storage_of_left"]) for start in starts.values())
    each = f"fresh, each of {len(starts)} starts"
    return [
        ("fresh: starts", len(starts), "at_least", FRESH_STARTS),
        (f"{each}: step of idle, median", worst("of_idle"), "at_most", median),
        (f"{each}: step of idle, 95th percentile", worst("p95"), "at_most", p95),
        (f"{each}: storage of what is left", of_left, "at_least", storage),
    ]


def _flow_goals(found: Mapping[str, Any]) -> list[Goal]:
    goals: list[Goal] = []
    for name, each in found.items():
        goals.append((f"{name}: cores of the daemon", each["cores"], "at_most", 0.05))
        goals.append((f"{name}: its memory, MB", each["resident_bytes"] / 1e6, "at_most", 128.0))
    return goals


def _fault_goals(found: Mapping[str, Any]) -> list[Goal]:
    goals: list[Goal] = []
    for fault, seen in found.items():
        if fault.endswith(COMPARISON):
            continue
        worst = max(seen[f"{who}_gap_s"] for who in ("storage", "training", "people"))
        goals.append((f"{fault}: longest that anybody starves, s", worst, "at_most", 1.0))
        right_s = seen["right_s"]
        goals.append((f"{fault}: right again, s", math.inf if right_s is None else right_s, "at_most", 2.0))
    return goals


def _way_in_step_goals(ours: Mapping[str, Any]) -> list[Goal]:
    """At each rate of the link, what a receiver's link of a constant rate has to reach."""
    return [
        (f"inbound: step of idle, median, {name}", part["of_idle"], "at_most", STEP_GOALS["receiver"][0])
        for name, part in ours.get("parts", {}).items()
    ]


def _capacity_goals(scenario: str, ours: Mapping[str, Any]) -> list[Goal]:
    def worst(name: str) -> float | None:
        """The largest over the rounds; never having followed is worse than any bound."""
        found = ours.get(name)
        return None if not ours else math.inf if found is None or found["missed"] else float(found["high"])

    return [
        (f"{scenario}: a fall is followed, s", worst("fall_s"), "at_most", 1.5),
        (f"{scenario}: a rise is followed, s", worst("rise_s"), "at_most", 5.0),
        (f"{scenario}: delay of people once settled, 95th percentile, s", ours.get("delay_s"), "at_most", 0.03),
        (f"{scenario}: used once settled", ours.get("used"), "at_least", 0.9),
    ]
