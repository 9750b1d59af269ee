"""The control law: decide every class' rate from the measurements, with a reason for each figure. No clock, no I/O.

Per interface and tick:

    counters    -> throughput, demand, what storage is owed         sharing/demand, sharing/guarantee
    announced   -> credits, bursts in progress and due              bursts/announced, bursts/credit
    declared    -> what storage needs, whether data is at risk      sharing/storage_needs, deadlines
    flows       -> capacity, outbound and inbound                   capacity/outbound, capacity/inbound
    schedules   -> what each class is promised now                  sharing/promises
    all these   -> HTB rate and ceil of each class, and why         sharing/plan, sharing/water_filling
                -> what each job and connection gets of its class   sharing/jobs
    leases      -> rates towards brokers that hold us back          holds/grant
    arriving    -> holds to request from senders' brokers           holds/request

A plan is kept until the capacity or a promise changes, or a rate moves by more than the dead band. So measurements are
damped, and the policy is in force exactly and at once. Inputs are sorted first, so their order does not matter.
"""

from __future__ import annotations

from collections.abc import Mapping

from msgspec import Struct
from msgspec.structs import replace

from broker.law.bursts import announced as bursts
from broker.law.bursts import credit
from broker.law.capacity import outbound
from broker.law.capacity.inbound_delay import OutboundLoad, outbound_queue_s
from broker.law.decision import Decision
from broker.law.holds import grant
from broker.law.holds.request import decide_ingress
from broker.law.inbound_state import IngressState
from broker.law.reading import Reading
from broker.law.sharing import deadlines, gso, guarantee, jobs, promises, storage_needs
from broker.law.sharing.plan import PEOPLE, ClassNeeds, ClassPlan, moves, plan, unheld
from broker.law.sharing.promises import LENDER, Promises, promises_of
from broker.law.state import AppliedState, ClassState, InterfaceState, State
from broker.model.leases import Hold, HoldOutcome
from broker.model.values import (
    Alarm,
    Allocation,
    ClassAllocation,
    Credit,
    InterfaceAllocation,
    InterfaceSample,
    Measurements,
    ScheduleInForce,
)
from broker.policy.types import InterfacePolicy, Policy
from hive_qos.units import format_rate


class _Outcome(Struct, frozen=True):
    state: InterfaceState
    allocation: InterfaceAllocation
    credits: tuple[Credit, ...]
    alarms: tuple[Alarm, ...]
    verdicts: tuple[HoldOutcome, ...]
    again_s: float | None = None


def decide(*, now_s: float, state: State, measurements: Measurements, policy: Policy) -> Decision:
    """Decide what every class of every interface gets from now on.

    Args:
        now_s: the tick's time on a monotonic clock whose zero means nothing; never below that of the last call.
        state: `State()` at first, then the last decision's.
        measurements: those of this tick; missing interfaces, classes and flows are allowed and reported in alarms.
        policy: the operator's; it may change from call to call.

    Returns:
        A decision whose rates sum to at most each interface's capacity; with class `other`, where that capacity is one
        destination's alone, to at most the interface's own rate.
    """
    samples = {sample.name: sample for sample in measurements.interfaces}
    states = {entry.name: entry for entry in state.interfaces}
    outcomes = [
        _interface(
            now_s=now_s,
            state=states.get(entry.name) or InterfaceState(entry.name),
            sample=samples.get(entry.name),
            interface=entry,
            policy=policy,
            schedules=measurements.schedules.held,
        )
        for entry in policy.interfaces
    ]
    inbound_states = {entry.name: entry for entry in state.ingress}
    outbound = {outcome.state.name: outcome for outcome in outcomes}
    inbound = [
        decide_ingress(
            now_s=now_s,
            state=inbound_states.get(entry.name) or IngressState(entry.name),
            sample=samples.get(entry.name),
            credited=outbound[entry.name].state.bursts,
            out=_outbound(outbound[entry.name], now_s=now_s),
            interface=entry,
            policy=policy,
        )
        for entry in policy.interfaces
        if entry.ingress
    ]
    soon = [*(outcome.again_s for outcome in outcomes), *(one.again_s for one in inbound)]
    return Decision(
        state=State(
            ticks=state.ticks + 1,
            interfaces=tuple(outcome.state for outcome in outcomes),
            ingress=tuple(one.state for one in inbound),
        ),
        allocation=Allocation(
            tuple(outcome.allocation for outcome in outcomes),
            tuple(one.allocation for one in inbound),
            schedules=measurements.schedules.held,
        ),
        credits=tuple(credit for outcome in outcomes for credit in outcome.credits),
        alarms=(
            *(alarm for outcome in outcomes for alarm in outcome.alarms),
            *promises.unknown_schedules(policy, measurements.schedules.unknown),
            *(alarm for one in inbound for alarm in one.alarms),
        ),
        holds=_lowest_of_each([hold for one in inbound for hold in one.holds]),
        verdicts=tuple(verdict for outcome in outcomes for verdict in outcome.verdicts),
        again_s=min((time_s for time_s in soon if time_s is not None), default=None),
        watches=tuple(one.watch for one in inbound if one.watch is not None),
    )


