"""Situations of a host as snapshots: idle, sharing its link, held back by another broker, and with a missed promise."""

from __future__ import annotations

from typing import Any

from msgspec.structs import replace

from broker.api.documents.class_averages import AveragesSnapshot
from broker.api.documents.snapshot import DaemonInfo, HoldsInfo, Lasting, SessionInfo, Snapshot
from broker.api.documents.window_average import Average
from broker.enforce.socket_marks import JOB_LEAVES
from broker.law.decision import Decision
from broker.law.state import State
from broker.measure.socket_owners import SocketOwner
from broker.measure.tcp_diag import TcpConnection, UdpSocket
from broker.model.leases import HoldOutcome, Lease
from broker.model.reasons import Because, Reason
from broker.model.status_values import HostLoad, SegmentInfo
from broker.model.values import (
    Alarm,
    Allocation,
    Burst,
    ClassAllocation,
    Credit,
    DestinationAllocation,
    FlowSample,
    InterfaceAllocation,
    InterfaceSample,
    JobAllocation,
    Measurements,
)
from broker.policy.toml import load

POLICY = load('version = 1\n[[interface]]\nname = "eth0"\n')
PARTS = {"control": (0.02, 0), "compute": (0.6, 1), "storage": (0.2, 3), "other": (0.1, 2)}
MBIT = 1_000_000
FREE = Reason("link-is-free", "may use all that others leave")


def classes(capacity: int, sends: dict[str, int], waits: dict[str, int], **reasons: Reason) -> list[ClassAllocation]:
    return [
        ClassAllocation(
            name=name, rate_bits_per_s=capacity // 50, ceil_bits_per_s=capacity, priority=priority,
            guarantee_bits_per_s=int(part * capacity), floor_bits_per_s=capacity // 50, ceiling_bits_per_s=capacity,
            demand_bits_per_s=capacity // 50, share_bits_per_s=capacity, throughput_bits_per_s=sends.get(name, 0),
            backlog_bytes=waits.get(name, 0), dropped_packets=0,
            reason=reasons.get(name, Because.LINK_IS_FREE(ceiling_bits_per_s=capacity)),
        )
        for name, (part, priority) in PARTS.items()
    ]  # fmt: skip


def averages(over_s: float = 60.0, **bits_per_s: float) -> dict[Any, Average]:
    return {("eth0", name): Average(int(bits_per_s.get(name, 0)), over_s) for name in PARTS}


def snapshot(capacity: int, entries: list[ClassAllocation], host: str = "trainer-1", **more: Any) -> Snapshot:
    """An interface with these classes; what is decided and measured besides comes in by name."""
    text = f"{capacity / MBIT:.3g} Mbit/s: the configured rate, less headroom; no queue seen elsewhere"
    link = InterfaceAllocation(
        "eth0", "egress", capacity, "configured", Reason("link-rate", text), tuple(entries),
        jobs=more.pop("jobs", ()), destinations=more.pop("destinations", ()),
    )  # fmt: skip
    return Snapshot(
        host=host,
        daemon=DaemonInfo(1, 100.0, 10, 2, 0, 0.1, 0.01),
        policy=POLICY,
        decision=Decision(more.pop("state", State()), Allocation((link,)), more.pop("credits", ())),
        measurements=Measurements((more.pop("sample", InterfaceSample("eth0")),)),
        sessions=more.pop("sessions", ()),
        passed=(),
        tcp=more.pop("tcp", ()),
        segments={"eth0": SegmentInfo(None, Reason("gso-whole", ""))},
        alarms=more.pop("alarms", ()),
        **more,
    )


def idle() -> Snapshot:
    capacity = int(38.8 * MBIT)
    figures = AveragesSnapshot(classes=averages())
    return snapshot(capacity, classes(capacity, {}, {}), figures=figures)


def connection(peer: str, inode: int) -> TcpConnection:
    return TcpConnection(
        ("10.0.0.1", 50_000 + inode), (peer, 873), uid=0, inode=inode, classid=0, dscp=0, rtt_s=0.01, rtt_s_min=None,
        acked_bytes=1, received_bytes=1, sent_segments=1, retransmitted_segments=0, delivery_rate_bits_per_s=8,
        application_limited=False, question=bytes((inode,)),
    )  # fmt: skip


