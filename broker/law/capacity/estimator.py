"""Estimate what a link carries now, in one direction: the base, or less when the bottleneck is elsewhere.

The base is the rate that the operator or the driver names. When a slower link lies behind ours, a queue grows there:
delay that our own queues do not explain, then loss. The rules are the same in both directions:

    cut     when the measurements agree on a queue: to what was carried (broker.law.capacity.decrease)
    drain   use half of that until the queue is gone; the far link stays busy with it meanwhile
    hold    do not probe for a second; without fresh measurements, keep the last capacity
    probe   when our own limit is the bottleneck and no queue shows: 3 % more, doubling (broker.law.capacity.probe);
            undo a raise that makes a queue, or that nothing proves
    forget  when nothing has reported for long: return to the base in steps
    doubt   delay that persists after repeated cuts is not our queue: restore the rate, make the present delay the
            baseline, and ignore delay for half a minute; a probe, which needs a path without a queue, ends that

Why not fixed steps: from 40 to 20 Mbit/s steps of 5 % take fourteen cuts of 300 ms, and the delivery rate shows it at
once. cake-autorate no longer sets the rate to the achieved rate, because an idle sender achieves nothing. So a cut
needs load and a bound, and does not follow an application that had little to send.
"""

from __future__ import annotations

from collections.abc import Mapping
from enum import Enum
from typing import Protocol

from msgspec.structs import replace

from broker.law.capacity import decrease, probe
from broker.law.capacity.evidence import Direction, Evidence
from broker.law.capacity.state import CapacityState, Phase


class Event(Enum):
    """What changes the estimate."""

    CUT = "there is a queue elsewhere"
    DRAIN = "the queue of the last cut is still there"
    DRAINED = "the queue is gone, or the drain has timed out"
    RAISE = "a higher rate may be tried"
    SHOWN = "more than the rate passed without a queue"
    UNPROVEN = "nothing confirms the last raises"
    FORGET = "nothing has reported for long"
    DOUBT = "delay does not follow our rate"
    BELIEVE = "the doubt has timed out"


ANYWHERE = {Event.CUT: Phase.DRAINING, Event.RAISE: Phase.PROBING, Event.FORGET: Phase.FORGETTING}
TRANSITIONS: Mapping[Phase, Mapping[Event, Phase]] = {
    Phase.SETTLED: {**ANYWHERE, Event.SHOWN: Phase.SETTLED},
    Phase.DRAINING: {Event.DRAIN: Phase.DRAINING, Event.DRAINED: Phase.HOLDING},
    Phase.HOLDING: {**ANYWHERE, Event.SHOWN: Phase.SETTLED, Event.DRAIN: Phase.DRAINING, Event.DOUBT: Phase.DOUBTING},
    Phase.PROBING: {**ANYWHERE, Event.SHOWN: Phase.SETTLED, Event.UNPROVEN: Phase.HOLDING, Event.DOUBT: Phase.DOUBTING},
    Phase.FORGETTING: {**ANYWHERE, Event.SHOWN: Phase.SETTLED},
    Phase.DOUBTING: {Event.BELIEVE: Phase.SETTLED, Event.RAISE: Phase.PROBING, Event.SHOWN: Phase.DOUBTING},
}
"""The phase that each event leads to. An event that a phase does not list does not occur in it."""

TIMED: Mapping[Phase, Event] = {Phase.DRAINING: Event.DRAINED, Phase.DOUBTING: Event.BELIEVE}
"""The phases that end by the clock, and the event that ends them."""


class Effect(Protocol):
    """What an event does to the figures; the table sets the phase."""

    def __call__(
        self, state: CapacityState, evidence: Evidence, direction: Direction, *, now_s: float
    ) -> CapacityState: ...


EFFECTS: Mapping[Event, Effect] = {
    Event.CUT: decrease.cut,
    Event.DRAIN: decrease.drain,
    Event.DOUBT: decrease.give_back,
    Event.RAISE: probe.raised,
    Event.SHOWN: probe.shown,
    Event.UNPROVEN: probe.taken_back,
    Event.FORGET: probe.forgotten,
}

