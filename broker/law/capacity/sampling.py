"""Which connections are looked at where there are too many: no user has more of the places than another."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from typing import TypeVar

from broker.law.capacity.flow_delay import FLOW_STALE_S, PROBE, REPORT
from broker.model.values import FlowSample

Value = TypeVar("Value")

FLOWS_MAX, MEASURED_PLACES = 32, 16
"""Connections that are looked at, those that delivered most: more say nothing new about one uplink and cost time. Half
of the places are kept for those that our kernel measures."""


def chosen(flows: Sequence[FlowSample]) -> list[FlowSample]:
    """Those that are looked at: of the kernel's the busiest, of programs' likewise, but of each user as many."""
    fresh = [flow for flow in flows if flow.age_s < FLOW_STALE_S and flow.delivered_bytes is not None]
    if len(fresh) > FLOWS_MAX:
        fresh.sort(key=lambda flow: (flow.source != PROBE, -(flow.delivered_bytes or 0), flow.key))
        measured = [flow for flow in fresh if flow.source != REPORT]
        reported = in_turns([flow for flow in fresh if flow.source == REPORT], of=lambda flow: flow.uid)
        places = max(MEASURED_PLACES, FLOWS_MAX - len(reported))
        fresh = [*measured[:places], *reported][:FLOWS_MAX]
    return sorted(fresh, key=lambda flow: flow.key)


def in_turns(entries: Iterable[Value], *, of: Callable[[Value], object]) -> list[Value]:
    """The first of each, then the second of each, and so on; each one's in their order."""
    taken: Counter[object] = Counter()
    turns = []
    for entry in entries:
        turns.append((taken[of(entry)], entry))
        taken[of(entry)] += 1
    return [entry for _, entry in sorted(turns, key=lambda turn: turn[0])]
