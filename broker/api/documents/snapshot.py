"""The loop's figures of one tick, frozen; a reader renders them in its own thread. Values alone."""

from __future__ import annotations

from collections.abc import Mapping

from msgspec import Struct, field

from broker.api.documents.class_averages import NOTHING_YET, AveragesSnapshot
from broker.law.capacity.quorum import DestinationReport
from broker.law.decision import Decision
from broker.measure.flow_table import PassedSocket
from broker.measure.socket_owners import SocketOwner
from broker.measure.tcp_diag import TcpConnection, UdpSocket
from broker.model.leases import Hold, HoldOutcome, Lease
from broker.model.reasons import Reason
from broker.model.status_values import HostLoad, ProgramInfo, SegmentInfo, WatchdogInfo
from broker.model.values import Alarm, JobKey, Measurements
from broker.peers.peer_status import PeerStatus
from broker.policy.types import Policy


class SessionInfo(Struct, frozen=True):
    """One connected program; `command` is the name of its process."""

    name: str
    client: str
    job: str
    pid: int
    uid: int
    command: str | None = None


class DaemonInfo(Struct, frozen=True):
    """The state of the daemon itself, and of its watchdog.

    `ticks` counts decisions, `applied` those written to the kernel, `late_ticks` the late ones; `tick_s_max` is the
    longest. `sockets_marked` counts sockets that are older than their rule and got their class, and
    those taken from an ended job's leaf.
    """

    pid: int
    up_s: float
    ticks: int
    applied: int
    late_ticks: int
    cpu_s: float
    tick_s_max: float
    sockets_marked: int = 0
    watchdog: WatchdogInfo | None = None


class HoldsInfo(Struct, frozen=True):
    """The holds between us and other brokers.

    Fields: `asked` our requests with their answers; `leases` their requests with our verdicts; `peers` themselves.
    """

    asked: tuple[tuple[Hold, HoldOutcome | None], ...] = ()
    leases: tuple[tuple[Lease, HoldOutcome | None], ...] = ()
    peers: tuple[PeerStatus, ...] = ()


NO_HOLDS = HoldsInfo()


class Lasting(Struct, frozen=True):
    """How long what limits a class or job has done so, with pauses; `part` of that time it did."""

    limit: Reason
    for_s: float
    part: float


class SettingInfo(Struct, frozen=True):
    """One value that counts instead of the file's, and for how long still; `left_s` is None where it is kept."""

    kind: str
    name: str
    key: str
    value: str
    left_s: float | None = None


class ConfigurationInfo(Struct, frozen=True):
    """Where the policy comes from.

    Fields: `file` the broker's own; `trial_left_s` until the former one comes back; `paused_left_s` until limits are
    in force again; None where that is not so. `settings` are what `hive-qos set` has put over the file,
    `schedules` the names of all that the policy has, whether they hold or not; `take_over` is as the broker was
    started.
    """

    file: str | None = None
    trial_left_s: float | None = None
    paused_left_s: float | None = None
    settings: tuple[SettingInfo, ...] = ()
    schedules: tuple[str, ...] = ()
    take_over: bool = False


FILE_ALONE = ConfigurationInfo()


class Snapshot(Struct, frozen=True):
    """Everything that a reader may ask for, as of one tick. Ages are seconds at that tick; `segments` by interface.

    Of `tcp_connections` in all, `tcp` are those that are shown; `udp` sockets that are, each with whether something of
    it was seen waiting lately; `origins` says by inode whose they are; `leaves` of jobs as `tc` names them;
    `destinations` by interface what they report of the path; `lasting` how long each limit (`limits`) has lasted;
    `wall_s` when all this was, in seconds since 1970.
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
    origins: Mapping[int, SocketOwner] = field(default_factory=dict)
    tcp_connections: int = 0
    holds: HoldsInfo = NO_HOLDS
    leaves: Mapping[JobKey, str] = field(default_factory=dict)
    load: HostLoad = field(default_factory=HostLoad)
    udp: tuple[tuple[UdpSocket, str, bool], ...] = ()
    figures: AveragesSnapshot = NOTHING_YET
    destinations: Mapping[str, tuple[DestinationReport, ...]] = field(default_factory=dict)
    lasting: Mapping[tuple[object, ...], Lasting] = field(default_factory=dict)
    wall_s: float = 0.0
    programs: tuple[ProgramInfo, ...] = ()
    configuration: ConfigurationInfo = FILE_ALONE
