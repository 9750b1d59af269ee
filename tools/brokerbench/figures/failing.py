"""Figures of many flows, faults and holds, from raw records alone: pure functions.

Flows
- cores: CPU seconds of the daemon and its watchdog over the time. memory: the most that was resident at one look a
  second. flows: TCP connections that the daemon knows of at the end.

Faults
- storage, training, people: the longest time from the fault to the end in which nothing of it came through: bytes at
  storage's sink, sampled every 0.05 s; training's bytes in the router, every 0.15 s; answers to echoes. A training step
  computes for 0.14 s, in which nothing is sent.
- step: the longest from the fault on, and the one under way.
- right: from the start of the daemon (or from the cable's return, from a second broker's start, from the deletion)
  until the daemon answers with a capacity and without an alarm of the kind that such a fault raises, and the tree is
  its own.

Holds
- latency: from the start of the receiver's all_reduce, which announces its burst, until the sender's kernel tells that
  a class for one destination got half of its ceil or less, minus half of an idle echo's round trip.
- held: bursts for which that happened; the others found storage held back already, or were not believed. made: held, of
  all that were announced.
- whole: the same from the brokers' start on, when they do not know each other yet.
"""

from __future__ import annotations

import statistics
from collections.abc import Sequence

from shaping.model.names import DESTINATION_MINOR
from tools.brokerbench.figures.blocks import Figures, gaps, spread
from tools.measure.records import Record

HELD_SHARE = 0.5
"""A fall of a destination's ceil to so much is a hold."""


def flows(records: Sequence[Record]) -> dict[str, Figures]:
    """The figures of each load of connections."""
    return {record["condition"]: _flows(record) for record in records}


def _flows(record: Record) -> Figures:
    rows = record["daemon"]
    (begin_s, begin_cpu_s, _), (end_s, end_cpu_s, _) = rows[0], rows[-1]
    return {
        "flows": record["flows"],
        "seconds": end_s - begin_s,
        "cores": (end_cpu_s - begin_cpu_s) / (end_s - begin_s),
        "resident_bytes": max(resident for _, _, resident in rows),
    }


def faults(records: Sequence[Record]) -> dict[str, Figures]:
    """The figures of each fault."""
    return {record["condition"]: _fault(record) for record in records}


def _fault(record: Record) -> Figures:
    found, end_s = record["found"], record["end_s"]
    begin_s = found["at_s"]
    node, interface, column = record["counters"]["compute"]
    compute = [[sample["t_s"], sample["interfaces"][interface][column]] for sample in record["samples"][node]]
    answered = sorted(t_s + trip_s for t_s, trip_s in record["echoes"])
    steps = [
        step["step_s"]
        for step in record["steps"]["training"]
        if step["rank"] == 0 and step["end_s"] >= begin_s and step["start_s"] <= end_s
    ]
    return {
        "storage_gap_s": gaps(record["sink"], begin_s=begin_s, end_s=end_s),
        "training_gap_s": gaps(compute, begin_s=begin_s, end_s=end_s),
        "people_gap_s": gaps([[t_s, number] for number, t_s in enumerate(answered)], begin_s=begin_s, end_s=end_s),
        "step_s": max(steps, default=None),
        "right_s": found.get("right_s"),
        "sessions_s": found.get("sessions_s"),
        "found": {key: value for key, value in found.items() if key not in ("at_s", "started_at_s")},
    }


def holds(records: Sequence[Record]) -> dict[str, Figures]:
    """How many holds were made, and how long they took, over all blocks."""
    return {"brokered": _holds(records, since="begin_s") | {"whole": _holds(records, since="first_s")}}


def _holds(records: Sequence[Record], *, since: str) -> Figures:
    """Of the bursts after a time that each record has; earlier versions kept no `first_s`."""
    latencies: list[float] = []
    announced = 0
    for record in records:
        one_way_s = statistics.median(trip_s for _, trip_s in record["quiet_echoes"]) / 2
        falls = _falls(record["classes"])
        for step in record["steps"]["training"]:
            at_s = step["end_s"] - step["reduce_s"]
            since_s = record.get(since, record["begin_s"])
            if step["rank"] != record["receiver_rank"] or not since_s <= at_s <= record["end_s"]:
                continue
            announced += 1
            found = next((t_s for t_s in falls if at_s <= t_s <= step["end_s"]), None)
            if found is not None:
                latencies.append(found - at_s - one_way_s)
    return {
        "announced": announced,
        "held": len(latencies),
        "made": len(latencies) / announced if announced else None,
        "latency_s": spread(latencies) if latencies else None,
    }


def _falls(changes: Sequence[Sequence[float]]) -> list[float]:
    """When a class that may be held back for one destination was: its ceil fell to half or less."""
    ceils: dict[float, float] = {}
    falls = []
    for t_s, minor, _rate, ceil in changes:
        if minor in DESTINATION_MINOR and ceil <= HELD_SHARE * ceils.get(minor, 0.0):
            falls.append(t_s)
        ceils[minor] = ceil
    return falls
