"""What the way in carries now: the configured rate or the link's, or what came while a queue stood in front of it.

The way out is measured by its shaper (broker.law.capacity.estimator): it knows what left, and finds out what got
through. Here it is the other way round. Nothing of ours stands before the queue, so at most times nothing holds senders
back, and a cut changes nothing; but every bit that gets through comes by our own counter. A link with a queue before it
works all the time, so what came meanwhile is what it carries: the delivery rate, to a percent or two, and no sample of
it can be limited by an application. So this is a law of its own (what bounds it is the other law's where nothing else
is said: delay, drains, steps):

    queue   two senders see one and none surely sees none (broker.law.capacity.inbound_delay): the capacity is what came
    since, if
            it came steadily; when that is less, storage that is held back is held to half
            for about twice the time that packets wait, so that the queue goes away
    more    more came than that, without a queue: so much it carries at least
    probe   storage has used all that it was left for a while, and somebody surely sees no queue: 3 % more, doubling to
            20 %, small again near what the last queue said; undone where nothing that comes shows it to be right
    hold    nothing comes and nobody says anything: the last capacity stands
    forget  for ten seconds much came, and nobody knew whether a queue stood: what operator or driver say counts again
    doubt   the queue stays though ever less comes in: it is not ours; the rate from before is given back, today's
            times are the path's own, and delay is not believed for half a minute

Where nobody, or one sender alone, tells how long packets take, the configured rate counts, and the reason says so.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from msgspec import Struct
from msgspec.structs import replace

from broker.law.capacity import inbound_delay, nominal_rate
from broker.law.capacity.decrease import (
    BLAMELESS_S,
    CUT_REFRACTORY_S,
    DELAY_S,
    DRAIN_FACTOR,
    DRAIN_S_MAX,
    EPISODE_S,
    PROBE_STEP,
    PROBE_WATCH_S,
)
from broker.law.capacity.estimator import BASE_BITS_PER_S_MIN, FALLBACK_BITS_PER_S
from broker.law.capacity.inbound_delay import NOTHING_HERE, VOICES_MIN, OutboundState, Verdict
from broker.law.capacity.inbound_state import InboundCapacityState
from broker.law.capacity.probe import PROBE_DELAY_S, PROBE_STEP_MAX
from broker.model.reasons import Because, Reason, source_of
from broker.model.values import FlowSample, InterfaceSample, SenderSample
from broker.policy.types import InterfacePolicy

HEADROOM = 0.95
"""What leaves a sender at this part of our rate arrives without a queue, though its shaper lets 64 KiB go at once."""
LOOK_BACK_S = 0.8
"""Of what came counts what did while all who see the queue saw it, from the first such sample of the last to the last
of the first, and nothing older: it may be another rate's."""
CAME_S, CAME_S_MIN = 2.0, 0.2
"""The longest time over which arrivals are kept, and the least over which they are a rate: a piece of 64 KiB is 2.6 %
of what 100 Mbit/s bring in it."""
GRAIN_S = 0.05
LOWER, LOWER_RAISED = 0.97, 0.99
"""What came while a queue stood is another capacity when it is less than 97 % of what was thought, which may be exact,
and 99 % just after a raise."""
PART_S, STEADY = 0.07, 0.8
"""Measured: behind a queue each tenth of a second brings the same to 1 %. A queue of a moment ago, or a busy host that
hears and says everything late, is told from it by that: each part has to bring 0.8 of the mean, of two at least."""
BUSY_S, HOLD_S = 0.3, 1.0
"""Storage has to be what is held back for so long before a raise, which is seen one detection time later; after a queue
was seen, the first raise waits a second."""
DISPUTED_S = 3.0
"""A raise waits so long where a program, or one sender alone, sees a queue: often rightly, and the others hear of it a
moment later; but whoever always says so, forbids nothing."""
USED = 0.8
"""Storage is held to 0.95 of the capacity and what comes is 0.9 of that at least, when it is what limits."""
SHOWN_S, SHOWN = 0.6, 1.15
"""A raise goes no further than 15 % over what came in the busiest tenth of the last 0.6 s: storage may be held to
its floor meanwhile, for a burst, and then nothing shows whether the raise before was right."""
STANDS_S, STANDS = 1.5, 0.98
"""And it has to be shown to be right by what comes: in one tenth of the 1.5 s after it (bursts of a second leave one
gap in that) 0.98 of what is let in. Else it is undone. Measured before: 82 Mbit/s were believed of a link of 70 until
the end, and people waited up to 46 ms, for in short gaps no queue lasts long enough to be believed."""
NEAR = 1.04
"""Up to 4 % over what the last queue said steps stay small."""
LOAD_MIN = 0.05
"""Of what operator or driver say: when less than that comes in, a queue is somebody else's."""
FORGET_S, FORGET_LOAD = 10.0, 0.3
"""Without a verdict for so long, while at least this part of it comes, an estimate is no measurement any more."""
DOUBT_MOVES, DOUBT_EXCESS = 5, 0.7
"""Five times lower and never higher, each time because less came, with more than 0.7 of the least delay so far left: it
does not follow what we let in. Not of the first: a flow that begins overshoots. A link that really became slower is
found in two or three, and brings the same from then on."""


