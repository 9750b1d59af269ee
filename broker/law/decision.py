"""What `decide` returns, with the state that the next call takes back; and whether the next one is due soon. Pure."""

from __future__ import annotations

from msgspec import Struct

from broker.law.sharing.demand import BACKLOG_BYTES_MIN, SENDING_BITS_PER_S
from broker.law.state import InterfaceState, State
from broker.model.leases import Hold, HoldOutcome
from broker.model.values import Alarm, Allocation, Credit, InterfaceSample, Measurements, Watch


class Decision(Struct, frozen=True):
    """The result of one tick: what to remember, what to apply, what was credited, and what is wrong.

    `holds` are all holds to request from other brokers; `verdicts` the results of their requests to us; `again_s` in
    how many seconds to decide again, where the next tick would be late; `watches` the rates to decide again at.
    """

    state: State
    allocation: Allocation
    credits: tuple[Credit, ...] = ()
    alarms: tuple[Alarm, ...] = ()
    holds: tuple[Hold, ...] = ()
    verdicts: tuple[HoldOutcome, ...] = ()
    again_s: float | None = None
    watches: tuple[Watch, ...] = ()


def is_active(decision: Decision, measurements: Measurements) -> bool:
    """Whether there is traffic, a backlog, a burst, a need, a hold or a lease, or a capacity is being measured.

    Args:
        decision: the last one.
        measurements: what it was made from.
    """
    return (
        bool(decision.holds)
        or any(map(_sends_or_asks, measurements.interfaces))
        or any(map(_is_followed, decision.state.interfaces))
        or any(state.allowance_bits_per_s > 0 for state in decision.state.ingress)
    )


def _sends_or_asks(sample: InterfaceSample) -> bool:
    waiting = any(entry.backlog_bytes >= BACKLOG_BYTES_MIN for entry in sample.classes)
    return waiting or bool(sample.bursts or sample.needs or sample.leases)


def _is_followed(state: InterfaceState) -> bool:
    sending = any((entry.throughput_bits_per_s or 0.0) >= SENDING_BITS_PER_S for entry in state.classes)
    return sending or _is_measured(state)


def _is_measured(state: InterfaceState) -> bool:
    found = state.capacity.estimate if state.capacity is not None else None
    return found is not None and found.rate_bits_per_s < found.base_bits_per_s
