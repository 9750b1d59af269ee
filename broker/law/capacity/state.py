"""What the capacity estimate remembers from tick to tick: the estimate itself, and what each direction measured.

Both directions have the same `CapacityState`. What led to it differs: outbound knows what connections report and what
left (`SignalState`), inbound what came and how long senders' packets take (`InboundSignalState`).
"""

from __future__ import annotations

from enum import Enum

from msgspec import Struct

Series = tuple[tuple[float, float], ...]
"""(when, seconds), oldest first."""


class Phase(Enum):
    """What the estimate is doing; `broker.law.capacity.estimator` has the table of transitions."""

    SETTLED = "settled"
    """The rate stands."""
    DRAINING = "draining"
    """After a cut: half of the rate, until the queue elsewhere is gone."""
    HOLDING = "holding"
    """After a drain: no probe yet."""
    PROBING = "probing"
    """After a raise: a queue now is taken for its doing."""
    FORGETTING = "forgetting"
    """Nobody reports: the rate rises unproven, step by step."""
    DOUBTING = "doubting"
    """Delay did not follow our rate: it is not believed."""


class Cause(Enum):
    """What speaks for a bottleneck elsewhere."""

    DELAY = "delay"
    PROBE = "probe"
    """A shorter delay, just after a raise."""
    LOSS = "loss"


class Cut(Struct, frozen=True):
    """The last cut.

    Fields: `at_s`, and `cause`; `from_bits_per_s` the rate before it; `carried_bits_per_s` what was carried then, as
    re-measured during the drain, at most `first_bits_per_s` (0: not known yet); `surely_more_bits_per_s` is above the
    link for sure; `drained_s` when the drain ends; `excess_s` and `baseline_s` the delay that it was made for, and by
    how many `votes`.
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
    """Cuts close to each other, which tell whether delay follows our rate: the rate before the first, the least delay
    since, and how many there were."""

    rate_bits_per_s: int = 0
    excess_s: float = 0.0
    cuts: int = 0


class CapacityState(Struct, frozen=True):
    """The estimate of one direction of one interface.

    Fields: `base_bits_per_s` is never exceeded; `rate_bits_per_s` believed to be carried; `changed_s` when the phase
    began or the rate last moved, of a cut the end of its drain; `busy_s` how long our own limit has been what limits
    since then; `unheard_s` how long it has been while nobody reported anything;
    `claimed_s` when it was last cut for losses that only programs report.
    """

    base_bits_per_s: int
    rate_bits_per_s: int
    phase: Phase = Phase.SETTLED
    changed_s: float = 0.0
    busy_s: float = 0.0
    unheard_s: float = 0.0
    cut: Cut | None = None
    probe: Probe = Probe()
    episode: Episode = Episode()
    claimed_s: float | None = None

    @property
    def one_destination(self) -> bool:
        """Whether the rate rests on what one destination reports: it may be about that destination's own link."""
        return self.cut is not None and self.cut.votes <= 1


class FlowState(Struct, frozen=True):
    """One connection: its baseline, and where its counters stood lately.

    `points` are (time, delivered bytes, sent packets, lost packets), oldest first. `minimum_s` is the transport's own
    minimum as last seen; `baseline_s` is ours. `one_way_at_s` is when the last one-way sample was sent,
    `one_way_wait_s` how long it waited elsewhere, `cross_s` what of that is a queue of others, as one sent at
    `cross_at_s` showed; `one_way_least_s` is the windowed minimum of one-way delay. `unproven_packets` is how many new
    ones it has to send before what it loses counts again.
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
    unproven_packets: int = 0


class DestinationState(Struct, frozen=True):
    """One destination's last delay signals: (time, at least, at most), seconds over the baseline that are not our
    queue.

    `two_way` where much came in at the time, so that acknowledgements may have waited in a queue towards us; `source`
    as in `FlowSample`, and `uid` whose programs say it where it is "report"; `one_way` where the way there was measured
    by itself, and then `cross_s` is what others' queue adds to the last of them.
    """

    peer: str
    two_way: bool
    source: str = "tcp-info"
    uid: int | None = None
    one_way: bool = False
    excess: tuple[tuple[float, float, float], ...] = ()
    cross_s: float = 0.0


class ArrivalState(Struct, frozen=True):
    """One packet whose way was measured: when it left our queue, how long it then waited elsewhere, and how much longer
    in a queue of others; `peer` as user `uid` knows it (`broker.law.capacity.flow_delay.peer_of_user`)."""

    peer: str
    left_s: float
    wait_s: float
    cross_s: float = 0.0
    uid: int | None = None

    @property
    def arrived_s(self) -> float:
        """When it arrived, but for the way without a queue, which is the same for all."""
        return self.left_s + self.wait_s + self.cross_s


class TickState(Struct, frozen=True):
    """One tick's counters: bits that left and came; packets lost, sent, dropped here; delay in each class' queue; and
    of the packets lost and sent those of connections that tell of what left since the last cut's drain."""

    at_s: float
    elapsed_s: float
    sent_bits: float
    received_bits: float | None
    lost_packets: int
    sent_packets: int
    dropped_packets: int
    backlog_bytes: tuple[int, ...]
    queue_s: tuple[float, ...]
    lost_since_packets: int = 0
    sent_since_packets: int = 0


class SignalState(Struct, frozen=True):
    """The memory of the signals. `wire_ratio` is wire bits a delivered bit; `covered` how sure that is, 0 to 1;
    `wanting_s` when a class last had more to send than the network took; `one_way_s` when a one-way signal last came;
    delay that was measured before `ignore_before_s` does not count."""

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
    """One series of times that packets take towards us.

    Fields: `key` of the series, `sender` whose packets they are; `at_s` and `value_s` of the last sample; `least_s`
    (start, least) of the last parts of the window over which the baseline is taken, oldest first; `uid` whose programs
    report it, None where our kernel measured it.
    """

    key: str
    sender: str
    at_s: float
    value_s: float
    least_s: tuple[tuple[float, float], ...]
    uid: int | None = None


class SenderDelayState(Struct, frozen=True):
    """What one sender's packets waited lately, over their baseline: (when, seconds), oldest first; `reported` by
    programs of ours, `measured` by TCP or his broker."""

    sender: str
    reported: Series = ()
    measured: Series = ()

    @property
    def both(self) -> tuple[Series, Series]:
        """Reported and measured."""
        return self.reported, self.measured


class InboundSignalState(Struct, frozen=True):
    """The memory of what comes in. `received_bytes` is the counter, `came` (when, bits) of the last two seconds,
    counted from zero, oldest first; what was measured before `ignore_before_s` is about a rate or a drain that is
    over."""

    received_bytes: int | None = None
    came: Series = ()
    sources: tuple[SourceState, ...] = ()
    sender_delays: tuple[SenderDelayState, ...] = ()
    ignore_before_s: float = 0.0


class OutboundCapacity(Struct, frozen=True):
    """What the outbound direction remembers: its estimate, and what it was made from."""

    estimate: CapacityState
    signals: SignalState = SignalState()


class InboundCapacity(Struct, frozen=True):
    """The same of the inbound direction."""

    estimate: CapacityState
    signals: InboundSignalState = InboundSignalState()
