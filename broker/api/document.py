"""What the broker shows: the status document (`docs/reference/broker-api.md`), and the same for Prometheus. Pure.

The loop makes one frozen `Snapshot` a tick; whoever asks has it rendered in his own thread.
"""

from __future__ import annotations

from collections.abc import Hashable, Mapping
from typing import Any

import msgspec
from msgspec.structs import replace

from broker.api import verdicts
from broker.api.flows import flow_list, program_list
from broker.api.programs import SHOWN_MAX as PROGRAMS_SHOWN_MAX
from broker.api.snapshot import Snapshot
from broker.api.window_average import Average
from broker.law.capacity import outbound
from broker.law.capacity.state import OutboundCapacity
from broker.law.sharing.promises import LENDER
from broker.model.leases import Hold, HoldOutcome, Lease
from broker.model.values import (
    ClassAllocation,
    InterfaceAllocation,
    InterfaceSample,
    JobAllocation,
    JobKey,
    SenderSample,
    Watch,
)
from hive_qos import __version__
from shaping.model import JOB_MINOR, show_classid

SCHEMA = 1
FLOWS_SHOWN_MAX = 2000
"""Flows in one document; `flows_total` says how many there are."""


def document(snapshot: Snapshot) -> dict[str, Any]:
    """The whole status."""
    flows = flow_list(snapshot)
    who = program_list(snapshot, flows)
    return {
        "schema": SCHEMA,
        "host": snapshot.host,
        "version": __version__,
        "daemon": msgspec.to_builtins(snapshot.daemon),
        "load": msgspec.to_builtins(snapshot.load),
        "interfaces": _interfaces(snapshot),
        "flows": flows[:FLOWS_SHOWN_MAX],
        "flows_total": len(flows),
        "tcp_connections": snapshot.tcp_connections,
        "programs": who[:PROGRAMS_SHOWN_MAX],
        "programs_total": len(who),
        "jobs": _jobs(snapshot),
        "schedules": [msgspec.to_builtins(entry) for entry in snapshot.decision.allocation.schedules],
        "needs": _needs(snapshot),
        "holds": [_hold(hold, verdict) for hold, verdict in snapshot.holds.asked],
        "leases": [_lease(lease, verdict) for lease, verdict in snapshot.holds.leases],
        "peers": [msgspec.to_builtins(peer) for peer in snapshot.holds.peers],
        "sessions": [msgspec.to_builtins(session) for session in snapshot.sessions],
        "alarms": [msgspec.to_builtins(alarm) for alarm in snapshot.alarms],
    }


def _interfaces(snapshot: Snapshot) -> list[dict[str, Any]]:
    """Each way of each interface: what was decided, and what was measured for it."""
    allocation, measured = snapshot.decision.allocation, {one.name: one for one in snapshot.measurements.interfaces}
    known = {one.name: one.capacity for one in snapshot.decision.state.interfaces}
    watches = {watch.interface: watch for watch in snapshot.decision.watches}
    return [
        *(
            _outbound(snapshot, entry, measured.get(entry.name), known.get(entry.name))
            for entry in allocation.interfaces
        ),
        *(_inbound(entry, measured.get(entry.name), watches.get(entry.name)) for entry in allocation.ingress),
    ]


def _outbound(
    snapshot: Snapshot, entry: InterfaceAllocation, sample: InterfaceSample | None, known: OutboundCapacity | None
) -> dict[str, Any]:
    shown, segments = _without_jobs(entry), snapshot.segments
    link = _link_of(snapshot, entry)
    for one, about in zip(entry.classes, shown["classes"], strict=True):
        about |= _of_class(link, one)
    for towards in shown["destinations"]:
        address = towards["address"]
        towards["throughput_bits_per_s"] = _bits_per_s(link.destinations.get(address))
        towards |= _averaged(link.towards.get(address))
    shown["shaped"] = entry.name in segments
    if entry.name in segments:
        shown.update(msgspec.to_builtins(segments[entry.name]))
    shown["measured"] = None
    if sample is not None:
        heard = [] if known is None else outbound.heard(known, sample.flows)
        shown["measured"] = {
            **_link(sample),
            "counters_age_s": sample.counters_age_s,
            "destinations": [msgspec.to_builtins(one) for one in heard],
        }
    return shown


