"""What was read since the last decision, taken in as if each reading had been decided on: then nothing moved.

The daemon reads counters ten times a second, and decides less often where nothing asks for it (broker.law.skip). What
is remembered from tick to tick (throughput, usage, what storage is owed, signals, calls) has to be the same all the
same: so each reading is booked at its own time, with the reports that were known by then.
"""

from __future__ import annotations

from collections.abc import Sequence

from msgspec.structs import replace

from broker.law.holds import grant
from broker.law.reading import COUNTERS_STALE_S, Reading
from broker.law.sharing.schedule import ActiveSchedule
from broker.law.state import InterfaceState
from broker.law.step import booked
from broker.model.values import EarlierSample, FlowSample, InterfaceSample
from broker.policy.types import InterfacePolicy, Policy

EARLIER_MAX = 24
"""Readings that are taken in, the last ones: three at the usual tick, twenty at the shortest."""
APART_S_MIN = 0.001
"""One that is no older than the decision's own by more is the same: its age was told a few microseconds later, where a
tick read it, another interface's brought the decision, and that made do with counters so fresh."""


def taken_in(
    state: InterfaceState, sample: InterfaceSample | None, *, interface: InterfacePolicy, policy: Policy,
    hours: Sequence[ActiveSchedule], now_s: float,
) -> InterfaceState:  # fmt: skip
    """Book the readings before a decision's own.

    Args:
        state: as the last decision left it.
        sample: this decision's; readings that are not between the two are left out.
        interface, policy: as the decision has them.
        hours: the schedules that hold.
        now_s: the decision's time.
    """
    if sample is None or not sample.earlier or sample.counters_age_s is None:
        return state
    for entry in sorted(sample.earlier, key=lambda one: -one.age_s)[-EARLIER_MAX:]:
        at_s = now_s - entry.age_s
        known = state.counters_s is not None and at_s <= state.counters_s
        before_s = entry.age_s - sample.counters_age_s
        if not known and APART_S_MIN < before_s < COUNTERS_STALE_S:
            flows = _flows_then(state, sample, at_s=at_s, now_s=now_s)
            then = _then(sample, entry, flows)
            state = _with(state, then, interface=interface, policy=policy, hours=hours, at_s=at_s)
    return state


def _with(
    state: InterfaceState, then: InterfaceSample, *, interface: InterfacePolicy, policy: Policy,
    hours: Sequence[ActiveSchedule], at_s: float,
) -> InterfaceState:  # fmt: skip
    read = Reading(now_s=at_s, state=state, sample=then)
    account = booked(read, state=state, sample=then, flows=then.flows, interface=interface, policy=policy, hours=hours)
    kept = account.kept_bits_per_s
    return replace(
        state,
        counters_s=read.counters_s,
        received_bytes=read.received_bytes,
        classes=tuple(read.observed(entry, kept[entry.name]) for entry in account.in_force.classes),
        capacity=account.estimate.state,
        presence=account.people,
    )


def _then(sample: InterfaceSample, entry: EarlierSample, flows: Sequence[FlowSample]) -> InterfaceSample:
    return InterfaceSample(
        name=sample.name,
        link_bits_per_s=sample.link_bits_per_s,
        counters_age_s=0.0,
        classes=entry.classes,
        flows=grant.not_held(flows, grant.leased(sample.leases)),
        received_bytes=entry.received_bytes,
    )


def _flows_then(
    state: InterfaceState, sample: InterfaceSample, *, at_s: float, now_s: float
) -> tuple[FlowSample, ...]:  # fmt: skip
    """The connections as they were known at a time, each with its last report before that. One that has reported only
    since, and before the last decision, counts with what it said then, so that it is not forgotten."""
    since_s = now_s - at_s
    known: dict[str, FlowSample] = {}
    later: list[FlowSample] = []
    for flow in (*sample.earlier_flows, *sample.flows):
        age_s = flow.age_s - since_s
        if age_s < 0:
            later.append(flow)
        elif flow.key not in known or age_s < known[flow.key].age_s:
            known[flow.key] = replace(flow, age_s=age_s)
    before = {entry.key: entry for entry in state.capacity.signals.flows} if state.capacity is not None else {}
    for flow in later:
        if flow.key not in known and flow.key in before and before[flow.key].points:
            reported_s, delivered_bytes, *_ = before[flow.key].points[-1]
            age_s = max(0.0, at_s - reported_s)
            known[flow.key] = replace(flow, age_s=age_s, delivered_bytes=delivered_bytes, one_way_s=None)
    return tuple(known.values())
