"""What the operator wants, validated whole: the frozen result of reading `broker.toml`. `broker.config` makes it."""

from __future__ import annotations

from dataclasses import dataclass, field

CLASS_NAMES = ("control", "compute", "storage", "other")
"""The classes of every host, in the order of their HTB minors 10, 20, 30, 40."""


@dataclass(frozen=True)
class Share:
    """A part of a capacity: either a fraction of it or a rate of its own. Exactly one of the two is set."""

    fraction: float | None = None
    rate_bits_per_s: int | None = None

    def of(self, capacity_bits_per_s: int) -> int:
        """Give the rate that this is of a capacity, rounded down, at most the capacity."""
        if self.rate_bits_per_s is not None:
            return min(self.rate_bits_per_s, capacity_bits_per_s)
        return int((self.fraction or 0.0) * capacity_bits_per_s)


@dataclass(frozen=True)
class MatchRule:
    """One way to find traffic of a class. Exactly one field is set.

    Fields: `cgroup` path below the cgroup v2 mount, e.g. "hive.slice/hive-storage.slice"; `port` TCP or UDP, either
    end; `uid` the user that owns the socket; `dscp` codepoint 0 to 63.
    """

    cgroup: str | None = None
    port: int | None = None
    uid: int | None = None
    dscp: int | None = None


@dataclass(frozen=True)
class ClassPolicy:
    """What one class is promised. The words are those of `docs/architecture.md`; lower `priority` is served first."""

    name: str
    guarantee: Share
    guarantee_window_s: float
    floor: Share
    ceiling: Share
    weight: float
    priority: int
    match: tuple[MatchRule, ...] = ()


@dataclass(frozen=True)
class InterfacePolicy:
    """One shaped interface.

    Fields: `egress_bits_per_s` None is "auto": the link's own speed, measured from there on; `limit_segments` whether
    its `gso_max_segs` follows the rate; `ingress` whether the way in is looked after, by asking the brokers of those
    who send; `ingress_bits_per_s` what it carries, and then an IFB holds who has no broker; None: the link's own speed.
    """

    name: str
    egress_bits_per_s: int | None = None
    limit_segments: bool = True
    ingress: bool = False
    ingress_bits_per_s: int | None = None


@dataclass(frozen=True)
class DaemonPolicy:
    """Where the daemon keeps things and how often it decides."""

    tick_s: float = 0.1
    state_dir: str = "/var/lib/hive-qos"
    api_socket: str = "/run/hive-qos/broker.sock"
    session_socket: str = "/run/hive-qos/session.sock"
    group: str = "hive-qos"
    admin_group: str = "hive-qos-admin"
    record_file: str | None = None


@dataclass(frozen=True)
class PeersPolicy:
    """How this broker talks to others (`hive-broker/1`), and as whom.

    Fields: `listen` a literal address and a UDP port, e.g. "[::]:4710"; `ca`, `certificate` and `key` files in PEM;
    `engine` "auto", "native" or "aioquic".
    """

    listen: str
    ca: str
    certificate: str
    key: str
    engine: str = "auto"


@dataclass(frozen=True)
class Policy:
    """Everything that the operator decided. `classes` holds all four, in the order of `CLASS_NAMES`.

    `peers` is None where this broker talks to no other.
    """

    interfaces: tuple[InterfacePolicy, ...]
    classes: tuple[ClassPolicy, ...]
    daemon: DaemonPolicy = field(default_factory=DaemonPolicy)
    peers: PeersPolicy | None = None

    def class_policy(self, name: str) -> ClassPolicy:
        """Find a class by name.

        Raises:
            KeyError: no such class.
        """
        for entry in self.classes:
            if entry.name == name:
                return entry
        raise KeyError(name)
