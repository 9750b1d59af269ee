"""The decision's state from tick to tick. Only the broker's pure modules read its fields.

Times in here are readings of the clock that `decide` is given; the daemon starts with `State()` after every restart.
"""

from __future__ import annotations

import enum

from msgspec import Struct

from broker.law.capacity.state import OutboundCapacity
from broker.law.inbound_state import Account, HeldState, IngressState
from broker.model.values import SegmentAllocation


class ClassState(Struct, frozen=True):
    """One class' counters at the last tick, its recent usage, and what it is owed.

    Fields: `usage_bits_per_s` the highest throughput in each of the last slots, newest first; `slot_end_s` when the
    newest slot closes; `account` what the lender is owed.
    """

    name: str
    sent_bytes: int = 0
    dropped_packets: int = 0
    throughput_bits_per_s: float | None = None
    usage_bits_per_s: tuple[float, ...] = ()
    slot_end_s: float = 0.0
    account: Account = Account()


class Withheld(enum.Enum):
    """Why a burst has no credit."""

    PRIVILEGE_LOST = "lost"
    NAME_UNKNOWN = "name"


class BurstState(Struct, frozen=True):
    """One burst in progress: what the class had sent when it began, and its credit.

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
    was barred last, 0 while it is trusted; `expected_s` when it forecasts its next burst, `foretold` how many forecasts
    in a row were good; `admitted` whether its name was taken from its user's allowance.
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
    """For how long a user's storage may still precede training's bursts, as of a time.

    `spent` is set until enough of that time has been restored.
    """

    uid: int
    left_s: float
    as_of_s: float
    spent: bool = False


class DeadlineState(Struct, frozen=True):
    """How one session's backlog gets less, towards its deadline.

    Fields: `began_s` since when it is followed; `counted_bytes` what was left at `counted_s`; `pace_bits_per_s` how
    fast it got less on average; `at_risk` whether it will be late.
    """

    session: str
    began_s: float
    counted_s: float
    counted_bytes: int
    pace_bits_per_s: float = 0.0
    at_risk: bool = False


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


class AppliedState(Struct, frozen=True):
    """The last decision for one class, with its promises; the dead band compares with it."""

    name: str
    rate_bits_per_s: int
    ceil_bits_per_s: int
    guarantee_bits_per_s: int = -1
    floor_bits_per_s: int = -1
    ceiling_bits_per_s: int = -1

    @property
    def promised(self) -> tuple[int, int, int]:
        """Guarantee, floor and ceiling; recordings of earlier versions have none."""
        return self.guarantee_bits_per_s, self.floor_bits_per_s, self.ceiling_bits_per_s

    @property
    def held(self) -> bool:
        """Whether its ceil is lowered below its ceiling."""
        return self.ceil_bits_per_s != self.ceiling_bits_per_s


class InterfaceState(Struct, frozen=True):
    """The state of one interface. `counters_s` is when the counters behind `classes` were read."""

    name: str
    counters_s: float | None = None
    classes: tuple[ClassState, ...] = ()
    received_bytes: int | None = None
    capacity: OutboundCapacity | None = None
    bursts: tuple[BurstState, ...] = ()
    jobs: tuple[JobState, ...] = ()
    users: tuple[UserState, ...] = ()
    risks: tuple[RiskState, ...] = ()
    deadlines: tuple[DeadlineState, ...] = ()
    applied_capacity_bits_per_s: int = 0
    applied: tuple[AppliedState, ...] = ()
    job_uses: tuple[JobUseState, ...] = ()
    held: tuple[HeldState, ...] = ()
    segments: SegmentAllocation | None = None


class State(Struct, frozen=True):
    """The state of `decide`. Start with `State()`; pass in the last decision's state."""

    ticks: int = 0
    interfaces: tuple[InterfaceState, ...] = ()
    ingress: tuple[IngressState, ...] = ()