class InboundEstimate(Struct, frozen=True):
    """What may be let in, headroom taken off; where the figure is from, and why; whether a queue is being drained."""

    state: InboundCapacityState
    rate_bits_per_s: int
    source: str
    reason: Reason
    draining: bool


def base_rate(policy: InterfacePolicy, sample: InterfaceSample | None) -> tuple[int, str]:
    """What the way in carries as far as operator and driver say, and who says it."""
    if policy.ingress_bits_per_s is not None:
        return max(BASE_BITS_PER_S_MIN, policy.ingress_bits_per_s), "configured"
    link = (sample.link_bits_per_s or 0) if sample is not None else 0
    return (link, "link") if link >= BASE_BITS_PER_S_MIN else (FALLBACK_BITS_PER_S, "fallback")


def estimate(
    *,
    now_s: float,
    state: InboundCapacityState | None,
    base: tuple[int, str],
    received_bytes: int | None,
    flows: Sequence[FlowSample],
    senders: Sequence[SenderSample],
    held: frozenset[str],
    limited: bool,
    out: OutboundState,
    holding: bool | None = None,
    here: Mapping[str, float] = NOTHING_HERE,
) -> InboundEstimate:
    """Estimate what the way in can carry now.

    Args:
        now_s: the tick's time.
        state: None at first, then the last estimate's.
        base: from `base_rate`.
        received_bytes: the interface's counter; None where it was not read, and then the last capacity stands.
        flows, senders: as measured, in any order.
        held: the addresses that a hold limits, or did a moment ago.
        holding: whether anybody is held back, by a hold or by an IFB of ours; None: whoever is in `held`.
        here: class to how long its packets wait in that IFB.
        limited: whether storage that is held uses all that it may.
        out: the other direction.
    """
    rate, source = base
    state = nominal_rate.inbound(state, rate, now_s=now_s)
    before_s = state.came[-1][0] if state.came else now_s
    state = _count(state, received_bytes, now_s=now_s)
    state = inbound_delay.hear(state, flows=flows, senders=senders, held=held, out=out, now_s=now_s, here=here)
    busy_s = state.busy_s + now_s - before_s if limited and now_s >= state.drain_until_s else 0.0
    state = replace(state, busy_s=busy_s)
    raised = state.changed_by == "raise" and now_s - state.changed_s <= PROBE_WATCH_S
    said = inbound_delay.verdict(state, threshold_s=PROBE_DELAY_S if raised else DELAY_S, now_s=now_s)
    settled = now_s >= max(state.drain_until_s, state.ignore_delay_until_s)
    load_min = LOAD_MIN * rate if source != "fallback" else 0.0
    if said.queue and settled and now_s - max(state.changed_s, state.drain_until_s) >= CUT_REFRACTORY_S:
        state = _queue(state, said, holding=bool(held) if holding is None else holding, load_min=load_min, now_s=now_s)
    elif not said.queue and (state.rate_bits_per_s < rate or state.changed_by == "raise"):
        state = _more(state, said, now_s=now_s)
    if said.queue or said.clear or not state.came or now_s - before_s > FORGET_S:
        state = replace(state, heard_s=now_s)
    elif now_s - state.heard_s > FORGET_S and state.rate_bits_per_s < rate:
        state = _forgotten(state, now_s=now_s)
    measured = state.rate_bits_per_s < rate
    return InboundEstimate(
        state,
        int(HEADROOM * state.rate_bits_per_s),
        "measured" if measured else source,
        _reason(state, said, source, now_s=now_s),
        now_s < state.drain_until_s,
    )


