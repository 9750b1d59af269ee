"""The state of the capacity estimate: the estimate itself, and the measurements of each direction.

Both directions have the same `CapacityState`. The measurements differ: outbound what connections report and what left
(`SignalState`), inbound what arrived and the delay of senders' packets (`InboundSignalState`).
"""

from __future__ import annotations

from enum import Enum

from msgspec import Struct

Series = tuple[tuple[float, float], ...]
"""(when, seconds), oldest first."""


class Phase(Enum):
    """The phase of the estimate; `broker.law.capacity.estimator` has the table of transitions."""

    SETTLED = "settled"
    """The rate is constant."""
    DRAINING = "draining"
    """After a cut: half of the rate, until the queue elsewhere is gone."""
    HOLDING = "holding"
    """After a drain: no probe yet."""
    PROBING = "probing"
    """After a raise: a queue now is attributed to it."""
    FORGETTING = "forgetting"
    """No report comes: the rate rises unproven, step by step."""
    DOUBTING = "doubting"
    """Delay did not follow our rate: it is ignored."""


class Cause(Enum):
    """The evidence of a bottleneck elsewhere."""

    DELAY = "delay"
    PROBE = "probe"
    """A shorter delay, just after a raise."""
    LOSS = "loss"


class Cut(Struct, frozen=True):
    """The last cut.

    Fields: `at_s`, and `cause`; `from_bits_per_s` the rate before it; `carried_bits_per_s` what was carried then, as
    re-measured during the drain, at most `first_bits_per_s` (0: not known yet); `surely_more_bits_per_s` surely above
    the link; `drained_s` when the drain ends; `excess_s` and `baseline_s` the delay that caused it, with how many
    `votes`.
    """

    at_s: float
    cause: Cause
    from_bits_per_s: int
    carried_bits_per_s: int
    first_bits_per_s: int
    surely_more_bits_per_s: int
    drained_s: float
    excess_s: float
    baseline_s: float
    votes: int = 0


class Probe(Struct, frozen=True):
    """The raises since the last cut.

    Fields: `before_bits_per_s` the rate before the last one; `settled_bits_per_s` the last rate that was proven, 0
    where none is known; `since_s` when the first one since then was, None where none was; `step` of the next;
    `back_off_s` the pause that a failed one costs; `jitter_s` by how much packets' waits differ from one to the next
    while nothing more is tried.
    """

    before_bits_per_s: int = 0
    settled_bits_per_s: int = 0
    since_s: float | None = None
    step: float = 0.0
    back_off_s: float = 0.0
    jitter_s: float = 0.0


class Episode(Struct, frozen=True):
    """Cuts close to each other, which show whether delay follows our rate.

    Fields: the rate before the first, the least delay since, and the number of cuts.
    """

    rate_bits_per_s: int = 0
    excess_s: float = 0.0
    cuts: int = 0


class CapacityState(Struct, frozen=True):
    """The estimate of one direction of one interface.

    Fields: `base_bits_per_s` is never exceeded; `rate_bits_per_s` believed to be carried; `changed_s` when the phase
    began or the rate last moved, of a cut the end of its drain; `busy_s` how long our own limit has been the
    bottleneck since then; `unreported_s` how long it has been without any report; `claimed_s` when it was last cut for
    losses that only programs report.
    """

    base_bits_per_s: int
    rate_bits_per_s: int
    phase: Phase = Phase.SETTLED
    changed_s: float = 0.0
    busy_s: float = 0.0
    unreported_s: float = 0.0
    cut: Cut | None = None
    probe: Probe = Probe()
    episode: Episode = Episode()
    claimed_s: float | None = None

    @property
    def one_destination(self) -> bool:
        """Whether the rate rests on one destination's reports, which may be about that destination's own link."""
        return self.cut is not None and self.cut.votes <= 1


class FlowState(Struct, frozen=True):
    """One connection: its baseline, and its recent counters.

    `points` are (time, delivered bytes, sent packets, lost packets), oldest first. `minimum_s` is the transport's own
    minimum as last seen; `baseline_s` is ours. `one_way_at_s` is when the last one-way sample was sent,
    `one_way_wait_s` how long it waited elsewhere, `cross_s` the part of it that is cross traffic's queue, as a packet
    sent at `cross_at_s` showed; `one_way_least_s` is the windowed minimum of one-way delay.
    """

    key: str
    baseline_s: float | None = None
    minimum_s: float | None = None
    points: tuple[tuple[float, int, int, int], ...] = ()
    one_way_at_s: float | None = None
    one_way_least_s: tuple[tuple[float, float], ...] = ()
    one_way_wait_s: float = 0.0
    cross_s: float = 0.0
    cross_at_s: float = 0.0


