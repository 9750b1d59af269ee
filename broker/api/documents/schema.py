"""The documents of `broker.sock` as types. The JSON and its OpenAPI description are both made from them.

A figure that is not known is null. Keys may be added; none disappears within `SCHEMA`. What a field is, its type says:
most are those of `broker.model.values`, which the decision fills.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final, Literal, TypeVar

from msgspec import Struct, field
from msgspec.structs import asdict

from broker.api.documents.programs import Program
from broker.api.documents.snapshot import ConfigurationInfo, DaemonInfo, SessionInfo
from broker.law.capacity.quorum import DestinationReport
from broker.measure.flow_table import PassedSocket
from broker.model.leases import Hold, Lease
from broker.model.reasons import Reason
from broker.model.status_values import HostLoad, ProgramInfo
from broker.model.usage import UsageRow
from broker.model.values import (
    Alarm,
    ClassAllocation,
    DestinationAllocation,
    FlowSample,
    Need,
    ScheduleInForce,
    SenderSample,
)
from broker.peers.peer_status import PeerStatus

SCHEMA: Final = 1
"""Of every document. It rises where a key disappears or changes its type; new keys leave it."""
Document = TypeVar("Document", bound=Struct)


class ClassStatus(ClassAllocation, frozen=True, kw_only=True):
    """One class outbound: what was decided for it, what it gets, and what limits it.

    Guarantee, floor and ceiling are those of policy at the present capacity; rate and ceil are in the kernel. The
    average is that of the guarantee's window. `promise` is `kept`, `missed`, `owed`, `not-claimed` or `not-measured`;
    `limited_by` is `idle`, `itself`, `hold`, `burst`, `ceiling` or `link`. It has been so for `limited_for_s` seconds,
    with pauses: for `limited_part` of that time. It began at `limited_since_s`, in seconds since 1970.
    `usable_bits_per_s` is what it may send now; `held` says to what storage is held towards whom, and
    `lends_bits_per_s` to which class it lends how much.
    """

    window_s: float
    average_bits_per_s: int | None
    average_over_s: float | None
    usable_bits_per_s: int
    promise: Reason
    lends_bits_per_s: Mapping[str, int]
    lending: str
    held: str
    limited_by: Reason
    limited_for_s: float | None = None
    limited_since_s: float | None = None
    limited_part: float | None = None


class DestinationStatus(DestinationAllocation, frozen=True, kw_only=True):
    """An address towards which storage is held back: what is in the kernel, why, and what goes there."""

    throughput_bits_per_s: int | None
    average_bits_per_s: int | None
    average_over_s: float | None


class SenderStatus(SenderSample, frozen=True, kw_only=True):
    """A host that sends to this one in a class."""

    traffic_class: str = field(name="class")


class OutboundMeasured(Struct, frozen=True, kw_only=True):
    """The measurements behind outbound figures; `destinations` report the delay beside this host's own queue."""

    link_bits_per_s: int | None
    carrier: bool | None
    carrier_changes: int | None
    counters_age_s: float | None
    destinations: tuple[DestinationReport, ...]


class InboundMeasured(Struct, frozen=True, kw_only=True):
    """What inbound figures rest on."""

    link_bits_per_s: int | None
    carrier: bool | None
    carrier_changes: int | None
    received_bytes: int | None
    pace_bits_per_s: int | None
    senders: tuple[SenderStatus, ...]


class RateWatch(Struct, frozen=True):
    """The inbound rate at which the broker decides again between two ticks."""

    bits_per_s: int
    rising: bool


class _Direction(Struct, frozen=True, kw_only=True, tag_field="direction"):
    """What both directions of an interface have."""

    name: str
    capacity_bits_per_s: int
    capacity_source: str
    capacity_reason: Reason
    in_kernel: bool
    open_bits_per_s: int | None
    shaped: bool