def _outbound(outcome: _Outcome, *, now_s: float) -> OutboundLoad:
    """What the inbound direction needs to know of the outbound one."""
    allocation, known = outcome.allocation, outcome.state.capacity
    used = sum(entry.throughput_bits_per_s or 0 for entry in allocation.classes)
    return OutboundLoad(
        bits_per_s=allocation.capacity_bits_per_s,
        load=used / max(1, allocation.capacity_bits_per_s),
        excess_s=outbound_queue_s(known.signals if known is not None else None, now_s=now_s),
    )


def _lowest_of_each(holds: list[Hold]) -> tuple[Hold, ...]:
    """The lower hold of a sender that uses two interfaces: there is one lease for an address."""
    least: dict[str, Hold] = {}
    for hold in holds:
        if hold.address not in least or hold.rate_bits_per_s < least[hold.address].rate_bits_per_s:
            least[hold.address] = hold
    return tuple(least[address] for address in sorted(least))


def _interface(
    *, now_s: float, state: InterfaceState, sample: InterfaceSample | None, interface: InterfacePolicy, policy: Policy,
    schedules: tuple[ScheduleInForce, ...],
) -> _Outcome:  # fmt: skip
    read = Reading(now_s=now_s, state=state, sample=sample)
    seen = sample or InterfaceSample(interface.name)  # an absent interface has no measurements
    leased = grant.leased(seen.leases)
    read.set_held_back(grant.waiting_bytes(seen.destinations, leased))
    own_flows = grant.not_held(seen.flows, leased)
    estimate = outbound.estimate(
        now_s=now_s,
        state=state.capacity,
        base=outbound.base_rate(interface, sample),
        flows=own_flows,
        counters=read.counters(),
    )
    rate = estimate.rate_bits_per_s
    in_force, limits = promises.in_force(policy, schedules, capacity_bits_per_s=rate)
    risks, declared = storage_needs.follow(state.risks, seen.needs, now_s=now_s)
    paces = deadlines.follow(state.deadlines, declared.ahead, now_s=now_s)
    promised = promises_of(in_force, rate)
    promised = deadlines.raised(promised, needed_bits_per_s=declared.bits_per_s, capacity_bits_per_s=rate)
    kept = promises.kept(promised, rate)
    holding_back = grant.decide_held(
        now_s=now_s,
        states=state.held,
        leases=seen.leases,
        samples=seen.destinations if read.fresh else (),
        read_s=read.counters_s,
        delivered_bits_per_s=grant.delivered(
            seen.flows,
            seen.leases,
            state.capacity.signals if state.capacity else None,
            now_s=now_s,
        ),
        storage=next(entry for entry in in_force if entry.name == LENDER),
        capacity_bits_per_s=rate,
        replicas=declared.replicas,
        late_s=grant.late_s(seen.flows, seen.leases),
    )
    classes, wants = [], []
    state, active = bursts.follow(
        state, seen.bursts, sent_bytes=read.sent_bytes("compute") if read.fresh else None,
        capacity_bits_per_s=rate, now_s=now_s,
    )  # fmt: skip
    for entry in in_force:
        own = promised[entry.name]
        observed, need = read.needs(
            entry, kept[entry.name], own.ceiling, own.floor, limit=limits.get(entry.name),
            announced=[(burst.left_bytes, burst.remaining_s) for burst in active] if entry.name == "compute" else [],
            declared=declared if entry.name == LENDER else None,
        )  # fmt: skip
        classes.append(observed)
        wants.append(need)
    used = next((entry.throughput_bits_per_s for entry in classes if entry.name == "compute"), None)
    holding = bursts.using(active, throughput_bits_per_s=used, capacity_bits_per_s=rate)
    lead_s = bursts.lead_s(seen.flows, seen.bursts, excess_s=estimate.excess_s)
    room = bursts.makes_room(state.jobs, holding, lead_s=lead_s, now_s=now_s) if estimate.unsettled else None
    plans = plan(wants, promised=promised, capacity_bits_per_s=rate, storage_waits=room)
    elsewhere = estimate.state.estimate.base_bits_per_s if estimate.one_destination else None
    if elsewhere is not None:
        ceiling = promises_of(in_force, elsewhere)[PEOPLE].ceiling
        plans = unheld(plans, ceiling_bits_per_s=ceiling, open_bits_per_s=elsewhere)
    plans = _with_dead_band(plans, state, rate, fresh=bool(read.samples))
    reported_jobs = jobs.reported_jobs(seen.jobs)
    segments = gso.follow(
        state.segments, wanted=interface.limit_segments, rate_bits_per_s=rate, mtu_bytes=seen.mtu_bytes
    )
    after = replace(
        state,
        counters_s=read.counters_s,
        received_bytes=read.received_bytes,
        classes=tuple(classes),
        risks=risks,
        deadlines=paces,
        capacity=estimate.state,
        applied_capacity_bits_per_s=rate,
        applied=tuple(_applied(entry) for entry in plans),
        job_uses=jobs.follow(state.job_uses, reported_jobs, elapsed_s=read.elapsed_s, now_s=now_s),
        held=holding_back.states,
        segments=segments,
    )
    allocation = InterfaceAllocation(
        name=interface.name,
        direction="egress",
        capacity_bits_per_s=rate,
        capacity_source=estimate.source,
        capacity_reason=estimate.reason,
        classes=tuple(
            _class_allocation(entry, need, observed, read)
            for entry, need, observed in zip(plans, wants, classes, strict=True)
        ),
        destinations=holding_back.destinations,
        segments=segments,
        open_bits_per_s=elsewhere,
    )
    allocation, job_alarms = jobs.divided(
        allocation, samples=reported_jobs, uses=after.job_uses, policies=policy.jobs, bursts=active, now_s=now_s
    )  # fmt: skip
    share = next(entry.share_bits_per_s for entry in plans if entry.name == LENDER)
    late = deadlines.alarm(
        interface.name, paces, declared.ahead, all_bits_per_s=declared.bits_per_s, share_bits_per_s=share
    )
    alarms = (
        *_alarms(seen, read, estimate, promised),
        *credit.alarms(interface.name, after.jobs, now_s=now_s),
        *storage_needs.alarms(interface.name, declared),
        *((late,) if late is not None else ()),
        *job_alarms,
    )
    again_s = bursts.again_s(
        after.jobs, holding, throughput_bits_per_s=used, capacity_bits_per_s=rate, lead_s=lead_s, now_s=now_s
    )
    credits = bursts.credits(interface.name, after, now_s=now_s)
    return _Outcome(after, allocation, credits, alarms, holding_back.verdicts, again_s if estimate.unsettled else None)


