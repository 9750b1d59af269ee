"""Keys and types of what the socket shows: none disappears within schema 1, and the description has all of them.

`schema-1.json` has every path of the documents with its types, as schema 1 began. Add to it; take nothing away.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from msgspec.structs import replace
from status_documents import snapshot, status

from broker.api.documents.snapshot import HoldsInfo, SessionInfo, Snapshot
from broker.daemon.publish import destination_reports
from broker.law.decide import decide
from broker.law.state import State
from broker.measure.socket_owners import SocketOwner
from broker.measure.tcp_diag import TcpConnection, UdpSocket
from broker.model.leases import Hold, HoldOutcome, Lease
from broker.model.reasons import Reason
from broker.model.status_values import WatchdogInfo
from broker.model.values import (
    Alarm,
    BrokerThere,
    DestinationAllocation,
    FlowSample,
    Measurements,
    Need,
    ScheduleInForce,
    SenderSample,
    Watch,
)
from broker.peers.peer_status import PeerStatus
from broker.policy.toml import load

SCHEMA_1 = Path(__file__).with_name("schema-1.json")
WHY = Reason("code", "text")
NAMED_BY_OTHERS = ("destinations", "lends_bits_per_s")
"""Objects whose keys are addresses, classes or names."""


def everything() -> Snapshot:
    """A snapshot that has each thing that the document can show."""
    now = snapshot(alarms=(Alarm("x", "eth0", "text"),))
    (sample,) = now.measurements.interfaces
    flows = (
        *sample.flows,
        FlowSample("s-9/10.0.0.3:4", "10.0.0.3", "compute", "report", 0.1),
        FlowSample("probe/10.0.0.4", "10.0.0.4", "control", "probe", 0.1, rtt_latest_s=0.01, rtt_s_min=0.01),
        FlowSample("tcp/873/10.0.0.2:5", "10.0.0.2", "storage", "tcp-info", 0.0, rtt_s=0.02, delivered_bytes=5),
    )
    sample = replace(
        sample, flows=flows, received_bytes=7, link_bits_per_s=10**9, carrier=True, carrier_changes=1,
        senders=(SenderSample("10.0.0.9", "storage", 10**6, 0.01, broker=BrokerThere.YES),),
        needs=(Need("s-2", 977, 50 * 2**30, 1.0, 600.0, 12),),
        bursts=(replace(sample.bursts[0], by_destination=(("10.0.0.2", 5),)),),
    )  # fmt: skip
    policy = load('version = 1\n[[interface]]\nname = "eth0"\negress = "40 Mbit/s"\ningress = "40 Mbit/s"\n')
    measurements = Measurements((sample,))
    state = State()
    for number in range(1, 31):
        moved = tuple(replace(one, delivered_bytes=number * 400_000) for one in flows)
        classes = tuple(replace(one, sent_bytes=number * 100_000) for one in sample.classes)
        measurements = Measurements((replace(sample, flows=moved, classes=classes),))
        decision = decide(now_s=number / 10, state=state, measurements=measurements, policy=policy)
        state = decision.state
    (entry,) = decision.allocation.interfaces
    entry = replace(
        entry,
        destinations=(DestinationAllocation("10.0.0.3", "storage", 1, 2, WHY),),
    )  # fmt: skip
    allocation = replace(
        decision.allocation, interfaces=(entry,), schedules=(ScheduleInForce("office", "Europe/Berlin", None, None),)
    )
    tcp = TcpConnection(
        ("10.0.0.1", 873), ("10.0.0.2", 5), uid=0, inode=7, classid=0, dscp=0, rtt_s=0.01, rtt_s_min=None,
        acked_bytes=1, received_bytes=1, sent_segments=1, retransmitted_segments=0, delivery_rate_bits_per_s=8,
        application_limited=False,
    )  # fmt: skip
    granted = HoldOutcome("peer", "10.0.0.9", 1, True, 5, WHY)
    hold = Hold("10.0.0.9", "storage", 5, 6, 2.0, WHY)
    lease = Lease("peer", "10.0.0.3", 1, "storage", 5, 6, 0.1, 1.0)
    return replace(
        now, policy=policy, measurements=measurements,
        decision=replace(decision, allocation=allocation, watches=(Watch("eth0", 5, rising=True),)),
        tcp=((tcp, "storage"),), udp=((UdpSocket(("10.0.0.1", 5), ("", 0), 0, 9, 0, 0, 0), "other", True),),
        origins={7: SocketOwner(5, "rsync", "/x"), 9: SocketOwner(6, "quicsync", "/y")},
        sessions=(*now.sessions, SessionInfo("s-2", "c", "k", 2, 977, "python")),
        holds=HoldsInfo(((hold, granted), (hold, None)), ((lease, granted), (lease, None)), (PeerStatus("10.0.0.9"),)),
        daemon=replace(now.daemon, watchdog=WatchdogInfo(1, True, 0, 1)),
        destinations=destination_reports(decision, measurements),
    )  # fmt: skip


def paths(value: Any, at: str = "") -> dict[str, set[str]]:
    """Every path of a document with the types that stand there."""
    found = {at: {"null" if value is None else type(value).__name__}}
    inner: list[tuple[str, Any]] = []
    if isinstance(value, list):
        inner = [(f"{at}[{one.get('kind', '') if isinstance(one, dict) else ''}]", one) for one in value]
    elif isinstance(value, dict) and not at.endswith(NAMED_BY_OTHERS):
        inner = [(f"{at}.{name}", one) for name, one in value.items()]
    for name, one in inner:
        for path, kinds in paths(one, name).items():
            found.setdefault(path, set()).update(kinds)
    return found


def test_no_key_of_schema_1_disappears_and_none_changes_its_type() -> None:
    found = paths(status(everything()))
    known: dict[str, str] = json.loads(SCHEMA_1.read_text(encoding="utf-8"))
    missing = {path: kinds for path, kinds in known.items() if not set(kinds.split()) <= found.get(path, set())}
    assert missing == {}
