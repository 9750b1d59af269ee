"""What the decision remembers from tick to tick. Nobody but the broker's pure modules looks inside.

Times in here are readings of the clock that `decide` is given; the daemon starts with `State()` after every restart.
"""

from __future__ import annotations

import enum

from msgspec import Struct

from broker.law.inbound_state import HeldState, IngressState


class ClassState(Struct, frozen=True):
    """One class' counters at the last tick, its recent usage, and what it is owed.

    Fields: `usage_bits_per_s` the highest throughput in each of the last slots, newest first; `slot_end_s` when the
    newest slot closes; `owed_bits` promised minus received in each part of the guarantee window, newest first;
    `owed_end_s` when the newest part closes; `repaying` whether its rate is raised to catch up.
    """

    name: str
    sent_bytes: int = 0
    dropped_packets: int = 0
    throughput_bits_per_s: float | None = None
    usage_bits_per_s: tuple[float, ...] = ()
    slot_end_s: float = 0.0
    owed_bits: tuple[float, ...] = ()
    owed_end_s: float = 0.0
    repaying: bool = False


class Withheld(enum.Enum):
    """Why a burst is not believed at all."""

    PRIVILEGE_LOST = "lost"
    NAME_UNKNOWN = "name"


class BurstState(Struct, frozen=True):
    """One burst under way: what the class had sent when it began, and how much of it is believed.

    Fields: `sent_bytes_before` is -1 where that was not known; `claimed_bytes` what was announced, at most
    `claim_bytes_max`, by which it is judged when it ends; `credited_bytes` the same, or 0 where it is `withheld`;
    `first` whether it is its job's first.
    """

    job: str
    step: int
    started_s: float
    sent_bytes_before: int
    credited_bytes: int
    uid: int = 0
    claimed_bytes: int = 0
    claim_bytes_max: int = 0
    first: bool = False
    withheld: Withheld | None = None


class Standing(enum.Enum):
    """Whether a job's announcements hold storage back; `broker.law.bursts.credit` has the transitions."""

    TRUSTED = "trusted"
    BARRED = "barred"
    ON_TRIAL = "on-trial"


class JobState(Struct, frozen=True):
    """One job of one user.

    Fields: `burst_bytes` its last measured bursts, newest first; `unused` and `used` how many in a row carried too
    little, or enough, of what was claimed; `barred_until_s` until when it holds nobody back, `barred_s` for how long it
    was barred last, 0 while it is trusted; `expected_s` when its next burst is due by its own word, `foretold` how many
    forecasts in a row were good; `admitted` whether its name was taken from its user's allowance.
    """

    job: str
    seen_s: float
    burst_bytes: tuple[int, ...] = ()
    uid: int = 0
    unused: int = 0
    used: int = 0
    standing: Standing = Standing.TRUSTED
    barred_until_s: float = 0.0
    barred_s: float = 0.0
    expected_s: float | None = None
    foretold: int = 0
    admitted: bool = False


class UserState(Struct, frozen=True):
    """How many new names of jobs a user may still have believed, as of a time."""

    uid: int
    names_left: float
    as_of_s: float


class RiskState(Struct, frozen=True):
    """For how long a user's storage may still go before training's bursts, as of a time; `spent` until enough of it has
    come back."""

    uid: int
    left_s: float
    as_of_s: float
    spent: bool = False


class JobUseState(Struct, frozen=True):
    """One job's use of a class at one interface, counted as a class' is.

    Fields: `of_leaf` whether it was counted in the job's own leaf (else: in reports); `began_s` since when it has been
    sending again after a pause, `seen_s` when it last did; `uid` whose job it is.
    """

    job: str
    traffic_class: str
    use: ClassState
    of_leaf: bool
    began_s: float
    seen_s: float
    uid: int | None = None


class FlowState(Struct, frozen=True):
    """One connection: its baseline, and where its counters stood lately.

    `points` are (time, delivered bytes, sent packets, lost packets), oldest first. `minimum_s` is the transport's own
    minimum as last seen; `baseline_s` is ours. `way_at_s` is when the last one-way sample was sent, `way_wait_s` how
    long it waited elsewhere, `others_s` what of that is a queue of others (`broker.law.capacity.cross_traffic`), as one
    sent at `others_at_s` showed; `way_least_s` are (start, least one-way delay) of the last parts of the window over
    which that baseline is taken, oldest first. `unproven_packets` is how many new ones it has to send before what it
    loses counts again.
    """

    key: str
    baseline_s: float | None = None
    minimum_s: float | None = None
    points: tuple[tuple[float, int, int, int], ...] = ()
    way_at_s: float | None = None
    way_least_s: tuple[tuple[float, float], ...] = ()
    way_wait_s: float = 0.0
    others_s: float = 0.0
    others_at_s: float = 0.0
    unproven_packets: int = 0


