"""The broker's values: what was measured, what was decided, and why. Frozen, comparable, and JSON in both directions.

    Policy          what the operator wants                     (broker.policy.types, made by broker.policy.toml)
    Measurements    what the daemon saw by this tick            (this file)
    State           what the decision remembers                 (broker.law.state, opaque to everybody else)
    Decision        state, allocation, credits, alarms          (broker.law.decision)

Times in here are ages and durations relative to the tick's `now_s`, never timestamps, so that a measurement means the
same wherever it is read. A thing that was not measured is None; a thing that was measured a while ago carries its age.
Rates are integer bits per second, sizes bytes, durations float seconds.
"""

from __future__ import annotations

from enum import StrEnum

from msgspec import Struct

from broker.model.leases import Lease
from broker.model.reasons import Reason

DESTINATIONS_MAX = 32
"""Destinations of a burst that are kept by themselves: a recorded tick stays below 2 KiB for each burst."""


class ClassSample(Struct, frozen=True):
    """The kernel's counters of one class (its inner HTB node): wire bytes, cumulative since the class was built.

    Fields: `sent_bytes` cumulative; `backlog_bytes` queued now, in all leaves of the class; `dropped_packets`
    cumulative. A counter that goes backwards means that the tree was rebuilt; that tick's delta is void.
    """

    name: str
    sent_bytes: int
    backlog_bytes: int = 0
    dropped_packets: int = 0


JobKey = tuple[int | None, str]
"""A job: whose it is, by the kernel's word, and its name; another user's job of that name is another job. Without a
user the programs that name no job, and jobs in recordings of earlier versions, which told them apart by name alone."""
NO_JOB: JobKey = (None, "")


class JobSample(Struct, frozen=True):
    """What one job has sent through one interface in one class, cumulative; a counter that goes back began anew.

    Fields: `delivered_bytes` as its programs report; `programs` how many of them have sockets here; `sends` whether
    one delivered something within the last second; `leaf_sent_bytes` and `leaf_backlog_bytes` the counters of the
    job's own leaf, wire bytes, None where it has none; `uid` whose job it is, None in recordings of earlier versions.
    """

    job: str
    traffic_class: str
    delivered_bytes: int = 0
    programs: int = 0
    sends: bool = False
    leaf_sent_bytes: int | None = None
    leaf_backlog_bytes: int | None = None
    uid: int | None = None

    @property
    def key(self) -> JobKey:
        """Which job it is."""
        return self.uid, self.job

    @property
    def sent_bytes(self) -> int:
        """What it has sent: wire bytes where it has a leaf of its own, else payload."""
        return self.delivered_bytes if self.leaf_sent_bytes is None else self.leaf_sent_bytes


class FlowSample(Struct, frozen=True):
    """One connection, as its transport session reported it or as TCP_INFO shows it; the latest of each, every tick.

    Fields:
        key: the same string for the same connection from tick to tick, e.g. "s-12/10.0.0.2:4242" or "tcp/10.0.0.9:873".
        peer: the destination's address without its port; delay signals are told apart by it.
        traffic_class: one of `CLASS_NAMES`.
        source: "report" (a transport session), "tcp-info" (sock_diag) or "probe" (an ICMP echo: delay alone).
        age_s: how old these figures are now; the daemon counts it up while no newer ones come.
        rtt_s: smoothed round-trip time. rtt_latest_s: the last sample. rtt_s_min: the connection's own minimum.
        one_way_s: the way there alone, plus a constant that nobody knows (two clocks): only its changes mean anything.
        one_way_age_s: how long before the report that packet was sent.
        inbound_s: the way towards us alone, plus another such constant. inbound_age_s: how long ago it had come.
        received_bytes: what came from there, cumulative.
        delivered_bytes: acknowledged, cumulative. sent_packets, lost_packets: cumulative (segments, retransmits).
        delivery_rate_bits_per_s: the transport's own figure. application_limited: it had nothing more to send.
        job: of the session that reported it; "" where that names none. uid: its user, by the kernel's word; None of
            what the kernel measured itself.
    """

    key: str
    peer: str
    traffic_class: str
    source: str
    age_s: float
    rtt_s: float | None = None
    rtt_latest_s: float | None = None
    rtt_s_min: float | None = None
    one_way_s: float | None = None
    one_way_age_s: float | None = None
    delivered_bytes: int | None = None
    sent_packets: int | None = None
    lost_packets: int | None = None
    delivery_rate_bits_per_s: int | None = None
    application_limited: bool = False
    job: str = ""
    uid: int | None = None
    inbound_s: float | None = None
    inbound_age_s: float | None = None
    received_bytes: int | None = None