def sharing() -> Snapshot:
    """Training's burst beside storage: 5.3 Mbit/s of 9.7 promised at the moment, 11.3 on average."""
    capacity = int(48.5 * MBIT)
    sends = {"control": 12_000, "compute": 37_800_000, "storage": 5_300_000, "other": 5_200_000}
    entries = classes(
        capacity, sends, {"compute": 217_500, "storage": 1_258_000},
        storage=Because.YIELDS_TO_BURST(job="llm", step=29, burst_bytes=4 * 2**20, remaining_s=0.21),
    )  # fmt: skip
    share = Because.SHARES_ITS_CLASS(
        share_bits_per_s=38_000_000, offered_bits_per_s=38_000_000, weight=1.0, total_weight=1.0
    )
    job = JobAllocation(
        "llm", "compute", 1.0, 30 * MBIT, capacity, 0, 38 * MBIT, 40 * MBIT, 37_600_000, 217_500, share, uid=1000
    )
    flow = FlowSample("s-1/10.0.0.2:4", "10.0.0.2", "compute", "report", 0.1, rtt_s=0.01, job="llm", uid=1000)
    burst = Burst("llm", 29, 4 * 2**20, age_s=0.1, remaining_s=0.21, uid=1000)
    udp = UdpSocket(("0.0.0.0", 22_000), ("0.0.0.0", 0), uid=1000, inode=90, classid=0, dscp=0, waiting_bytes=9_000)
    tcp = [connection("10.0.0.9", number) for number in (1, 2, 3)]
    return snapshot(
        capacity, entries, jobs=(job,),
        sample=InterfaceSample("eth0", flows=(flow,), bursts=(burst,)),
        sessions=(SessionInfo("s-1", "transport", "llm", 4711, 1000, command="python3"),),
        leaves={(1000, "llm"): JOB_LEAVES[1]},
        credits=(Credit("eth0", "llm", 29, 4 * 2**20, uid=1000, reason=Reason("credit-of-measured", "")),),
        tcp=tuple((one, "storage") for one in tcp),
        udp=((udp, "other", True),),
        origins={90: SocketOwner(912, "syncthing"), **{one.inode: SocketOwner(4820, "rsync") for one in tcp}},
        figures=AveragesSnapshot(
            classes=averages(control=11_000, compute=31.2 * MBIT, storage=11.3 * MBIT, other=2_000),
            jobs={("eth0", "compute", 1000, "llm"): Average(int(31.1 * MBIT), 60.0)},
            sent={flow.key: Average(36_000_000, 2.0), **{one.question: Average(1_700_000, 2.0) for one in tcp}},
            received={flow.key: Average(31_000_000, 2.0), **{one.question: Average(30_000, 2.0) for one in tcp}},
        ),
        load=HostLoad(processors_used=0.99),
        lasting={
            ("eth0", "compute", 1000, "llm"): Lasting(Reason("link", ""), 192.0, 0.95),
            ("eth0", "storage"): Lasting(Reason("burst", ""), 192.0, 0.41),
        },
    )  # fmt: skip


def held() -> Snapshot:
    """What a storage host sees while a trainer's broker holds it back for a burst."""
    capacity, waiting = 970 * MBIT, 1_258_000
    entries = classes(capacity, {"storage": 1_010_000}, {"storage": waiting})
    why = Reason("held-for-peer", "trainer-1-broker asked for at most 1.02 Mbit/s towards it")
    lease = Lease("trainer-1-broker", "10.91.0.1", 7, "storage", 1_020_000, 48_500_000, 0.1, 0.9)
    return snapshot(
        capacity, [replace(one, held_back_bytes=waiting) if one.name == "storage" else one for one in entries],
        host="store-1",
        destinations=(DestinationAllocation("10.91.0.1", "storage", 970_000, 1_020_000, why, 9_700_000),),
        sample=InterfaceSample("eth0", leases=(lease,)),
        holds=HoldsInfo(leases=((lease, HoldOutcome("trainer-1-broker", "10.91.0.1", 7, True, 1_020_000, why)),)),
        figures=AveragesSnapshot(
            classes=averages(storage=11.3 * MBIT),
            destinations={("eth0", "storage", "10.91.0.1"): Average(1_010_000, 2.0)},
            towards={("eth0", "storage", "10.91.0.1"): Average(int(11.3 * MBIT), 62.0)},
        ),
    )  # fmt: skip


def missed() -> Snapshot:
    """Guarantees that do not fit into a link that has become slower, and what that does to storage."""
    capacity = 10 * MBIT
    entries = classes(
        capacity, {"compute": 6_200_000, "storage": 1_900_000, "other": 1_700_000}, {"storage": 1_258_000}
    )
    promised = [replace(one, guarantee_bits_per_s=2 * one.guarantee_bits_per_s) for one in entries]
    text = (
        "the guarantees sum to 18.4 Mbit/s, 10 Mbit/s are there; floors hold, and above its floor each class has 49 % "
        "of its guarantee"
    )
    figures = averages(compute=6.1 * MBIT, storage=2.1 * MBIT, other=1.6 * MBIT)
    figures["eth0", "storage"] = Average(2_100_000, 63.0, waiting_s=63.0)
    return snapshot(
        capacity,
        promised,
        alarms=(Alarm("guarantees-scaled", "eth0", text),),
        figures=AveragesSnapshot(classes=figures),
    )


SITUATIONS = {"idle": idle, "sharing": sharing, "held": held, "missed": missed}