def _with_dead_band(
    plans: tuple[ClassPlan, ...], state: InterfaceState, rate: int, *, fresh: bool
) -> tuple[ClassPlan, ...]:
    """Keep the last figures where capacity and promises are the same, and no rate moved by more than the dead band.

    Unknown rates keep them, too. A ceil is a promise, or the rate while the class is held: it moves with these.
    """
    if rate != state.applied_capacity_bits_per_s:
        return plans
    last = {entry.name: entry for entry in state.applied}
    kept = []
    for entry in plans:
        before, now = last.get(entry.name), _applied(entry)
        if before is None or before.promised != now.promised:
            return plans
        if fresh and (
            before.held is not now.held
            or moves(now.rate_bits_per_s, before.rate_bits_per_s, guarantee_bits_per_s=now.guarantee_bits_per_s)
        ):
            return plans
        if before != now:
            entry = replace(entry, rate_bits_per_s=before.rate_bits_per_s, ceil_bits_per_s=before.ceil_bits_per_s)
        kept.append(entry)
    return tuple(kept)


def _applied(entry: ClassPlan) -> AppliedState:
    return AppliedState(
        entry.name,
        entry.rate_bits_per_s,
        entry.ceil_bits_per_s,
        entry.guarantee_bits_per_s,
        entry.floor_bits_per_s,
        entry.ceiling_bits_per_s,
    )