def _link_of(snapshot: Snapshot, entry: InterfaceAllocation) -> verdicts.LinkFigures:
    """A way out as the verdicts see it."""
    figures = snapshot.figures

    def of(known: Mapping[Hashable, Average], *key: str) -> dict[str, Average]:
        """By the last part of the keys that begin with these."""
        return {str(name[-1]): one for name, one in known.items() if isinstance(name, tuple) and name[:-1] == key}

    return verdicts.LinkFigures(
        entry=entry,
        averages=of(figures.classes, entry.name),
        lender_now=figures.classes_now.get((entry.name, LENDER)),
        windows_s={one.name: one.guarantee_window_s for one in snapshot.policy.classes},
        destinations=of(figures.destinations, entry.name, LENDER),
        towards=of(figures.towards, entry.name, LENDER),
        peers={lease.address: lease.peer for lease, _ in snapshot.holds.leases},
        inbound=next((one for one in snapshot.decision.allocation.ingress if one.name == entry.name), None),
        arriving=figures.arriving.get(entry.name),
    )


def _of_class(link: verdicts.LinkFigures, one: ClassAllocation) -> dict[str, Any]:
    """What is shown of a class besides its allocation."""
    average, lends = link.averages.get(one.name), verdicts.lends_bits_per_s(link)
    return {
        "demand_bits_per_s": 0 if verdicts.idle(one) else one.demand_bits_per_s,
        "window_s": link.windows_s[one.name],
        **_averaged(average),
        "usable_bits_per_s": verdicts.usable_bits_per_s(link, one),
        "promise": msgspec.to_builtins(verdicts.promise(link, one)),
        "lends_bits_per_s": dict(lends) if one.name == LENDER else {},
        "lending": verdicts.lending_text(one.name, lends),
        "held": verdicts.held_text(link, one),
        "limited_by": msgspec.to_builtins(verdicts.class_limit(link, one)),
    }


def _averaged(average: Average | None) -> dict[str, Any]:
    return {
        "average_bits_per_s": _bits_per_s(average),
        "average_over_s": None if average is None else round(average.over_s, 1),
    }


def _bits_per_s(average: Average | None) -> int | None:
    return None if average is None else average.bits_per_s


def _inbound(entry: InterfaceAllocation, sample: InterfaceSample | None, watch: Watch | None) -> dict[str, Any]:
    """A direction in which our kernel may enforce nothing: who sends is asked."""
    shown = {**_without_jobs(entry), "shaped": entry.in_kernel, "asked": not entry.in_kernel}
    shown["measured"] = None
    if sample is not None:
        shown["measured"] = {
            **_link(sample),
            "received_bytes": sample.received_bytes,
            "pace_bits_per_s": sample.pace_bits_per_s,
            "senders": [_sender(one) for one in sample.senders],
        }
    shown["watch"] = None if watch is None else {"bits_per_s": watch.bits_per_s, "rising": watch.rising}
    return shown


def _link(sample: InterfaceSample) -> dict[str, Any]:
    return {
        "link_bits_per_s": sample.link_bits_per_s,
        "carrier": sample.carrier,
        "carrier_changes": sample.carrier_changes,
    }


def _sender(sender: SenderSample) -> dict[str, Any]:
    shown: dict[str, Any] = msgspec.to_builtins(sender)
    shown["class"] = shown.pop("traffic_class")
    return shown


def _without_jobs(entry: InterfaceAllocation) -> dict[str, Any]:
    """An allocation without its jobs and connections, which are shown by themselves, and without the limit of segments,
    of which what is in force is shown."""
    shown: dict[str, Any] = msgspec.to_builtins(replace(entry, jobs=(), flows=()))
    del shown["jobs"], shown["flows"], shown["segments"]
    return shown


def _hold(hold: Hold, verdict: HoldOutcome | None) -> dict[str, Any]:
    """What we ask of another broker, and what it said."""
    shown: dict[str, Any] = msgspec.to_builtins(hold)
    shown["class"] = shown.pop("traffic_class")
    return {**shown, "granted": None, **_said(verdict)}


def _lease(lease: Lease, verdict: HoldOutcome | None) -> dict[str, Any]:
    """What another broker asks of us, and what became of it."""
    shown: dict[str, Any] = msgspec.to_builtins(lease)
    shown["class"] = shown.pop("traffic_class")
    return {**shown, "granted": None, **_said(verdict)}