class DestinationState(Struct, frozen=True):
    """One destination's last delay signals: (time, at least, at most), seconds over the baseline that are not our
    queue.

    `two_way` where much came in at the time, so that acknowledgements may have waited in a queue towards us; `source`
    as in `FlowSample`; `uid` the user whose programs report it where the source is "report"; `one_way` where one-way
    delay was measured, and then `cross_s` is what cross traffic's queue adds to the last signal.
    """

    peer: str
    two_way: bool
    source: str = "tcp-info"
    uid: int | None = None
    one_way: bool = False
    excess: tuple[tuple[float, float, float], ...] = ()
    cross_s: float = 0.0


class ArrivalState(Struct, frozen=True):
    """One packet with a one-way measurement.

    Fields: `left_s` when it left our queue; `wait_s` how long it then waited elsewhere, and `cross_s` how much longer
    in cross traffic's queue; `peer` as user `uid` reports it (`broker.law.capacity.flow_delay.peer_of_user`).
    """

    peer: str
    left_s: float
    wait_s: float
    cross_s: float = 0.0
    uid: int | None = None

    @property
    def arrived_s(self) -> float:
        """When it arrived, less the propagation delay, which is the same for all."""
        return self.left_s + self.wait_s + self.cross_s


class TickState(Struct, frozen=True):
    """One tick's counters: bits sent and received; of each class packets lost, sent, dropped here, and queue delay."""

    at_s: float
    elapsed_s: float
    sent_bits: float
    received_bits: float | None
    lost_packets: tuple[int, ...]
    sent_packets: tuple[int, ...]
    dropped_packets: tuple[int, ...]
    backlog_bytes: tuple[int, ...]
    queue_s: tuple[float, ...]


class SignalState(Struct, frozen=True):
    """The state of the outbound signals.

    Fields: `wire_ratio` wire bits per delivered bit; `covered` how sure that is, 0 to 1; `wanting_s` when a class last
    had more to send than the network took; `one_way_s` when a one-way signal last came; `ignore_before_s`: delay
    measured before it does not count.
    """

    flows: tuple[FlowState, ...] = ()
    destinations: tuple[DestinationState, ...] = ()
    ticks: tuple[TickState, ...] = ()
    wire_ratio: float = 1.04
    covered: float = 0.0
    wanting_s: float | None = None
    one_way_s: float | None = None
    ignore_before_s: float = 0.0
    arrivals: tuple[ArrivalState, ...] = ()


class SourceState(Struct, frozen=True):
    """One series of inbound packet delays.

    Fields: `key` of the series; `at_s` and `value_s` of the last sample; `least_s` (start,
    least) of the last parts of the baseline's window, oldest first; `uid` the user whose programs report it, None
    where our kernel measured it.
    """

    key: str
    at_s: float
    value_s: float
    least_s: tuple[tuple[float, float], ...]
    uid: int | None = None


class SenderDelayState(Struct, frozen=True):
    """The recent delays of one sender's packets over their baseline: (when, seconds), oldest first.

    Fields: `reported` by local programs, `measured` by TCP or the sender's broker.
    """

    sender: str
    reported: Series = ()
    measured: Series = ()

    @property
    def both(self) -> tuple[Series, Series]:
        """Reported and measured."""
        return self.reported, self.measured


class InboundSignalState(Struct, frozen=True):
    """The state of the inbound signals.

    Fields: `received_bytes` the counter; `came` (when, bits) of the last two seconds, counted from zero, oldest first;
    `ignore_before_s`: measurements before it belong to an earlier rate or drain.
    """

    received_bytes: int | None = None
    came: Series = ()
    sources: tuple[SourceState, ...] = ()
    sender_delays: tuple[SenderDelayState, ...] = ()
    ignore_before_s: float = 0.0


class OutboundCapacity(Struct, frozen=True):
    """The state of the outbound direction: its estimate, and its signals."""

    estimate: CapacityState
    signals: SignalState = SignalState()


class InboundCapacity(Struct, frozen=True):
    """The state of the inbound direction: its estimate, and its signals."""

    estimate: CapacityState
    signals: InboundSignalState = InboundSignalState()
