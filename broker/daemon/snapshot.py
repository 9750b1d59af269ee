"""What the loop shows of one tick, frozen: whoever asks has it rendered in his own thread. Values alone."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from broker.daemon.flows import PassedSocket
from broker.daemon.following import NOTHING_YET, Figures
from broker.daemon.origins import Origin
from broker.daemon.sock_diag import TcpConnection, UdpSocket
from broker.model import Alarm, Decision, Hold, JobKey, Lease, Measurements, Policy, Reason, Verdict
from broker.peers.report import PeerStatus


@dataclass(frozen=True)
class SessionInfo:
    """One connected program. `told_bits_per_s`: by class, at which rate it was told that it may send; `command` the
    name of its process."""

    name: str
    client: str
    job: str
    pid: int
    uid: int
    told_bits_per_s: Mapping[str, int] = field(default_factory=dict)
    command: str | None = None


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

    Of `tcp_connections` in all, `tcp` are those that are shown; `udp` sockets that are, each with whether something of
    it was seen waiting lately; `origins` says by inode whose they are; `slots` of leaves by job.
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
    udp: tuple[tuple[UdpSocket, str, bool], ...] = ()
    figures: Figures = NOTHING_YET
