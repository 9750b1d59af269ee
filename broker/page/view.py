"""What the page shows of a snapshot: the status without programs, users and connections. Pure."""

from __future__ import annotations

from msgspec import Struct
from msgspec.structs import replace

from broker.api.documents.schema import HoldStatus, InboundStatus, JobStatus, LeaseStatus, OutboundStatus
from broker.api.documents.snapshot import Snapshot
from broker.api.documents.status import outline
from broker.model.values import Alarm, ScheduleInForce
from hive_qos import __version__
from hive_qos.text import printable


class PageView(Struct, frozen=True, kw_only=True):
    """The present, for everybody who reaches the page. Types are those of the status document."""

    host: str
    version: str
    up_s: float
    interfaces: list[OutboundStatus | InboundStatus]
    jobs: list[JobStatus]
    holds: list[HoldStatus]
    leases: list[LeaseStatus]
    schedules: tuple[ScheduleInForce, ...]
    alarms: list[Alarm]


def view(snapshot: Snapshot) -> PageView:
    """The view of a snapshot: jobs by their names alone, and no measurements of single connections."""
    shown = outline(snapshot)
    return PageView(
        host=printable(snapshot.host),
        version=__version__,
        up_s=snapshot.daemon.up_s,
        interfaces=[replace(one, measured=None) for one in shown.interfaces],
        jobs=[_without_user(one) for one in shown.jobs if one.job],
        holds=shown.holds,
        leases=shown.leases,
        schedules=snapshot.decision.allocation.schedules,
        alarms=shown.alarms,
    )


def _without_user(job: JobStatus) -> JobStatus:
    return JobStatus(job=printable(job.job, length_max=64), uid=None, leaf=None, shares=job.shares)