BLAMELESS_S = 30.0
"""Delay is ignored for so long after a doubt, or until a probe. Sooner, the cuts for cross traffic's queue would begin
again; longer, a real fall would be missed."""
SAME_LINK = 0.9
"""A link that is itself the bottleneck is estimated at most a tenth below its speed: a cut takes 5 to 10 % off."""
UNSETTLED_S = 2.0
"""For so long after a cut or a raise there may be a queue elsewhere, where no priority helps, so storage makes room for
bursts. While our own limit is the bottleneck, raises come more often than that."""


def estimate(state: CapacityState, evidence: Evidence, direction: Direction, *, now_s: float) -> CapacityState:
    """Update the estimate by one tick.

    Args:
        state: of the last tick; the first is `of_base`'s.
        evidence: what was measured in this one.
        direction: `OUTBOUND`, `UNNAMED` or `INBOUND`.
        now_s: the tick's time.
    """
    kept_s = state.busy_s if direction.busy_gaps else 0.0
    state = replace(
        state,
        busy_s=state.busy_s + evidence.elapsed_s if evidence.limiting else kept_s,
        probe=probe.followed(state, evidence.room),
        unreported_s=0.0 if evidence.reported else state.unreported_s + (evidence.elapsed_s if evidence.used else 0.0),
    )
    if _is_over(state, now_s=now_s):
        state = replace(state, phase=TRANSITIONS[state.phase][TIMED[state.phase]])
    event = _event(state, evidence, direction, now_s=now_s)
    if event is None or event not in TRANSITIONS[state.phase]:
        return state
    after = EFFECTS[event](state, evidence, direction, now_s=now_s)
    return replace(after, phase=TRANSITIONS[state.phase][event])


def of_base(state: CapacityState | None, base_bits_per_s: int, *, now_s: float) -> CapacityState:
    """Adapt the estimate to the present base; a lower estimate survives a change of the named speed.

    A driver that reports 1 Gbit/s after 100 Mbit/s, or nothing for a while (Wi-Fi between two access points), shows
    nothing about a bottleneck elsewhere. But if the speed rises and the estimate was close to the old one, the link
    itself was the bottleneck: then it counts as a new link, and the estimate starts again.
    """
    if state is not None and state.base_bits_per_s == base_bits_per_s:
        return state
    if state is None or is_another_link(state, base_bits_per_s):
        return CapacityState(base_bits_per_s, base_bits_per_s, changed_s=now_s)
    rate = min(base_bits_per_s, state.rate_bits_per_s)
    return replace(state, base_bits_per_s=base_bits_per_s, rate_bits_per_s=rate)


def is_another_link(state: CapacityState, base_bits_per_s: int) -> bool:
    """Whether the speed rose of a link that was itself the bottleneck."""
    rises = base_bits_per_s > state.base_bits_per_s
    return rises and state.rate_bits_per_s >= SAME_LINK * state.base_bits_per_s


def is_draining(state: CapacityState, *, at_s: float) -> bool:
    """Whether half of the rate is used at a time, so that a queue elsewhere empties."""
    return state.cut is not None and at_s < state.cut.drained_s


def is_unsettled(state: CapacityState, *, now_s: float) -> bool:
    """Whether there may still be a queue elsewhere."""
    moved = state.phase not in (Phase.SETTLED, Phase.DOUBTING) and now_s - state.changed_s < UNSETTLED_S
    return moved and state.rate_bits_per_s < state.base_bits_per_s


def _is_over(state: CapacityState, *, now_s: float) -> bool:
    """Whether the phase has timed out."""
    if state.phase is Phase.DRAINING:
        return not is_draining(state, at_s=now_s)
    return state.phase is Phase.DOUBTING and now_s >= state.changed_s + BLAMELESS_S


def _event(state: CapacityState, evidence: Evidence, direction: Direction, *, now_s: float) -> Event | None:
    """The event that the evidence shows."""
    if state.phase is Phase.DRAINING or decrease.is_deeper(state, evidence.carried, direction, now_s=now_s):
        return Event.DRAIN
    if decrease.may_cut(state, evidence.queue, now_s=now_s):
        return Event.DOUBT if decrease.is_in_doubt(state, evidence.queue, now_s=now_s) else Event.CUT
    if probe.is_unproven(state, direction, now_s=now_s):
        return Event.UNPROVEN
    if evidence.carried.least_bits_per_s > state.rate_bits_per_s:
        return Event.SHOWN
    if probe.may_raise(state, evidence, now_s=now_s):
        return Event.RAISE
    return Event.FORGET if probe.may_forget(state, direction) else None
