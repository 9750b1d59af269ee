"""What the operator wants, validated whole: the frozen result of reading `broker.toml`. `broker.policy.toml` makes
it."""

from __future__ import annotations

from typing import Literal, get_args

from msgspec import Struct, field

TrafficClass = Literal["control", "compute", "storage", "other"]
CLASS_NAMES: tuple[str, ...] = get_args(TrafficClass)
"""The classes of every host, in the order of their HTB minors 10, 20, 30, 40."""


class Share(Struct, frozen=True):
    """A part of a capacity: either a fraction of it or a rate of its own. Exactly one of the two is set."""

    fraction: float | None = None
    rate_bits_per_s: int | None = None

    def of(self, capacity_bits_per_s: int) -> int:
        """Give the rate that this is of a capacity, rounded down, at most the capacity."""
        if self.rate_bits_per_s is not None:
            return min(self.rate_bits_per_s, capacity_bits_per_s)
        return int((self.fraction or 0.0) * capacity_bits_per_s)


class MatchRule(Struct, frozen=True):
    """One way to find traffic of a class. Exactly one field is set.

    Fields: `cgroup` path below the cgroup v2 mount, e.g. "hive.slice/hive-storage.slice"; `port` TCP or UDP, either
    end; `uid` the user that owns the socket; `dscp` codepoint 0 to 63; `address` a network, of either end, e.g.
    "10.88.0.0/16" or "fd00::/64".
    """

    cgroup: str | None = None
    port: int | None = None
    uid: int | None = None
    dscp: int | None = None
    address: str | None = None


class ClassPolicy(Struct, frozen=True):
    """What one class is promised. `docs/reference/configuration.md` has the words; lower `priority` is served first."""

    name: str
    guarantee: Share
    guarantee_window_s: float
    floor: Share
    ceiling: Share
    weight: float
    priority: int
    match: tuple[MatchRule, ...] = ()
    programs: tuple[str, ...] = ()
    """Names of `broker.policy.known_programs`, whose rules come after those of `match`."""


class InterfacePolicy(Struct, frozen=True):
    """One shaped interface.

    Fields: `egress_bits_per_s` None is "auto": the link's own speed, measured from there on; `limit_segments` whether
    its `gso_max_segs` follows the rate; `ingress` whether the inbound direction is managed, by requests to the senders'
    brokers; `ingress_bits_per_s` its rate, with which an IFB limits senders without a broker, None: the link's speed.
    """

    name: str
    egress_bits_per_s: int | None = None
    limit_segments: bool = True
    ingress: bool = False
    ingress_bits_per_s: int | None = None


class DaemonPolicy(Struct, frozen=True):
    """Where the daemon keeps things and how often it decides."""

    tick_s: float = 0.1
    state_dir: str = "/var/lib/hive-qos"
    api_socket: str = "/run/hive-qos/broker.sock"
    session_socket: str = "/run/hive-qos/session.sock"
    group: str = "hive-qos"
    admin_group: str = "hive-qos-admin"
    record_file: str | None = None


class JobPolicy(Struct, frozen=True):
    """What one job gets of its class, or each of the jobs that a pattern names.

    Fields: `name` a job's name, or a pattern with `*`, `?` and `[...]`; `guarantee` what it gets whenever it wants it,
    and `ceiling` what it never exceeds, shares of the interface's capacity; `weight` its part of the rest; `uid` whose
    jobs alone it is for, None for everybody's of that name.
    """

    name: str
    weight: float = 1.0
    guarantee: Share = Share(0.0)
    ceiling: Share = Share(1.0)
    uid: int | None = None


class ClassOverride(Struct, frozen=True):
    """What of a class is otherwise for a time. None: as the class has it."""

    name: str
    guarantee: Share | None = None
    floor: Share | None = None
    ceiling: Share | None = None
    weight: float | None = None
    priority: int | None = None


class SchedulePolicy(Struct, frozen=True):
    """Hours of the week in which classes are treated otherwise.

    Fields: `days` on which it begins, 0 is Monday; `from_s` and `to_s` seconds of the local clock's day; where `to_s`
    is not after `from_s` it ends on the next day; `timezone` a name of the time zone database.
    """

    name: str
    days: tuple[int, ...]
    from_s: int
    to_s: int
    timezone: str
    classes: tuple[ClassOverride, ...] = ()


class PeersPolicy(Struct, frozen=True):
    """How this broker talks to others (`hive-broker/1`), and as whom.

    Fields: `listen` a literal address and a UDP port, e.g. "[::]:4710"; `ca`, `certificate` and `key` files in PEM;
    `engine` "auto", "native" or "aioquic".
    """

    listen: str
    ca: str
    certificate: str
    key: str
    engine: str = "auto"


class ProbePolicy(Struct, frozen=True):
    """Hosts that are sent an ICMP echo every `interval_s`, by their plain addresses."""

    targets: tuple[str, ...]
    interval_s: float


class PagePolicy(Struct, frozen=True):
    """Where the status page and metrics are served over TCP to everybody who reaches that address.

    Fields: `listen` a literal address and a TCP port, e.g. "127.0.0.1:8710"; `names` by which browsers may ask for it,
    beside addresses, localhost and the host's own name.
    """

    listen: str
    names: tuple[str, ...] = ()


class StorageProgram(Struct, frozen=True):
    """A storage program that `hive-qos adapter` follows.

    Fields: `name` what the status calls it; `kind` which program it is; `url` where it answers; `key_file` with its
    key, `ca_file` with a certificate of its own; `deadline_s` by when its backlog is done each day, in seconds of the
    clock's day in `timezone` (None: this host's); `limit` whether its own rate is set.
    """

    name: str
    kind: str
    url: str
    key_file: str | None = None
    ca_file: str | None = None
    deadline_s: int | None = None
    timezone: str | None = None
    limit: bool = True


class Policy(Struct, frozen=True):
    """Everything that the operator decided. `classes` holds all four, in the order of `CLASS_NAMES`.

    `peers` is None where this broker talks to no other, `probe` where it sends no packet of its own to measure, `page`
    where it serves no page.
    `jobs` and `schedules` are in the order of the file, which decides where several match or hold.
    """

    interfaces: tuple[InterfacePolicy, ...]
    classes: tuple[ClassPolicy, ...]
    daemon: DaemonPolicy = field(default_factory=DaemonPolicy)
    jobs: tuple[JobPolicy, ...] = ()
    schedules: tuple[SchedulePolicy, ...] = ()
    peers: PeersPolicy | None = None
    probe: ProbePolicy | None = None
    page: PagePolicy | None = None

    storage_programs: tuple[StorageProgram, ...] = ()

    def class_policy(self, name: str) -> ClassPolicy:
        """Find a class by name.

        Raises:
            KeyError: no such class.
        """
        for entry in self.classes:
            if entry.name == name:
                return entry
        raise KeyError(name)


TRIAL_S_MIN, TRIAL_S_MAX = 1.0, 3600.0
"""Less cannot be answered by hand; who needs more than an hour wants a plain reload."""
