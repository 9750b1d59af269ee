"""What the broker shows: the status document of `docs/broker-api.md`, and the same figures for Prometheus. Pure.

The loop makes one frozen `Snapshot` a tick; whoever asks has it rendered in his own thread.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from broker import capacity
from broker.codec import to_json
from broker.daemon.flow_reasons import FlowReasons
from broker.daemon.flows import PassedSocket
from broker.daemon.origins import NOBODY, Origin
from broker.daemon.sock_diag import TcpConnection
from broker.model import (
    Alarm,
    Decision,
    Hold,
    InterfaceAllocation,
    InterfaceSample,
    JobAllocation,
    JobKey,
    Lease,
    Measurements,
    Policy,
    Reason,
    SenderSample,
    Verdict,
    Watch,
)
from broker.peers.report import PeerStatus
from broker.state import CapacityState
from hive_qos import __version__
from hive_qos.text import printable
from shaping.model import JOB_MINOR, show_classid

SCHEMA = 1
FLOWS_SHOWN_MAX = 2000
"""Flows in one document; `flows_total` says how many there are."""


@dataclass(frozen=True)
class SessionInfo:
    """One connected program. `told_bits_per_s`: by class, at which rate it was told that it may send."""

    name: str
    client: str
    job: str
    pid: int
    uid: int
    told_bits_per_s: Mapping[str, int] = field(default_factory=dict)


@dataclass(frozen=True)
class GuardInfo:
    """How the guard fares. `openings`: how often it has opened the ceilings while this daemon lived; `started`: how
    many guards this daemon has had."""

    pid: int | None
    alive: bool
    openings: int
    started: int


@dataclass(frozen=True)
class DaemonInfo:
    """How the daemon itself fares, and its guard (None: beside a kernel in memory).

    `sockets_marked`: those that got their class because they were there before their rule.
    """

    pid: int
    up_s: float
    ticks: int
    applied: int
    late_ticks: int
    cpu_s: float
    tick_s_max: float
    sockets_marked: int = 0
    guard: GuardInfo | None = None


@dataclass(frozen=True)
class HostLoad:
    """How much of all processors was used in the last second (0 to 1), what memory there is, and what the daemon has;
    None where that is not known."""

    processors_used: float | None = None
    memory_available_bytes: int | None = None
    daemon_memory_bytes: int | None = None


@dataclass(frozen=True)
class SegmentInfo:
    """How many segments an interface takes in one piece now (None: the kernel does not say), and why."""

    gso_max_segs: int | None
    gso_reason: Reason


@dataclass(frozen=True)
class HoldsInfo:
    """What stands between us and other brokers: `asked` of them and what they said, `leases` that they have of us and
    what we made of them, `peers` themselves."""

    asked: tuple[tuple[Hold, Verdict | None], ...] = ()
    leases: tuple[tuple[Lease, Verdict | None], ...] = ()
    peers: tuple[PeerStatus, ...] = ()


NO_HOLDS = HoldsInfo()


@dataclass(frozen=True)
class Snapshot:
    """Everything that a reader may ask for, as of one tick. Ages are seconds at that tick; `segments` by interface.

    Of `tcp_connections` in all, `tcp` are those that are shown; `origins` says by inode whose they are; `slots` of
    leaves by job.
    """

    host: str
    daemon: DaemonInfo
    policy: Policy
    decision: Decision
    measurements: Measurements
    sessions: tuple[SessionInfo, ...]
    passed: tuple[PassedSocket, ...]
    tcp: tuple[tuple[TcpConnection, str], ...]
    segments: Mapping[str, SegmentInfo]
    alarms: tuple[Alarm, ...]
    origins: Mapping[int, Origin] = field(default_factory=dict)
    tcp_connections: int = 0
    holds: HoldsInfo = NO_HOLDS
    slots: Mapping[JobKey, int] = field(default_factory=dict)
    load: HostLoad = HostLoad()


def document(snapshot: Snapshot) -> dict[str, Any]:
    """The whole status."""
    flows = flow_list(snapshot)
    return {
        "schema": SCHEMA,
        "host": snapshot.host,
        "version": __version__,
        "daemon": to_json(snapshot.daemon),
        "load": to_json(snapshot.load),
        "interfaces": _interfaces(snapshot),
        "flows": flows[:FLOWS_SHOWN_MAX],
        "flows_total": len(flows),
        "tcp_connections": snapshot.tcp_connections,
        "jobs": _jobs(snapshot),
        "schedules": [to_json(entry) for entry in snapshot.decision.allocation.schedules],
        "needs": _needs(snapshot),
        "holds": [_hold(hold, verdict) for hold, verdict in snapshot.holds.asked],
        "leases": [_lease(lease, verdict) for lease, verdict in snapshot.holds.leases],
        "peers": [to_json(peer) for peer in snapshot.holds.peers],
        "sessions": [dataclasses.asdict(session) for session in snapshot.sessions],
        "alarms": [to_json(alarm) for alarm in snapshot.alarms],
    }


def flow_list(snapshot: Snapshot) -> list[dict[str, Any]]:
    """Passed sockets, the connections that sessions report, and the TCP connections that are shown."""
    flows: list[dict[str, Any]] = []
    why = FlowReasons(snapshot.decision.allocation, snapshot.measurements)
    for passed in snapshot.passed:
        shown = dataclasses.asdict(passed)
        flows.append({"flow": shown.pop("name"), "kind": "socket", "class": shown.pop("traffic_class"), **shown})
    for interface in snapshot.measurements.interfaces:
        for sample in interface.flows:
            if sample.source in ("report", "probe"):
                shown = dataclasses.asdict(sample)
                name, traffic_class = shown.pop("key"), shown.pop("traffic_class")
                flow = {
                    "flow": name,
                    "kind": "connection" if sample.source == "report" else "probe",
                    "class": traffic_class,
                    "interface": interface.name,
                    **shown,
                }
                flows.append({**flow, **why.of(name, traffic_class=traffic_class, peer=sample.peer)})
    for connection, traffic_class in snapshot.tcp:
        flow = _tcp_flow(connection, traffic_class, snapshot.origins.get(connection.inode, NOBODY))
        flows.append({**flow, **why.of(flow["flow"], traffic_class=traffic_class, peer=connection.remote[0])})
    return flows


def _tcp_flow(connection: TcpConnection, traffic_class: str, origin: Origin) -> dict[str, Any]:
    return {
        "flow": f"tcp/{connection.local[1]}/{connection.remote[0]}:{connection.remote[1]}",
        "kind": "tcp",
        "class": traffic_class,
        "local": _endpoint(connection.local),
        "peer": connection.remote[0],
        "uid": connection.uid,
        "pid": origin.pid,
        "command": origin.command,
        "cgroup": origin.cgroup,
        "rtt_s": connection.rtt_s,
        "rtt_s_min": connection.rtt_s_min,
        "delivered_bytes": connection.acked_bytes,
        "received_bytes": connection.received_bytes,
        "sent_packets": connection.sent_segments,
        "lost_packets": connection.retransmitted_segments,
        "delivery_rate_bits_per_s": connection.delivery_rate_bits_per_s,
        "application_limited": connection.application_limited,
    }


def _interfaces(snapshot: Snapshot) -> list[dict[str, Any]]:
    """Each way of each interface: what was decided, and what was measured for it."""
    allocation, measured = snapshot.decision.allocation, {one.name: one for one in snapshot.measurements.interfaces}
    known = {one.name: one.capacity for one in snapshot.decision.state.interfaces}
    watches = {watch.interface: watch for watch in snapshot.decision.watches}
    return [
        *(
            _way_out(entry, snapshot.segments, measured.get(entry.name), known.get(entry.name))
            for entry in allocation.interfaces
        ),
        *(_way_in(entry, measured.get(entry.name), watches.get(entry.name)) for entry in allocation.ingress),
    ]


def _way_out(
    entry: InterfaceAllocation,
    segments: Mapping[str, SegmentInfo],
    sample: InterfaceSample | None,
    known: CapacityState | None,
) -> dict[str, Any]:
    shown = _without_jobs(entry)
    shown["shaped"] = entry.name in segments
    if entry.name in segments:
        shown.update(to_json(segments[entry.name]))
    shown["measured"] = None
    if sample is not None:
        heard = [] if known is None else capacity.heard(known, sample.flows)
        shown["measured"] = {
            **_link(sample),
            "counters_age_s": sample.counters_age_s,
            "destinations": [to_json(one) for one in heard],
        }
    return shown


def _way_in(entry: InterfaceAllocation, sample: InterfaceSample | None, watch: Watch | None) -> dict[str, Any]:
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
    shown: dict[str, Any] = to_json(sender)
    shown["class"] = shown.pop("traffic_class")
    return shown


def _without_jobs(entry: InterfaceAllocation) -> dict[str, Any]:
    """An allocation without its jobs and connections, which are shown by themselves, and without the limit of segments,
    of which what is in force is shown."""
    shown: dict[str, Any] = to_json(replace(entry, jobs=(), flows=()))
    del shown["jobs"], shown["flows"], shown["segments"]
    return shown


def _hold(hold: Hold, verdict: Verdict | None) -> dict[str, Any]:
    """What we ask of another broker, and what it said."""
    shown: dict[str, Any] = to_json(hold)
    shown["class"] = shown.pop("traffic_class")
    return {**shown, "granted": None, **_said(verdict)}


def _lease(lease: Lease, verdict: Verdict | None) -> dict[str, Any]:
    """What another broker asks of us, and what became of it."""
    shown: dict[str, Any] = to_json(lease)
    shown["class"] = shown.pop("traffic_class")
    return {**shown, "granted": None, **_said(verdict)}


def _said(verdict: Verdict | None) -> dict[str, Any]:
    if verdict is None:
        return {}
    return {
        "granted": verdict.granted,
        "granted_bits_per_s": verdict.rate_bits_per_s,
        "verdict": to_json(verdict.reason),
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
        for part in allocated.jobs:
            own = job(part.key)
            own["shares"].append(_job_share(part, allocated.name, has_leaf=own["leaf"] is not None))
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
                    "credit_reason": to_json(credit.reason) if credit else None,
                    "age_s": burst.age_s,
                    "remaining_s": burst.remaining_s,
                    "next_s": burst.next_s,
                }
            )
    return list(jobs.values())


def _job_share(part: JobAllocation, interface: str, *, has_leaf: bool) -> dict[str, Any]:
    """What a job gets of a class through an interface. Its share is a figure alone where no leaf of the job's makes the
    kernel keep it: in storage, and beyond compute's leaves."""
    shown = to_json(part)
    del shown["job"], shown["uid"]
    enforced = has_leaf and part.traffic_class == "compute"
    if not enforced:
        shown["reason"]["text"] += f"; shown, not enforced: it shares the leaf of {part.traffic_class}"
    return {"interface": interface, "class": shown.pop("traffic_class"), "enforced": enforced, **shown}