def _count(state: InboundCapacityState, received_bytes: int | None, *, now_s: float) -> InboundCapacityState:
    if received_bytes is None:
        return replace(state, received_bytes=None, came=())
    if state.received_bytes is None or received_bytes < state.received_bytes or not state.came:
        return replace(state, received_bytes=received_bytes, came=((now_s, 0.0),))
    bits = state.came[-1][1] + 8.0 * (received_bytes - state.received_bytes)
    came = state.came
    if len(came) > 1 and came[-1][0] - came[-2][0] < GRAIN_S:
        came = came[:-1]  # decisions may come fifty times a second
    came = (*(entry for entry in came if entry[0] > now_s - CAME_S), (now_s, bits))
    return replace(state, received_bytes=received_bytes, came=came)


def _came_bits_per_s(state: InboundCapacityState, *, since_s: float) -> float | None:
    """What came since a time, where that is long enough ago."""
    if len(state.came) < 2:
        return None
    end_s, end = state.came[-1]
    start_s, start = min(state.came, key=lambda entry: abs(entry[0] - since_s))
    return (end - start) / (end_s - start_s) if end_s - start_s >= CAME_S_MIN else None


def _came_steadily(state: InboundCapacityState, *, since_s: float, until_s: float) -> float | None:
    """What came in a time for which a queue was seen; None where that is too short, or not every part of it brought
    about the same: then the link did not work all the time, whatever waited, and the figure says nothing of it."""
    during = [entry for entry in state.came if since_s <= entry[0] <= until_s]
    if len(during) < 2 or during[-1][0] - during[0][0] < CAME_S_MIN:
        return None
    (start_s, start), (end_s, end) = during[0], during[-1]
    mean = (end - start) / (end_s - start_s)
    parts, (last_s, last) = [], during[0]
    for at_s, bits in during[1:]:
        if at_s - last_s >= PART_S:
            parts.append((bits - last) / (at_s - last_s))
            last_s, last = at_s, bits
    return mean if len(parts) > 1 and min(parts) >= STEADY * mean else None


def _queue(
    state: InboundCapacityState, said: Verdict, *, holding: bool, load_min: float, now_s: float
) -> InboundCapacityState:
    """A queue stands: take the capacity for what came, and let the queue go away."""
    since_s = max(now_s - LOOK_BACK_S, said.since_s, state.drain_until_s)
    came = _came_steadily(state, since_s=since_s, until_s=said.until_s)
    if came is None or came < load_min:
        return state
    first = not state.episode_rate_bits_per_s or now_s - max(state.changed_s, state.drain_until_s) > EPISODE_S
    if first:
        state = replace(
            state,
            episode_rate_bits_per_s=state.rate_bits_per_s,
            episode_excess_s=said.excess_s,
            episode_moves=0,
        )
    elif state.episode_moves >= DOUBT_MOVES and said.excess_s >= DOUBT_EXCESS * state.episode_excess_s:
        rate = state.episode_rate_bits_per_s
        return replace(
            inbound_delay.rebase(state),
            rate_bits_per_s=rate, changed_s=now_s, changed_by="doubt", ignore_delay_until_s=now_s + BLAMELESS_S,
            episode_moves=0,
        )  # fmt: skip
    state = replace(state, episode_excess_s=min(state.episode_excess_s, said.excess_s))
    rate = min(state.base_bits_per_s, int(came))
    lower = rate < (LOWER_RAISED if state.changed_by == "raise" else LOWER) * state.rate_bits_per_s
    if not lower and rate <= state.rate_bits_per_s:
        return state  # full, and as much comes as was thought: a burst of training that storage makes room for does so
    drain_s = min(DRAIN_S_MAX, said.excess_s / (1 - DRAIN_FACTOR)) if lower and holding else 0.0
    return replace(
        state,
        rate_bits_per_s=max(BASE_BITS_PER_S_MIN, rate),
        changed_s=now_s,
        changed_by="queue",
        excess_s=said.excess_s,
        senders_seen=said.seen_by,
        drain_until_s=now_s + drain_s,
        ignore_before_s=now_s + drain_s,
        busy_s=0.0,
        step=PROBE_STEP,
        failed_bits_per_s=rate,
        episode_moves=state.episode_moves + holding if lower else 0,
    )


