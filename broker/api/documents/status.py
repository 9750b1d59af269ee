"""The status document (`broker.api.documents.schema.Status`), made from a snapshot. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

from msgspec.structs import replace

from broker.api.documents import verdicts
from broker.api.documents.flows import flow_list, program_list
from broker.api.documents.limits import limits, link_figures
from broker.api.documents.programs import SHOWN_MAX as PROGRAMS_SHOWN_MAX
from broker.api.documents.schema import (
    BurstStatus,
    ClassStatus,
    DestinationStatus,
    HoldStatus,
    InboundMeasured,
    InboundStatus,
    JobShare,
    JobStatus,
    LeaseStatus,
    NeedStatus,
    OutboundMeasured,
    OutboundStatus,
    RateWatch,
    SenderStatus,
    Status,
    made,
)
from broker.api.documents.snapshot import Snapshot
from broker.api.documents.window_average import Average
from broker.law.sharing import deadlines
from broker.law.sharing.promises import LENDER
from broker.law.sharing.storage_needs import needed_bits_per_s
from broker.model.leases import HoldOutcome
from broker.model.reasons import Reason
from broker.model.values import (
    Alarm,
    ClassAllocation,
    DestinationAllocation,
    InterfaceAllocation,
    InterfaceSample,
    JobAllocation,
    JobKey,
    Need,
    Watch,
)
from hive_qos import __version__
from hive_qos.text import printable

FLOWS_SHOWN_MAX = 2000
"""The most flows in one document; `flows_total` is the number of all."""


class Outline(NamedTuple):
    """What does not grow with the number of connections."""

    interfaces: list[OutboundStatus | InboundStatus]
    jobs: list[JobStatus]
    holds: list[HoldStatus]
    leases: list[LeaseStatus]
    alarms: list[Alarm]


def _progress(snapshot: Snapshot, interface: str, need: Need) -> dict[str, Any]:
    """How a need comes along, towards its deadline."""
    if need.remaining_s is None or need.remaining_s <= 0:
        return {}
    found: dict[str, Any] = {"needed_bits_per_s": needed_bits_per_s(need)}
    for state in next((one.deadlines for one in snapshot.decision.state.interfaces if one.name == interface), ()):
        if state.session == need.session:
            found["pace_bits_per_s"] = deadlines.pace_bits_per_s(state)
            found["projected_s"] = deadlines.projected_s(state, need.backlog_bytes)
    return found


def outline(snapshot: Snapshot) -> Outline:
    """The status without connections, programs and sessions."""
    allocation = snapshot.decision.allocation
    samples = {one.name: one for one in snapshot.measurements.interfaces}
    watches = {watch.interface: watch for watch in snapshot.decision.watches}
    links = [link_figures(snapshot, entry) for entry in allocation.interfaces]
    limited = _Limited(snapshot)
    return Outline(
        interfaces=[
            *(_outbound(snapshot, link, samples.get(link.entry.name), limited) for link in links),
            *(_inbound(entry, samples.get(entry.name), watches.get(entry.name)) for entry in allocation.ingress),
        ],
        jobs=_jobs(snapshot, links, limited),
        holds=[made(HoldStatus, hold, **_verdict(outcome)) for hold, outcome in snapshot.holds.asked],
        leases=[made(LeaseStatus, lease, **_verdict(outcome)) for lease, outcome in snapshot.holds.leases],
        alarms=[
            Alarm(one.code, printable(one.subject), printable(one.text, length_max=1000)) for one in snapshot.alarms
        ],
    )  # fmt: skip


def document(snapshot: Snapshot) -> Status:
    """The whole status."""
    flows, shown = flow_list(snapshot), outline(snapshot)
    who = program_list(snapshot, flows)
    return Status(
        host=printable(snapshot.host),
        version=__version__,
        daemon=snapshot.daemon,
        configuration=snapshot.configuration,
        load=snapshot.load,
        interfaces=shown.interfaces,
        flows=flows[:FLOWS_SHOWN_MAX],
        flows_total=len(flows),
        tcp_connections=snapshot.tcp_connections,
        programs=who[:PROGRAMS_SHOWN_MAX],
        programs_total=len(who),
        jobs=shown.jobs,
        schedules=snapshot.decision.allocation.schedules,
        needs=[
            made(NeedStatus, need, interface=one.name, **_progress(snapshot, one.name, need))
            for one in snapshot.measurements.interfaces
            for need in one.needs
        ],
        storage_programs=snapshot.programs,
        holds=shown.holds,
        leases=shown.leases,
        peers=snapshot.holds.peers,
        sessions=list(snapshot.sessions),
        alarms=shown.alarms,
    )  # fmt: skip


class _Limited:
    """What limits each class and job, and since when."""

    def __init__(self, snapshot: Snapshot) -> None:
        self._limits, self._snapshot = limits(snapshot), snapshot

    def of(self, *key: object) -> dict[str, Any]:
        """By the keys of `limits`. The time is null before the loop has seen this cause."""
        limit, lasting = self._limits[key], self._snapshot.lasting.get(key)
        found: dict[str, Any] = {"limited_by": limit}
        if lasting is not None and lasting.limit.code == limit.code:
            found["limited_for_s"] = round(lasting.for_s, 1)
            found["limited_since_s"] = round(self._snapshot.wall_s - lasting.for_s, 1)
            found["limited_part"] = round(lasting.part, 2)
        return found


def _outbound(
    snapshot: Snapshot, link: verdicts.LinkFigures, sample: InterfaceSample | None, limited: _Limited
) -> OutboundStatus:
    name, segments = link.entry.name, snapshot.segments.get(link.entry.name)
    lends = verdicts.lends_bits_per_s(link)
    destinations = snapshot.destinations.get(name, ())
    return made(
        OutboundStatus,
        link.entry,
        shaped=segments is not None,
        classes=tuple(_class(link, one, lends, limited) for one in link.entry.classes),
        destinations=tuple(_destination(link, one) for one in link.entry.destinations),
        measured=None if sample is None else made(OutboundMeasured, sample, destinations=destinations),
        gso_max_segs=None if segments is None else segments.gso_max_segs,
        gso_reason=None if segments is None else segments.gso_reason,
    )


def _class(
    link: verdicts.LinkFigures, one: ClassAllocation, lends: Mapping[str, int], limited: _Limited
) -> ClassStatus:
    return made(
        ClassStatus,
        one,
        demand_bits_per_s=0 if verdicts.idle(one) else one.demand_bits_per_s,
        window_s=link.windows_s[one.name],
        **_averaged(link.averages.get(one.name)),
        usable_bits_per_s=verdicts.usable_bits_per_s(link, one),
        promise=verdicts.promise(link, one),
        lends_bits_per_s=lends if one.name == LENDER else {},
        lending=verdicts.lending_text(one.name, lends),
        held=verdicts.held_text(link, one),
        **limited.of(link.entry.name, one.name),
    )


def _destination(link: verdicts.LinkFigures, one: DestinationAllocation) -> DestinationStatus:
    now, averaged = link.destinations.get(one.address), _averaged(link.towards.get(one.address))
    return made(DestinationStatus, one, throughput_bits_per_s=None if now is None else now.bits_per_s, **averaged)


def _inbound(entry: InterfaceAllocation, sample: InterfaceSample | None, watch: Watch | None) -> InboundStatus:
    """A direction in which our kernel may enforce nothing: who sends is asked."""
    senders = () if sample is None else tuple(made(SenderStatus, one) for one in sample.senders)
    return made(
        InboundStatus,
        entry,
        shaped=entry.in_kernel,
        asked=not entry.in_kernel,
        measured=None if sample is None else made(InboundMeasured, sample, senders=senders),
        watch=None if watch is None else made(RateWatch, watch),
    )


def _averaged(average: Average | None) -> dict[str, Any]:
    return {
        "average_bits_per_s": None if average is None else average.bits_per_s,
        "average_over_s": None if average is None else round(average.over_s, 1),
    }


def _verdict(outcome: HoldOutcome | None) -> dict[str, Any]:
    if outcome is None:
        return {}
    return {"granted": outcome.granted, "granted_bits_per_s": outcome.rate_bits_per_s, "verdict": outcome.reason}


def _jobs(snapshot: Snapshot, links: list[verdicts.LinkFigures], limited: _Limited) -> list[JobStatus]:
    jobs: dict[JobKey, JobStatus] = {}

    def job(key: JobKey) -> JobStatus:
        return jobs.setdefault(key, JobStatus(job=key[1], uid=key[0], leaf=snapshot.leaves.get(key)))

    for session in snapshot.sessions:
        if session.job:
            job((session.uid, session.job)).sessions += 1
    for passed in snapshot.passed:
        if (passed.uid, passed.job) in jobs:
            jobs[passed.uid, passed.job].sockets += 1
    for link in links:
        for part in link.entry.jobs:
            own = job(part.key)
            own.shares.append(_share(snapshot, link, part, limited, has_leaf=own.leaf is not None))
    credited = {(one.interface, one.uid, one.job, one.step): one for one in snapshot.decision.credits}
    for interface in snapshot.measurements.interfaces:
        for burst in interface.bursts:
            credit = credited.get((interface.name, burst.uid, burst.job, burst.step))
            job((burst.uid, burst.job)).bursts.append(
                made(
                    BurstStatus,
                    burst,
                    interface=interface.name,
                    destinations=dict(burst.by_destination),
                    credited_bytes=credit.credited_bytes if credit else 0,
                    credit_reason=credit.reason if credit else None,
                )
            )
    return list(jobs.values())


def _share(
    snapshot: Snapshot, link: verdicts.LinkFigures, part: JobAllocation, limited: _Limited, *, has_leaf: bool
) -> JobShare:
    """What a job gets of a class through an interface, and one verdict. Its share is a figure alone where no leaf of
    the job's makes the kernel keep it: in storage, and beyond compute's leaves."""
    name = part.traffic_class
    enforced, reason = has_leaf and name == "compute", part.reason
    if not enforced:
        reason = Reason(reason.code, f"{reason.text}; shown, not enforced: it shares the leaf of {name}")
    of = next(one for one in link.entry.classes if one.name == name)
    average, whole = snapshot.figures.jobs.get((link.entry.name, name, *part.key)), link.averages.get(name)
    if average is not None and whole is not None:  # over the same time as its class: before it began it sent nothing
        average = replace(
            average, bits_per_s=int(average.bits_per_s * average.over_s / whole.over_s), over_s=whole.over_s
        )
    return made(
        JobShare,
        part,
        interface=link.entry.name,
        enforced=enforced,
        reason=reason,
        window_s=link.windows_s[name],
        **_averaged(average),
        usable_bits_per_s=min(part.ceil_bits_per_s, verdicts.usable_bits_per_s(link, of)),
        **limited.of(link.entry.name, name, *part.key),
    )
