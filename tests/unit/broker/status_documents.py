"""A snapshot of a host that trains, and the status document as readers get it."""

from __future__ import annotations

import json
from typing import Any

from broker.api.documents.pages import encoded
from broker.api.documents.snapshot import DaemonInfo, SessionInfo, Snapshot
from broker.api.documents.status import document
from broker.enforce.socket_marks import JOB_LEAVES
from broker.law.decide import decide
from broker.law.state import State
from broker.measure.flow_table import PassedSocket
from broker.model.reasons import Reason
from broker.model.status_values import SegmentInfo
from broker.model.values import Alarm, Burst, ClassSample, FlowSample, InterfaceSample, JobSample, Measurements
from broker.policy.toml import load

POLICY = load('version = 1\n[[interface]]\nname = "eth0"\negress = "40 Mbit/s"\n')


def snapshot(*, job: str = "train", alarms: tuple[Alarm, ...] = ()) -> Snapshot:
    measurements = Measurements(
        (
            InterfaceSample(
                name="eth0",
                counters_age_s=0.0,
                classes=tuple(
                    ClassSample(name, sent_bytes=1000) for name in ("control", "compute", "storage", "other")
                ),
                flows=(
                    FlowSample(
                        "s-1/10.0.0.2:4", "10.0.0.2", "compute", "report", age_s=0.1, rtt_s=0.01, job=job, uid=0
                    ),
                ),
                jobs=(JobSample(job, "compute", 0, 1, True, 0, 5_000, uid=0),),
                bursts=(Burst(job, 7, announced_bytes=4_000_000, age_s=0.1, remaining_s=0.4, next_s=0.8),),
            ),
        )
    )
    return Snapshot(
        host="h",
        daemon=DaemonInfo(1, 1.0, 10, 2, 0, 0.1, 0.01),
        policy=POLICY,
        decision=decide(now_s=0.0, state=State(), measurements=measurements, policy=POLICY),
        measurements=measurements,
        sessions=(SessionInfo("s-1", "transport", job, 1, 0),),
        passed=(PassedSocket("f-1", "s-1", job, "compute", "gradient", "udp", "10.0.0.1:4", 1, 0, 5),),
        tcp=(),
        segments={"eth0": SegmentInfo(4, Reason("gso-piece-time", "4 segments"))},
        alarms=alarms,
        leaves={(0, job): JOB_LEAVES[1]},
    )


def status(now: Snapshot) -> dict[str, Any]:
    """Encode the document of a snapshot, and decode it as a client does."""
    value = json.loads(encoded(document(now)))
    assert isinstance(value, dict)
    return value