def _more(state: InboundCapacityState, said: Verdict, *, now_s: float) -> InboundCapacityState:
    """No queue is seen: the capacity is at least what comes, and may be more than it was taken for."""
    if state.changed_by == "raise" and state.settled_bits_per_s and not _stands(state, now_s=now_s):
        if now_s - state.untried_s >= STANDS_S:
            return replace(
                state,
                rate_bits_per_s=state.settled_bits_per_s,
                changed_s=now_s,
                changed_by="undone",
                busy_s=0.0,
                step=PROBE_STEP,
                failed_bits_per_s=state.settled_bits_per_s,
            )
    elif state.settled_bits_per_s != state.rate_bits_per_s:
        state = replace(state, settled_bits_per_s=state.rate_bits_per_s)
    came = _came_bits_per_s(state, since_s=now_s - BUSY_S)
    if came is not None and came > state.rate_bits_per_s:
        rate = min(state.base_bits_per_s, int(came))
        return replace(state, rate_bits_per_s=rate, changed_s=now_s, changed_by="more", episode_moves=0)
    pause_s = BUSY_S if state.changed_by in ("raise", "more") else HOLD_S
    if came is None or came < USED * state.rate_bits_per_s or not said.clear or state.busy_s < BUSY_S:
        return state
    if now_s - max(state.changed_s, state.drain_until_s) < (DISPUTED_S if said.disputed else pause_s):
        return state
    step = state.step or PROBE_STEP
    rate = min(
        state.base_bits_per_s,
        int(state.rate_bits_per_s * (1 + step)),
        int(SHOWN * _busiest(state, since_s=now_s - SHOWN_S)),
    )
    if rate <= state.rate_bits_per_s:
        return state
    gentle = state.rate_bits_per_s < NEAR * state.failed_bits_per_s
    return replace(
        state,
        rate_bits_per_s=rate,
        changed_s=now_s,
        changed_by="raise",
        untried_s=now_s if state.rate_bits_per_s == state.settled_bits_per_s else state.untried_s,
        busy_s=0.0,
        step=PROBE_STEP if gentle else min(PROBE_STEP_MAX, 2 * step),
    )


def _stands(state: InboundCapacityState, *, now_s: float) -> bool:
    """Whether what came since the last raise shows that it was right."""
    return _busiest(state, since_s=state.changed_s) >= STANDS * HEADROOM * state.rate_bits_per_s


def _busiest(state: InboundCapacityState, *, since_s: float) -> float:
    """The highest rate at which anything came since a time, over a tenth of a second or nearly."""
    most, last = 0.0, None
    for at_s, bits in state.came:
        if at_s < since_s:
            continue
        if last is None:
            last = at_s, bits
        elif at_s - last[0] >= PART_S:
            most, last = max(most, (bits - last[1]) / (at_s - last[0])), (at_s, bits)
    return most


def _forgotten(state: InboundCapacityState, *, now_s: float) -> InboundCapacityState:
    came = _came_bits_per_s(state, since_s=now_s - CAME_S)
    if came is None or came < FORGET_LOAD * state.rate_bits_per_s:
        return replace(state, heard_s=now_s)
    return replace(state, rate_bits_per_s=state.base_bits_per_s, changed_s=now_s, changed_by="forgotten", heard_s=now_s)


def _reason(state: InboundCapacityState, said: Verdict, source: str, *, now_s: float) -> Reason:
    rate = int(HEADROOM * state.rate_bits_per_s)
    if now_s < state.drain_until_s:
        return Because.WAY_IN_DRAINING(rate_bits_per_s=rate, excess_s=state.excess_s)
    if now_s < state.ignore_delay_until_s:
        return Because.DELAY_NOT_OURS(rate_bits_per_s=rate)
    if state.rate_bits_per_s < state.base_bits_per_s:
        if state.changed_by == "raise":
            return Because.WAY_IN_PROBING(rate_bits_per_s=rate, base_bits_per_s=int(HEADROOM * state.base_bits_per_s))
        return Because.QUEUE_ON_THE_WAY_IN(rate_bits_per_s=rate, excess_s=state.excess_s, senders=state.senders_seen)
    if source == "fallback":
        return Because.INGRESS_UNKNOWN()
    if said.heard < VOICES_MIN:
        return Because.WAY_IN_UNHEARD(rate_bits_per_s=rate, source=source_of(source), heard=said.heard)
    return Because.LINK_RATE(rate_bits_per_s=rate, source=source_of(source), seen="no queue seen elsewhere")