class Burst(Struct, frozen=True):
    """One announced burst of a user's job through one interface (the daemon sums the destinations behind it).

    Fields: `announced_bytes` as the job said; `age_s` since it was announced; `remaining_s` until its deadline,
    negative when that has passed; `next_s` until the next burst that the job expects, None where it did not say;
    `uid` whose job it is, by the kernel's word; `by_destination` the bytes to each address, of the
    `DESTINATIONS_MAX` that get most.
    Pass it every tick until its end was announced, its session is gone, or `remaining_s` is below -1.
    """

    job: str
    step: int
    announced_bytes: int
    age_s: float
    remaining_s: float
    next_s: float | None = None
    uid: int = 0
    by_destination: tuple[tuple[str, int], ...] = ()


class Need(Struct, frozen=True):
    """What one storage program says that it has to do through one interface.

    Fields: `session` who says it, `uid` whose program it is; `backlog_bytes` still to be sent; `age_s` since it was
    said; `remaining_s` until it has to be done, negative when that has passed, None where there is no deadline;
    `replicas_at_risk` how many objects have fewer copies than they should.
    """

    session: str
    uid: int
    backlog_bytes: int
    age_s: float
    remaining_s: float | None = None
    replicas_at_risk: int = 0


class BrokerThere(StrEnum):
    """Whether a broker answers at an address: UNKNOWN until the first attempt has an end, NO after one that failed."""

    YES = "yes"
    NO = "no"
    UNKNOWN = "unknown"


class SenderSample(Struct, frozen=True):
    """What one host has sent to us in one class, by its TCP connections with us.

    Fields: `received_bytes` of payload, in order or not, cumulative for the address and class, whatever connections
    come and go; `age_s` since they were counted; `rtt_s` the least round trip to it; `broker` whether a broker answers
    there; `granted_bits_per_s` what that broker said to our last hold, None where it said
    nothing, and `refused` whether it keeps none of it; `broker_rtt_s` the last round trip to that broker, measured at
    most `broker_rtt_age_s` ago; `receive_rtt_s` the least round trip that TCP, as the receiver, takes its connections
    to have.
    """

    address: str
    traffic_class: str
    received_bytes: int
    age_s: float
    rtt_s: float | None = None
    broker: BrokerThere = BrokerThere.UNKNOWN
    granted_bits_per_s: int | None = None
    refused: bool = False
    broker_rtt_s: float | None = None
    receive_rtt_s: float | None = None
    broker_rtt_age_s: float = 0.0


class DestinationSample(Struct, frozen=True):
    """The kernel's counters of one destination that has a leaf of its own in a class; both are parts of the class'."""

    address: str
    traffic_class: str
    sent_bytes: int
    backlog_bytes: int = 0


class InterfaceSample(Struct, frozen=True):
    """One interface at this tick, both directions.

    Fields: `link_bits_per_s` what the driver says the link can do, or said last while it has no carrier, None where it
    does not (veth, some Wi-Fi); `carrier` whether it has one, `carrier_changes` how often that came or went since the
    interface was made, None where the kernel does not say;
    `counters_age_s` how old the class counters are (0 when read in this tick), None when they were never read;
    `classes` the counters, in any order; `flows` and `bursts` those that go out through it;
    `received_bytes` what came in through it, cumulative, None where that is not known; `pace_bits_per_s` what left
    through it in the last hundredths of a second, where somebody looks that often (`Watch`), else None; `mtu_bytes` its
    longest packet, None where that is not known; `senders` who
    sends to us through it; `destinations` those with a leaf of their own, as old as the class counters; `leases` what
    other brokers have asked of us and is in force, for addresses reached through it; `needs` what storage declares;
    `jobs` those whose sessions have sockets here; `arriving` the counters of an
    IFB of ours through which what comes in passes, none while there is no such, None where they could not be read.
    """

    name: str
    link_bits_per_s: int | None = None
    counters_age_s: float | None = None
    classes: tuple[ClassSample, ...] = ()
    flows: tuple[FlowSample, ...] = ()
    bursts: tuple[Burst, ...] = ()
    received_bytes: int | None = None
    senders: tuple[SenderSample, ...] = ()
    destinations: tuple[DestinationSample, ...] = ()
    leases: tuple[Lease, ...] = ()
    needs: tuple[Need, ...] = ()
    jobs: tuple[JobSample, ...] = ()
    pace_bits_per_s: int | None = None
    mtu_bytes: int | None = None
    arriving: tuple[ClassSample, ...] | None = ()
    carrier: bool | None = None
    carrier_changes: int | None = None


class ScheduleInForce(Struct, frozen=True):
    """A schedule that holds now. `until` on the clock of its zone (ISO 8601, minutes), None where it never ends;
    `left_s` until then."""

    name: str
    timezone: str
    until: str | None
    left_s: int | None


class SchedulesNow(Struct, frozen=True):
    """What the wall clock says of the policy's schedules: those that hold, in the order of the file, and the names of
    those whose time zone this host does not know."""

    held: tuple[ScheduleInForce, ...] = ()
    unknown: tuple[str, ...] = ()


class Measurements(Struct, frozen=True):
    """All that the daemon knows at a tick. The order within each tuple means nothing."""

    interfaces: tuple[InterfaceSample, ...] = ()
    schedules: SchedulesNow = SchedulesNow()