class OutboundStatus(_Direction, frozen=True, kw_only=True, tag="egress"):
    """The outbound direction of an interface.

    `capacity_source` is `configured`, `link`, `fallback` or `measured`. `open_bits_per_s` is what all may send where
    the capacity is one destination's alone. `shaped` is false while the interface does not exist or cannot be shaped,
    and `measured` null while it does not exist.
    `gso_max_segs` is how many segments TCP may hand over in one piece.
    """

    classes: tuple[ClassStatus, ...]
    destinations: tuple[DestinationStatus, ...]
    measured: OutboundMeasured | None
    gso_max_segs: int | None = None
    gso_reason: Reason | None = None


class InboundStatus(_Direction, frozen=True, kw_only=True, tag="ingress"):
    """The inbound direction of an interface. `asked` is true while senders are asked, and our kernel holds nothing.

    Of its classes only what was decided is known, by the same keys.
    """

    classes: tuple[ClassAllocation, ...]
    destinations: tuple[DestinationAllocation, ...]
    measured: InboundMeasured | None
    asked: bool
    watch: RateWatch | None


class SocketFlow(PassedSocket, frozen=True, kw_only=True, tag_field="kind", tag="socket"):
    """A socket that a program registered."""

    name: str = field(name="flow")
    traffic_class: str = field(name="class")


class ConnectionFlow(FlowSample, frozen=True, kw_only=True, tag_field="kind", tag="connection"):
    """A connection of a program's report."""

    key: str = field(name="flow")
    traffic_class: str = field(name="class")
    interface: str
    pid: int | None
    command: str | None
    throughput_bits_per_s: int | None
    received_bits_per_s: int | None
    reason: Reason | None


class ProbeFlow(FlowSample, frozen=True, kw_only=True, tag_field="kind", tag="probe"):
    """A target of `[probe]`."""

    key: str = field(name="flow")
    traffic_class: str = field(name="class")
    interface: str
    reason: Reason | None


class TcpFlow(Struct, frozen=True, kw_only=True, tag_field="kind", tag="tcp"):
    """A TCP connection with the figures of TCP_INFO. Of more than 500, the 128 that matter most are shown."""

    flow: str
    traffic_class: str = field(name="class")
    local: str
    peer: str
    uid: int
    pid: int | None
    command: str | None
    cgroup: str | None
    rtt_s: float
    rtt_s_min: float | None
    delivered_bytes: int
    received_bytes: int
    sent_packets: int
    lost_packets: int
    delivery_rate_bits_per_s: int
    application_limited: bool
    throughput_bits_per_s: int | None
    received_bits_per_s: int | None
    reason: Reason | None


class UdpFlow(Struct, frozen=True, kw_only=True, tag_field="kind", tag="udp"):
    """A UDP socket that nobody registered. The kernel counts no bytes of it, so it has no rate."""

    flow: str
    traffic_class: str = field(name="class")
    local: str
    peer: str | None
    uid: int
    pid: int | None
    command: str | None
    cgroup: str | None
    waiting_bytes: int
    waited_lately: bool
    throughput_bits_per_s: int | None = None
    received_bits_per_s: int | None = None
    reason: Reason | None = None


Flow = SocketFlow | ConnectionFlow | TcpFlow | UdpFlow | ProbeFlow


class JobShare(Struct, frozen=True, kw_only=True):
    """What a job gets of a class through an interface. The fields are those of a class.

    `enforced` is false where the kernel does not keep the share: in storage, and beyond compute's leaves.
    `limited_by` may also be `class`, `processor` or `peer`.
    """

    interface: str
    traffic_class: str = field(name="class")
    enforced: bool
    weight: float
    rate_bits_per_s: int
    ceil_bits_per_s: int
    guarantee_bits_per_s: int
    share_bits_per_s: int
    demand_bits_per_s: int
    throughput_bits_per_s: int | None
    backlog_bytes: int | None
    reason: Reason
    class_weight: float
    window_s: float
    average_bits_per_s: int | None
    average_over_s: float | None
    usable_bits_per_s: int
    limited_by: Reason
    limited_for_s: float | None = None
    limited_since_s: float | None = None
    limited_part: float | None = None