def _class_allocation(entry: ClassPlan, need: ClassNeeds, observed: ClassState, read: Reading) -> ClassAllocation:
    sample = read.samples.get(entry.name)
    throughput = observed.throughput_bits_per_s if read.fresh else None
    held_back = read.held_back_bytes if entry.name == LENDER else 0
    return ClassAllocation(
        name=entry.name,
        rate_bits_per_s=entry.rate_bits_per_s,
        ceil_bits_per_s=entry.ceil_bits_per_s,
        priority=need.policy.priority,
        guarantee_bits_per_s=entry.guarantee_bits_per_s,
        floor_bits_per_s=entry.floor_bits_per_s,
        ceiling_bits_per_s=entry.ceiling_bits_per_s,
        demand_bits_per_s=need.demand_bits_per_s,
        share_bits_per_s=entry.share_bits_per_s,
        throughput_bits_per_s=None if throughput is None else int(throughput),
        backlog_bytes=sample.backlog_bytes + held_back if sample else None,
        dropped_packets=sample.dropped_packets if sample else None,
        reason=entry.reason,
        held_back_bytes=held_back,
        owed_bytes=int(max(0.0, guarantee.owed_bits(observed.account)) / 8) if entry.name == LENDER else 0,
    )


def _alarms(
    sample: InterfaceSample, read: Reading, estimate: outbound.OutboundEstimate, promised: Mapping[str, Promises]
) -> tuple[Alarm, ...]:
    name = sample.name
    if not read.present:  # its capacity does not matter
        return (Alarm("interface-missing", name, "it is not there; it is shaped when it appears"),)
    found = []
    if sample.carrier is False:
        found.append(Alarm("link-down", name, _without_carrier(sample)))
    if not read.fresh:
        found.append(Alarm("counters-stale", name, "no class counters for half a second; the last plan is kept"))
    if estimate.fallback:
        rate = format_rate(estimate.rate_bits_per_s)
        found.append(
            Alarm("capacity-unknown", name, f"neither the operator nor the driver names a speed; assumed {rate}")
        )
    return (*found, *promises.alarms(name, promised, capacity_bits_per_s=estimate.rate_bits_per_s))


def _without_carrier(sample: InterfaceSample) -> str:
    changes = "" if sample.carrier_changes is None else f" ({sample.carrier_changes} changes of it so far)"
    return (
        f"no carrier{changes}: nothing leaves or comes in; is the cable out, the other end off, or the interface set "
        "down? What was known of its speed holds until it is back"
    )