class DestinationState(Struct, frozen=True):
    """One destination's last delay signals: (time, at least, at most), seconds over the baseline that are not our
    queue.

    `two_way` where much came in at the time, so that acknowledgements may have waited in a queue towards us; `source`
    as in `FlowSample`, and `uid` whose programs say it where it is "report"; `asked` where the way there was measured
    by itself, and then `others_s` is what others' queue adds to the last of them.
    """

    peer: str
    two_way: bool
    source: str = "tcp-info"
    uid: int | None = None
    asked: bool = False
    excess: tuple[tuple[float, float, float], ...] = ()
    others_s: float = 0.0


class ArrivalState(Struct, frozen=True):
    """One packet whose way was measured: when it left our queue, how long it then waited elsewhere, and how much longer
    in a queue of others; `peer` as user `uid` knows it (`broker.law.capacity.flow_delay.told_peer`)."""

    peer: str
    left_s: float
    wait_s: float
    others_s: float = 0.0
    uid: int | None = None

    @property
    def arrived_s(self) -> float:
        """When it arrived, but for the way without a queue, which is the same for all."""
        return self.left_s + self.wait_s + self.others_s


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
    `pressed_s` when another class than compute last had more to send than the network took, `wanting_s` when any had;
    `one_way_s` when a one-way signal last came; `received_bits_per_s_max` the most that came in, slowly forgotten;
    delay that was measured before `ignore_before_s` does not count."""

    flows: tuple[FlowState, ...] = ()
    destinations: tuple[DestinationState, ...] = ()
    ticks: tuple[TickState, ...] = ()
    wire_ratio: float = 1.04
    covered: float = 0.0
    pressed_s: float | None = None
    wanting_s: float | None = None
    one_way_s: float | None = None
    received_bits_per_s_max: float = 0.0
    ignore_before_s: float = 0.0
    arrivals: tuple[ArrivalState, ...] = ()


class CapacityState(Struct, frozen=True):
    """The estimator of one interface's capacity.

    Fields: `base_bits_per_s` is never exceeded; `rate_bits_per_s` believed to be carried; `drain_until_s` until when
    half of it is used, so that a queue elsewhere empties; `cut_s`, `raised_s`, `changed_s` when it last moved; `hold_s`
    and `step` of the next probe, `failed_bits_per_s` what came through at the last cut, as mended while it drained,
    `cut_carried_bits_per_s` as the cut had it, or, if that was by acknowledgements, as arrivals said first, 0 until
    then; `busy_s` how long the shaper has been the limit since the last move, `free_s` how long it has not been; the
    `episode_*` fields tell whether delay follows our rate; `ignore_delay_until_s` until when it is believed not to;
    `settled_bits_per_s` what made no queue before the last raises, 0 where that is not known; `one_destination` whether
    the rate rests on what one destination says alone, `agreed_s` when two last said the same; `claimed_s` when it was
    last cut for losses that only programs told of; `unheard_s` how long the shaper has been the limit while no
    connection told anything; `jitter_s` by how much packets' waits differ from one to the next while nothing more is
    tried.
    """

    base_bits_per_s: int
    rate_bits_per_s: int
    signals: SignalState = SignalState()
    drain_until_s: float = 0.0
    cut_s: float | None = None
    raised_s: float | None = None
    changed_s: float = 0.0
    rate_before_raise_bits_per_s: int = 0
    hold_s: float = 0.0
    step: float = 0.0
    failed_bits_per_s: int = 0
    back_off_s: float = 0.0
    busy_s: float = 0.0
    free_s: float = 0.0
    episode_rate_bits_per_s: int = 0
    episode_excess_s: float = 0.0
    episode_cuts: int = 0
    cut_from_bits_per_s: int = 0
    surely_more_bits_per_s: int = 0
    fallen_s: float | None = None
    ignore_delay_until_s: float = 0.0
    settled_bits_per_s: int = 0
    cut_carried_bits_per_s: int = 0
    one_destination: bool = False
    agreed_s: float | None = None
    claimed_s: float | None = None
    unheard_s: float = 0.0
    jitter_s: float = 0.0
    changed_by: str = ""
    moved_excess_s: float = 0.0
    moved_baseline_s: float = 0.0


class SegmentState(Struct, frozen=True):
    """How many segments TCP may hand over in one piece since the last tick; None: as many as the device takes."""

    gso_max_segs: int | None = None


class InterfaceState(Struct, frozen=True):
    """The memory about one interface. `counters_s` is when the counters behind `classes` were read."""

    name: str
    counters_s: float | None = None
    classes: tuple[ClassState, ...] = ()
    received_bytes: int | None = None
    capacity: CapacityState | None = None
    bursts: tuple[BurstState, ...] = ()
    jobs: tuple[JobState, ...] = ()
    users: tuple[UserState, ...] = ()
    risks: tuple[RiskState, ...] = ()
    job_uses: tuple[JobUseState, ...] = ()
    held: tuple[HeldState, ...] = ()
    segments: SegmentState | None = None


class State(Struct, frozen=True):
    """The memory of `decide`. Start with `State()`; hand back what the last decision gave."""

    ticks: int = 0
    interfaces: tuple[InterfaceState, ...] = ()
    ingress: tuple[IngressState, ...] = ()