class BurstStatus(Struct, frozen=True, kw_only=True):
    """An announced burst: bytes by address, what of them is believed and why, and the time left."""

    interface: str
    step: int
    announced_bytes: int
    destinations: Mapping[str, int]
    credited_bytes: int
    credit_reason: Reason | None
    age_s: float
    remaining_s: float
    next_s: float | None


class JobStatus(Struct, kw_only=True):
    """A job of one user: the same name of two users is two jobs.

    `leaf` is its class in the kernel, such as `ffe0:230`; null where it shares that of its class.
    """

    job: str
    uid: int | None
    leaf: str | None
    sessions: int = 0
    sockets: int = 0
    shares: list[JobShare] = field(default_factory=list)
    bursts: list[BurstStatus] = field(default_factory=list)


class NeedStatus(Need, frozen=True, kw_only=True):
    """What a storage program declared; without a destination it counts at each interface.

    `needed_bits_per_s` is the rate that its deadline needs. `pace_bits_per_s` says how fast its backlog got less
    lately, and `projected_s` in how long it is done at that pace. All are null without a deadline, or while not known.
    """

    interface: str
    needed_bits_per_s: int | None = None
    pace_bits_per_s: int | None = None
    projected_s: float | None = None


class HoldStatus(Hold, frozen=True, kw_only=True):
    """What this broker asks of another, and the answer: null before there is one."""

    traffic_class: str = field(name="class")
    granted: bool | None = None
    granted_bits_per_s: int | None = None
    verdict: Reason | None = None


class LeaseStatus(Lease, frozen=True, kw_only=True):
    """What another broker asks of this one, and what became of it."""

    traffic_class: str = field(name="class")
    granted: bool | None = None
    granted_bits_per_s: int | None = None
    verdict: Reason | None = None


class Status(Struct, frozen=True, kw_only=True):
    """Everything that is decided, and why. Of many flows and programs the first are shown; `_total` counts all."""

    schema: Literal[1] = SCHEMA
    host: str
    version: str
    daemon: DaemonInfo
    configuration: ConfigurationInfo
    load: HostLoad
    interfaces: list[OutboundStatus | InboundStatus]
    flows: list[Flow]
    flows_total: int
    tcp_connections: int
    programs: list[Program]
    programs_total: int
    jobs: list[JobStatus]
    schedules: tuple[ScheduleInForce, ...]
    needs: list[NeedStatus]
    storage_programs: tuple[ProgramInfo, ...]
    holds: list[HoldStatus]
    leases: list[LeaseStatus]
    peers: tuple[PeerStatus, ...]
    sessions: list[SessionInfo]
    alarms: list[Alarm]


class Flows(Struct, frozen=True, kw_only=True):
    """All flows that are known."""

    schema: Literal[1] = SCHEMA
    flows: list[Flow]


def made(kind: type[Document], one: Struct, **more: Any) -> Document:
    """Make a value of a type from the fields that another value has by the same names, and more."""
    given = asdict(one) | more
    return kind(**{name: given[name] for name in kind.__struct_fields__ if name in given})


class UsageReport(Struct, frozen=True, kw_only=True):
    """What was carried in the hours that begin in [since, until), divided as was asked. Seconds since 1970."""

    schema: Literal[1] = SCHEMA
    since_s: float
    until_s: float
    rows: list[UsageRow]


class LogEvent(Struct, frozen=True, kw_only=True):
    """One event of the daemon's log. `number` counts since the daemon began; `at_s` is seconds since 1970."""

    number: int
    at_s: float
    level: Literal["debug", "info", "warning", "error"]
    event: str
    meaning: str
    keys: Mapping[str, str | int | bool]


class RecentLog(Struct, frozen=True, kw_only=True):
    """The last events, the oldest first. The daemon began at `began_s`; `left_out` are kept and were not asked for."""

    schema: Literal[1] = SCHEMA
    began_s: float
    events: list[LogEvent]
    left_out: int


class Done(Struct, frozen=True):
    """What a POST has done, and what could not be had of it."""

    done: str
    note: str = ""


class Error(Struct, frozen=True):
    """Why a request was refused."""

    error: str