def _needs(snapshot: Snapshot) -> list[dict[str, Any]]:
    """What storage declares; a program that does not say where to stands at each interface."""
    return [
        {"interface": interface.name, **to_json(need)}
        for interface in snapshot.measurements.interfaces
        for need in interface.needs
    ]


def _endpoint(address: tuple[str, int]) -> str:
    return f"[{address[0]}]:{address[1]}" if ":" in address[0] else f"{address[0]}:{address[1]}"


def metrics(snapshot: Snapshot) -> bytes:
    """The figures in the text format of Prometheus."""
    # Imported when first asked for: a host whose metrics nobody scrapes saves the memory.
    from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
    from prometheus_client.exposition import generate_latest
    from prometheus_client.registry import Collector, CollectorRegistry

    labels = ["interface", "class"]

    def family(kind: Any, name: str, text: str, field: str) -> Metric:
        made = kind(f"hive_qos_class_{name}", text, labels=labels)
        for interface in snapshot.decision.allocation.interfaces:
            for entry in interface.classes:
                value = getattr(entry, field)
                if value is not None:
                    made.add_metric([printable(interface.name), entry.name], value)
        return made  # type: ignore[no-any-return]  # the families are all Metric

    class Figures(Collector):
        def collect(self) -> Iterable[Metric]:
            for name in (
                "rate_bits_per_s", "ceil_bits_per_s", "guarantee_bits_per_s", "floor_bits_per_s",
                "ceiling_bits_per_s", "demand_bits_per_s", "throughput_bits_per_s", "backlog_bytes",
            ):  # fmt: skip
                yield family(GaugeMetricFamily, name, f"{name} of the class", name)
            yield family(CounterMetricFamily, "dropped_packets", "packets dropped in the class", "dropped_packets")
            sent = CounterMetricFamily("hive_qos_class_sent_bytes", "wire bytes sent by the class", labels=labels)
            for measured in snapshot.measurements.interfaces:
                for sample in measured.classes:
                    sent.add_metric([printable(measured.name), sample.name], sample.sent_bytes)
            yield sent
            carried = GaugeMetricFamily(
                "hive_qos_capacity_bits_per_s", "what the interface can carry", labels=["interface", "source"]
            )
            for interface in snapshot.decision.allocation.interfaces:
                shown = [printable(interface.name), interface.capacity_source]
                carried.add_metric(shown, interface.capacity_bits_per_s)
            yield carried
            carrier = GaugeMetricFamily("hive_qos_carrier", "1 while the link has a carrier", labels=["interface"])
            text = "how often the carrier came or went"
            changes = CounterMetricFamily("hive_qos_carrier_changes", text, labels=["interface"])
            for measured in snapshot.measurements.interfaces:
                if measured.carrier is not None:
                    carrier.add_metric([printable(measured.name)], int(measured.carrier))
                if measured.carrier_changes is not None:
                    changes.add_metric([printable(measured.name)], measured.carrier_changes)
            yield from (carrier, changes)
            yield GaugeMetricFamily("hive_qos_sessions", "connected programs", value=len(snapshot.sessions))
            alarms = GaugeMetricFamily("hive_qos_alarm", "1 while the alarm holds", labels=["code", "subject"])
            for alarm in snapshot.alarms:
                alarms.add_metric([alarm.code, printable(alarm.subject)], 1)
            yield alarms
            guard = snapshot.daemon.guard
            if guard is not None:
                yield GaugeMetricFamily("hive_qos_guard_alive", "1 while the guard watches", value=int(guard.alive))
                text = "how often the guard has opened the ceilings"
                yield CounterMetricFamily("hive_qos_guard_openings", text, value=guard.openings)
            yield CounterMetricFamily("hive_qos_ticks", "decisions taken", value=snapshot.daemon.ticks)
            yield CounterMetricFamily("hive_qos_cpu_seconds", "CPU used by the broker", value=snapshot.daemon.cpu_s)
            if snapshot.load.daemon_memory_bytes is not None:
                text, held = "memory that the broker has", snapshot.load.daemon_memory_bytes
                yield GaugeMetricFamily("hive_qos_memory_bytes", text, value=held)
            if snapshot.load.processors_used is not None:
                text, used = "part of all processors in use, by everybody", snapshot.load.processors_used
                yield GaugeMetricFamily("hive_qos_host_processors_used", text, value=used)

    registry = CollectorRegistry()
    registry.register(Figures())
    return generate_latest(registry)
