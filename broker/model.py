"""The broker's values: what was measured, what was decided, and why. Frozen, comparable, and JSON in both directions.

    Policy          what the operator wants                     (broker.policy, made by broker.config)
    Measurements    what the daemon saw by this tick            (this file)
    State           what the decision remembers                 (broker.state, opaque to everybody else)
    Decision        state, allocation, credits, alarms          (this file)

Times in here are ages and durations relative to the tick's `now_s`, never timestamps, so that a measurement means the
same wherever it is read. A thing that was not measured is None; a thing that was measured a while ago carries its age.
Rates are integer bits per second, sizes bytes, durations float seconds.
"""

from __future__ import annotations

from dataclasses import dataclass

from broker.codec import dumps, from_json, to_json
from broker.holds import Hold, Lease, Verdict
from broker.policy import CLASS_NAMES, ClassPolicy, DaemonPolicy, InterfacePolicy, MatchRule, Policy, Share
from broker.reasons import Reason
from broker.state import State

__all__ = [
    "CLASS_NAMES", "Alarm", "Allocation", "Burst", "ClassAllocation", "ClassPolicy", "ClassSample", "Credit",
    "DaemonPolicy", "Decision", "DestinationAllocation", "DestinationSample", "FlowSample", "Hold",
    "InterfaceAllocation", "InterfacePolicy", "InterfaceSample", "Lease", "MatchRule", "Measurements", "Policy",
    "Reason", "SenderSample", "Share", "State", "Verdict", "dumps", "from_json", "to_json",
]  # fmt: skip


@dataclass(frozen=True)
class ClassSample:
    """The kernel's counters of one class (its inner HTB node): wire bytes, cumulative since the class was built.

    Fields: `sent_bytes` cumulative; `backlog_bytes` queued now, in all leaves of the class; `dropped_packets` and
    `overlimits` cumulative. A counter that goes backwards means that the tree was rebuilt; that tick's delta is void.
    """

    name: str
    sent_bytes: int
    backlog_bytes: int = 0
    dropped_packets: int = 0
    overlimits: int = 0


@dataclass(frozen=True)
class FlowSample:
    """One connection, as its transport session reported it or as TCP_INFO shows it; the latest of each, every tick.

    Fields:
        key: the same string for the same connection from tick to tick, e.g. "s-12/10.0.0.2:4242" or "tcp/10.0.0.9:873".
        peer: the destination's address without its port; delay signals are told apart by it.
        traffic_class: one of `CLASS_NAMES`.
        source: "report" (a transport session) or "tcp-info" (sock_diag).
        age_s: how old these figures are now; the daemon counts it up while no newer ones come.
        rtt_s: smoothed round-trip time. rtt_latest_s: the last sample. rtt_s_min: the connection's own minimum.
        one_way_s: the way there alone, plus a constant that nobody knows (two clocks): only its changes mean anything.
        one_way_age_s: how long before the report that packet was sent.
        delivered_bytes: acknowledged, cumulative. sent_packets, lost_packets: cumulative (segments, retransmits).
        delivery_rate_bits_per_s: the transport's own figure. application_limited: it had nothing more to send.
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


@dataclass(frozen=True)
class Burst:
    """One announced burst of a job through one interface (the daemon sums the destinations behind it).

    Fields: `announced_bytes` as the job said; `age_s` since it was announced; `remaining_s` until its deadline,
    negative when that has passed; `next_s` until the next burst that the job expects, None where it did not say.
    Pass it every tick until its end was announced, its session is gone, or `remaining_s` is below -1.
    """

    job: str
    step: int
    announced_bytes: int
    age_s: float
    remaining_s: float
    next_s: float | None = None


@dataclass(frozen=True)
class SenderSample:
    """What one host has sent to us in one class, by its TCP connections with us.

    Fields: `received_bytes` of payload, cumulative for the address and class, whatever connections come and go;
    `age_s` since they were counted; `rtt_s` the least round trip of them; `broker` whether a broker answers there:
    "yes", "no" or "unknown"; `granted_bits_per_s` what that broker said to our last hold, None where it said nothing,
    and `refused` whether it keeps none of it.
    """

    address: str
    traffic_class: str
    received_bytes: int
    age_s: float
    rtt_s: float | None = None
    broker: str = "unknown"
    granted_bits_per_s: int | None = None
    refused: bool = False


@dataclass(frozen=True)
class DestinationSample:
    """The kernel's counters of one destination that has a leaf of its own in a class; both are parts of the class'."""

    address: str
    traffic_class: str
    sent_bytes: int
    backlog_bytes: int = 0


@dataclass(frozen=True)
class InterfaceSample:
    """One interface at this tick, both directions.

    Fields: `link_bits_per_s` what the driver says the link can do, None where it does not (veth, some Wi-Fi);
    `counters_age_s` how old the class counters are (0 when read in this tick), None when they were never read;
    `classes` the counters, in any order; `flows` and `bursts` those that go out through it;
    `received_bytes` what came in through it, cumulative, None where that is not known; `senders` who sends to us
    through it; `destinations` those with a leaf of their own, as old as the class counters; `leases` what other
    brokers have asked of us and is in force, for addresses reached through it.
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


