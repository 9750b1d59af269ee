"""What `decide` returns: the values of one tick, with the state that the next call takes back."""

from __future__ import annotations

from msgspec import Struct

from broker.law.state import State
from broker.model.leases import Hold, HoldOutcome
from broker.model.values import Alarm, Allocation, Credit, Watch


class Decision(Struct, frozen=True):
    """The result of one tick: what to remember, what to apply, what was credited, and what is wrong.

    `holds` is what other brokers shall be asked, all of it; `verdicts` what became of what they asked of us; `again_s`
    in how many seconds to decide again, where the next tick would be late; `watches` what else to decide again for.
    """

    state: State
    allocation: Allocation
    credits: tuple[Credit, ...] = ()
    alarms: tuple[Alarm, ...] = ()
    holds: tuple[Hold, ...] = ()
    verdicts: tuple[HoldOutcome, ...] = ()
    again_s: float | None = None
    watches: tuple[Watch, ...] = ()
