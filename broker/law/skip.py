"""When the next decision may wait, and which reading of the counters says that it may not. No clock, no I/O.

A decision rests where nothing that it follows is under way: no lease, no hold, no need, no probe, no way in to look
after, and a capacity law with nothing to do (`capacity.at_rest`). Then counters are read at every tick all the same,
and each reading is asked what the plan would be made from now: the same demand and the same account of the lender as
the decision's. Only where a class' rate would move by more than the dead band, somebody's call begins or ends, or a
report shows delay or loss that the capacity law would heed, the decision comes at that very tick; else after `REST_S`,
with all that was read meanwhile (broker.law.catch_up).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from msgspec import Struct
from msgspec.structs import replace

from broker.law.capacity import estimator, thresholds, windowed_min
from broker.law.capacity.decrease import DELAY_S
from broker.law.capacity.flow_delay import least_rtt_s
from broker.law.decision import Decision
from broker.law.reading import Reading
from broker.law.sharing import call_detector, demand, overcommit
from broker.law.sharing.effective_policy import in_force
from broker.law.sharing.plan import Promises, moves, promises_of, wanted_bits_per_s
from broker.law.sharing.schedule import holding
from broker.law.state import FlowState, InterfaceState
from broker.model.values import FlowSample, InterfaceSample, Measurements
from broker.policy.types import ClassPolicy, InterfacePolicy, Policy

REST_S = 0.4
"""The longest: four ticks. Storage's TCP is looked at as often, what of many connections is looked at once a second is
not stale before (1.5 s), and what people see is no older."""
MINUTE_S, EDGE_S = 60, 2
"""Schedules begin and end with a minute. Around that every tick decides, the wall clock being read in whole seconds."""
TRAINS = "compute"


class Resting(Struct, frozen=True):
    """One interface since its last decision.

    Fields: `classes` as they are treated now, what each is `promised` and can keep; `applied_bits_per_s` the rates in
    force; `heard` the connections that the capacity law listens to; `calls` whether somebody's call matters; `state`
    with all readings so far.
    """

    classes: tuple[ClassPolicy, ...]
    promised: Mapping[str, Promises]
    kept_bits_per_s: Mapping[str, int]
    applied_bits_per_s: Mapping[str, int]
    heard: Mapping[str, FlowState]
    calls: bool
    state: InterfaceState


def resting(
    decision: Decision, measurements: Measurements, *, policy: Policy, now_s: float
) -> Mapping[str, Resting] | None:
    """What to compare the next readings with, by interface; None where the next tick has to decide.

    Args:
        decision: the last one.
        measurements: what it was made from.
        policy: by which it was made.
        now_s: its time.
    """
    if policy.peers is not None or policy.probe is not None or decision.again_s is not None:
        return None
    if any(entry.ingress for entry in policy.interfaces) or _schedule_is_near(policy, measurements):
        return None
    found = {}
    for entry in policy.interfaces:
        sample = next((one for one in measurements.interfaces if one.name == entry.name), None)
        if sample is not None:  # else it is not there: what is read says nothing of it
            state = next(one for one in decision.state.interfaces if one.name == entry.name)
            rests = _resting(entry, state, sample, policy=policy, measurements=measurements, now_s=now_s)
            if rests is None:
                return None
            found[entry.name] = rests
    return found


def follow(entry: Resting, sample: InterfaceSample, *, now_s: float) -> tuple[Resting, bool]:
    """Compare a reading with what stands.

    Args:
        entry: the interface so far.
        sample: its counters, and the connections that have reported since the last reading.
        now_s: the reading's time.

    Returns:
        The interface with that reading, and whether there is something to decide now.
    """
    reading = Reading(now_s=now_s, state=entry.state, sample=sample)
    if reading.elapsed_s is None or not reading.fresh:
        return entry, True
    people = entry.state.presence
    if entry.calls:
        people = call_detector.follow(
            people, reading.samples.get(call_detector.PEOPLE), read_s=reading.read_s, now_s=now_s
        )
    after, worth_a_write = _wishes(entry, reading)
    after = replace(after, state=replace(after.state, presence=people))
    calls = people.present is not entry.state.presence.present
    return after, worth_a_write or calls or _disturbed(
        entry.heard, sample.flows, reading, rate_bits_per_s=entry.state.applied_capacity_bits_per_s
    )


def _schedule_is_near(policy: Policy, measurements: Measurements) -> bool:
    if not policy.schedules or measurements.wall is None:
        return False
    return (measurements.wall.utc_s + EDGE_S) % MINUTE_S <= EDGE_S


def _resting(
    interface: InterfacePolicy, state: InterfaceState, sample: InterfaceSample, *, policy: Policy,
    measurements: Measurements, now_s: float,
) -> Resting | None:  # fmt: skip
    if sample.needs or sample.leases or sample.destinations or state.held:
        return None
    if state.capacity is None or not estimator.at_rest(state.capacity, now_s=now_s):
        return None
    rate = state.applied_capacity_bits_per_s
    hours = holding(policy.schedules, measurements.wall)
    classes = in_force(policy, hours, state.presence, capacity_bits_per_s=rate).classes
    promised = promises_of(classes, rate)
    entry = Resting(
        classes=classes,
        promised=promised,
        kept_bits_per_s=overcommit.kept(promised, rate),
        applied_bits_per_s={one.name: one.rate_bits_per_s for one in state.applied},
        heard={flow.key: flow for flow in state.capacity.signals.flows},
        calls=policy.presence.enabled,
        state=state,
    )
    reading = Reading(now_s=now_s, state=state, sample=sample)
    if not reading.fresh or _wishes(entry, reading)[1]:  # what a reading alone does not explain: a burst's demand, ...
        return None
    if sample.bursts and _moves(entry, TRAINS, promised[TRAINS].guarantee):  # it may ask for more with every moment
        return None
    return entry


def _wishes(entry: Resting, reading: Reading) -> tuple[Resting, bool]:
    """What each class would be given of its promise now, and whether that is worth a write."""
    classes, worth_a_write = [], False
    for one in entry.classes:
        own = entry.promised[one.name]
        observed, need = reading.needs(
            one, entry.kept_bits_per_s[one.name], own.ceiling, own.floor, limit=None, announced=[], declared=None
        )
        classes.append(observed)
        worth_a_write |= _moves(entry, one.name, wanted_bits_per_s(need, own))
    state = replace(
        entry.state, counters_s=reading.counters_s, received_bytes=reading.received_bytes, classes=tuple(classes)
    )
    return replace(entry, state=state), worth_a_write


def _moves(entry: Resting, name: str, rate_bits_per_s: int) -> bool:
    applied, promised = entry.applied_bits_per_s.get(name, 0), entry.promised[name].guarantee
    return moves(rate_bits_per_s, applied, guarantee_bits_per_s=promised)


def _disturbed(
    heard: Mapping[str, FlowState], flows: Iterable[FlowSample], reading: Reading, *, rate_bits_per_s: int
) -> bool:
    """Whether a connection waits elsewhere, or loses, as the capacity law would heed at a rate: then it has to count
    samples."""
    for flow in flows:
        before = heard.get(flow.key)
        if before is None or not before.points:
            continue
        if (flow.lost_packets or 0) - before.points[-1][3] >= estimator.LOSS_SENT_MIN:
            return True
        excess_s, threshold_s = _excess_s(before, flow)
        threshold_s = thresholds.at_least(threshold_s, rate_bits_per_s)
        if excess_s > threshold_s and excess_s - _own_queue_s(reading, flow.traffic_class) > threshold_s:
            return True
    return False


def _excess_s(before: FlowState, flow: FlowSample) -> tuple[float, float]:
    """How long a sample waited beyond its connection's baseline, and how long that may be. Round trips may have waited
    on their way back, where the law begins with more."""
    if flow.one_way_s is not None:
        least = before.way_least_s
        return (windowed_min.over(least, flow.one_way_s) if least else 0.0), estimator.QUIET_DELAY_S
    rtt_s = least_rtt_s(flow)
    if rtt_s is None or before.baseline_s is None:
        return 0.0, estimator.QUIET_DELAY_S
    return rtt_s - before.baseline_s, DELAY_S if flow.traffic_class == TRAINS else estimator.QUIET_DELAY_S


def _own_queue_s(reading: Reading, name: str) -> float:
    """How long the class' own queue takes to leave at the rate at which it left since the last reading."""
    sample, before = reading.samples.get(name), reading.before.get(name)
    if sample is None or before is None or reading.elapsed_s is None:
        return 0.0
    rate = demand.rate_of(before, sample, elapsed_s=reading.elapsed_s)
    return sample.backlog_bytes * 8 / rate if rate else 0.0