@dataclass(frozen=True)
class Measurements:
    """All that the daemon knows at a tick. The order within each tuple means nothing."""

    interfaces: tuple[InterfaceSample, ...] = ()


@dataclass(frozen=True)
class ClassAllocation:
    """What one class gets from now on, and why.

    `rate_bits_per_s` and `ceil_bits_per_s` go to HTB as rate and ceil. The rates of an interface sum to at most its
    capacity, and no ceil exceeds it. The others are for people: `share_bits_per_s` is what water-filling gives the
    class at present demand; throughput and backlog are measured.
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


@dataclass(frozen=True)
class DestinationAllocation:
    """What a class may send towards one address: rate and ceil of its leaf there, and why."""

    address: str
    traffic_class: str
    rate_bits_per_s: int
    ceil_bits_per_s: int
    reason: Reason


@dataclass(frozen=True)
class InterfaceAllocation:
    """One interface's plan: `capacity_bits_per_s` is rate and ceil of the HTB root class; classes as in `CLASS_NAMES`.

    `capacity_source`: "configured", "link", "fallback" or "measured". `capacity_reason` says which signal moved it
    last. `destinations` is what other brokers have asked for. `in_kernel` is False where our own kernel enforces
    nothing of it: towards us, while all who send there have brokers that hold them back.
    """

    name: str
    direction: str
    capacity_bits_per_s: int
    capacity_source: str
    capacity_reason: Reason
    classes: tuple[ClassAllocation, ...]
    destinations: tuple[DestinationAllocation, ...] = ()
    in_kernel: bool = True


@dataclass(frozen=True)
class Allocation:
    """The plan for every interface of the policy, in the policy's order; `ingress` of those whose way in is looked
    after."""

    interfaces: tuple[InterfaceAllocation, ...] = ()
    ingress: tuple[InterfaceAllocation, ...] = ()


@dataclass(frozen=True)
class Credit:
    """How much of an announced burst the broker believes: at most twice the job's recently measured bursts."""

    interface: str
    job: str
    step: int
    credited_bytes: int


@dataclass(frozen=True)
class Alarm:
    """Something the operator should know; it holds as long as decisions repeat it.

    `code` is stable, `subject` says where ("hqa0", "hqa0/storage").
    """

    code: str
    subject: str
    text: str


@dataclass(frozen=True)
class Decision:
    """The result of one tick: what to remember, what to apply, what was credited, and what is wrong.

    `holds` is what other brokers shall be asked, all of it; `verdicts` what became of what they asked of us; `again_s`
    in how many seconds to decide again, where the next tick would be late.
    """

    state: State
    allocation: Allocation
    credits: tuple[Credit, ...] = ()
    alarms: tuple[Alarm, ...] = ()
    holds: tuple[Hold, ...] = ()
    verdicts: tuple[Verdict, ...] = ()
    again_s: float | None = None