class ClassAllocation(Struct, frozen=True):
    """What one class gets from now on, and why.

    `rate_bits_per_s` and `ceil_bits_per_s` go to HTB as rate and ceil. The rates of an interface sum to at most its
    capacity, and no ceil exceeds it (`InterfaceAllocation.open_bits_per_s` is the exception). The others are for
    people: `share_bits_per_s` is what water-filling gives the class at present demand; throughput and backlog are
    measured; `held_back_bytes` of the backlog wait because another broker asked for it; `owed_bytes` is how far the
    class is behind its guarantee over its window.
    """

    name: str
    rate_bits_per_s: int
    ceil_bits_per_s: int
    priority: int
    guarantee_bits_per_s: int
    floor_bits_per_s: int
    ceiling_bits_per_s: int
    demand_bits_per_s: int
    share_bits_per_s: int
    throughput_bits_per_s: int | None
    backlog_bytes: int | None
    dropped_packets: int | None
    reason: Reason
    held_back_bytes: int = 0
    owed_bytes: int = 0


class JobAllocation(Struct, frozen=True):
    """What one job gets of its class from now on, and why.

    `rate_bits_per_s` and `ceil_bits_per_s` go to the job's leaf, where it has one: the rates of a class' jobs sum to at
    most the class' rate. `weight` is the operator's, beside jobs of the same user; `class_weight` what that comes to
    beside all jobs of the class, and divides what the leaves borrow. `share_bits_per_s` is its part of what its class
    could send now; demand, throughput and backlog as of a class. `uid` whose job it is.
    """

    job: str
    traffic_class: str
    weight: float
    rate_bits_per_s: int
    ceil_bits_per_s: int
    guarantee_bits_per_s: int
    share_bits_per_s: int
    demand_bits_per_s: int
    throughput_bits_per_s: int | None
    backlog_bytes: int | None
    reason: Reason
    uid: int | None = None
    class_weight: float = 1.0

    @property
    def key(self) -> JobKey:
        """Which job it is."""
        return self.uid, self.job


class DestinationAllocation(Struct, frozen=True):
    """What a class may send towards one address: rate and ceil of its leaf there, and why; `guarantee_bits_per_s` is
    the class' guarantee of the smaller of both links, None where no lease is in force."""

    address: str
    traffic_class: str
    rate_bits_per_s: int
    ceil_bits_per_s: int
    reason: Reason
    guarantee_bits_per_s: int | None = None


class SegmentAllocation(Struct, frozen=True):
    """How many segments TCP may hand to an interface in one piece (None: the device's own limit), and why."""

    gso_max_segs: int | None
    reason: Reason


class InterfaceAllocation(Struct, frozen=True):
    """One interface's plan: `capacity_bits_per_s` is rate and ceil of the HTB root class; classes as in `CLASS_NAMES`.

    `capacity_source`: "configured", "link", "fallback" or "measured". `capacity_reason` says which signal moved it
    last. `destinations` is what other brokers have asked for. `in_kernel` is False where our own kernel enforces
    nothing of it: towards us, while all who send there have brokers that hold them back. `jobs` in order of class and
    name; `segments` None towards us. `open_bits_per_s` is set where the capacity rests on one destination: what all
    classes together may send then, class `other` beyond the capacity; the others' rates sum to at most the capacity.
    """

    name: str
    direction: str
    capacity_bits_per_s: int
    capacity_source: str
    capacity_reason: Reason
    classes: tuple[ClassAllocation, ...]
    destinations: tuple[DestinationAllocation, ...] = ()
    in_kernel: bool = True
    jobs: tuple[JobAllocation, ...] = ()
    segments: SegmentAllocation | None = None
    open_bits_per_s: int | None = None


class Allocation(Struct, frozen=True):
    """The plan for every interface of the policy, in the policy's order.

    Fields: `ingress` the inbound plan, where it is managed; `schedules` those in force, in the order of the file.
    """

    interfaces: tuple[InterfaceAllocation, ...] = ()
    ingress: tuple[InterfaceAllocation, ...] = ()
    schedules: tuple[ScheduleInForce, ...] = ()


class Credit(Struct, frozen=True):
    """How much of an announced burst the broker believes, and why: at most twice the job's recently measured bursts."""

    interface: str
    job: str
    step: int
    credited_bytes: int
    uid: int = 0
    reason: Reason | None = None


class Alarm(Struct, frozen=True):
    """Something the operator should know; it holds as long as decisions repeat it.

    `code` is stable, `subject` says where ("hqa0", "hqa0/storage").
    """

    code: str
    subject: str
    text: str


class Watch(Struct, frozen=True):
    """What to look for between two ticks: decide at once when what leaves through an interface, of all classes, reaches
    `bits_per_s` (`rising`) or falls below it."""

    interface: str
    bits_per_s: int
    rising: bool