def _said(verdict: HoldOutcome | None) -> dict[str, Any]:
    if verdict is None:
        return {}
    return {
        "granted": verdict.granted,
        "granted_bits_per_s": verdict.rate_bits_per_s,
        "verdict": msgspec.to_builtins(verdict.reason),
    }


def _jobs(snapshot: Snapshot) -> list[dict[str, Any]]:
    jobs: dict[JobKey, dict[str, Any]] = {}

    def job(key: JobKey) -> dict[str, Any]:
        slot = snapshot.slots.get(key)
        leaf = show_classid(JOB_MINOR[slot]) if slot is not None else None
        new: dict[str, Any] = {
            "job": key[1],
            "uid": key[0],
            "sessions": 0,
            "sockets": 0,
            "leaf": leaf,
            "shares": [],
            "bursts": [],
        }
        return jobs.setdefault(key, new)

    for session in snapshot.sessions:
        if session.job:
            job((session.uid, session.job))["sessions"] += 1
    for passed in snapshot.passed:
        if (passed.uid, passed.job) in jobs:
            jobs[passed.uid, passed.job]["sockets"] += 1
    for allocated in snapshot.decision.allocation.interfaces:
        sample = next((one for one in snapshot.measurements.interfaces if one.name == allocated.name), None)
        link = _link_of(snapshot, allocated)
        for part in allocated.jobs:
            own = job(part.key)
            shown = _job_share(part, allocated.name, has_leaf=own["leaf"] is not None)
            own["shares"].append(shown | _of_job(snapshot, link, part, sample))
    credited = {(one.interface, one.uid, one.job, one.step): one for one in snapshot.decision.credits}
    for interface in snapshot.measurements.interfaces:
        for burst in interface.bursts:
            credit = credited.get((interface.name, burst.uid, burst.job, burst.step))
            job((burst.uid, burst.job))["bursts"].append(
                {
                    "interface": interface.name,
                    "step": burst.step,
                    "announced_bytes": burst.announced_bytes,
                    "destinations": dict(burst.by_destination),
                    "credited_bytes": credit.credited_bytes if credit else 0,
                    "credit_reason": msgspec.to_builtins(credit.reason) if credit else None,
                    "age_s": burst.age_s,
                    "remaining_s": burst.remaining_s,
                    "next_s": burst.next_s,
                }
            )
    return list(jobs.values())


def _job_share(part: JobAllocation, interface: str, *, has_leaf: bool) -> dict[str, Any]:
    """What a job gets of a class through an interface. Its share is a figure alone where no leaf of the job's makes the
    kernel keep it: in storage, and beyond compute's leaves."""
    shown = msgspec.to_builtins(part)
    del shown["job"], shown["uid"]
    enforced = has_leaf and part.traffic_class == "compute"
    if not enforced:
        shown["reason"]["text"] += f"; shown, not enforced: it shares the leaf of {part.traffic_class}"
    return {"interface": interface, "class": shown.pop("traffic_class"), "enforced": enforced, **shown}


def _of_job(
    snapshot: Snapshot, link: verdicts.LinkFigures, part: JobAllocation, sample: InterfaceSample | None
) -> dict[str, Any]:
    """What is shown of a job besides its allocation: the figures that its class has, and one verdict."""
    name = part.traffic_class
    flows = [
        flow
        for flow in (sample.flows if sample is not None else ())
        if (flow.uid, flow.job, flow.traffic_class) == (*part.key, name)
    ]
    of = next(one for one in link.entry.classes if one.name == name)
    why = verdicts.job_limit(link, part, of, flows=flows, processors_used=snapshot.load.processors_used)
    average, whole = snapshot.figures.jobs.get((link.entry.name, name, *part.key)), link.averages.get(name)
    if average is not None and whole is not None:  # over the same time as its class: before it began it sent nothing
        average = replace(
            average, bits_per_s=int(average.bits_per_s * average.over_s / whole.over_s), over_s=whole.over_s
        )
    return {
        "window_s": link.windows_s[name],
        **_averaged(average),
        "usable_bits_per_s": min(part.ceil_bits_per_s, verdicts.usable_bits_per_s(link, of)),
        "limited_by": msgspec.to_builtins(why),
    }


def _needs(snapshot: Snapshot) -> list[dict[str, Any]]:
    """What storage declares; a program that does not say where to stands at each interface."""
    return [
        {"interface": interface.name, **msgspec.to_builtins(need)}
        for interface in snapshot.measurements.interfaces
        for need in interface.needs
    ]
