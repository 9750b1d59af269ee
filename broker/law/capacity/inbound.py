"""The inbound direction: what may be let in, from what our own interface counts and from how long packets take to us.

Nothing of ours stands before the queue in front of our link. So at most times nothing holds senders back, and a cut
changes nothing; but every bit that gets through passes our own counter. A link with a queue before it works all the
time, so what came meanwhile is what it carries, and no application can have limited it. Who sees that queue is
broker.law.capacity.inbound_delay's answer. Where nobody, or one sender alone, reports how long packets take, the
configured rate counts, and the reason says so.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

from msgspec import Struct
from msgspec.structs import replace

from broker.law.capacity import estimator, inbound_delay
from broker.law.capacity.delivery_rate import DeliveryRate
from broker.law.capacity.evidence import (
    BASE_BITS_PER_S_MIN,
    DELAY_S,
    FALLBACK_BITS_PER_S,
    INBOUND,
    PROBE_DELAY_S,
    Carried,
    Evidence,
    Queue,
    Room,
)
from broker.law.capacity.inbound_delay import NOTHING_HERE, SENDERS_MIN, OutboundLoad, Verdict
from broker.law.capacity.probe import BUSY_S, raised_lately
from broker.law.capacity.quorum import VOTE_S
from broker.law.capacity.state import CapacityState, Cause, InboundCapacity, InboundSignalState, Phase
from broker.model.reasons import Because, Reason, source_of
from broker.model.values import FlowSample, InterfaceSample, SenderSample
from broker.policy.types import InterfacePolicy

CAME_S, CAME_S_MIN, CAME_EVERY_S = 2.0, 0.2, 0.05
"""The longest time over which arrivals are kept, and the least over which they are a rate: a piece of 64 KiB is 2.6 %
of what 100 Mbit/s bring in it. Decisions may come fifty times a second; so many readings are not kept."""
LOWER, LOWER_RAISED = 0.97, 0.99
"""What came while a queue stood is another capacity when it is less than 97 % of what was thought, which may be exact,
and 99 % just after a raise."""
PART_S, STEADY = 0.07, 0.8
"""Measured: behind a queue each tenth of a second brings the same to 1 %. A queue of a moment ago, or a busy host that
hears and says everything late, is told from it by that: each part has to bring 0.8 of the mean, of two at least."""
USED = 0.8
"""Storage is held to 0.95 of the capacity and what comes is 0.9 of that at least, when it is what limits."""
SHOWN_S, SHOWN = 0.6, 1.15
"""A raise goes no further than 15 % over what came in the busiest tenth of the last 0.6 s: storage may be held to
its floor meanwhile, for a burst, and then nothing shows whether the raise before was right."""
PROVEN = 0.98
"""A raise is proven once 0.98 of what is let in came in one tenth of a second."""
FORGET_LOAD = 0.3
"""While less than this part of the rate comes, nobody has to report."""


class InboundEstimate(Struct, frozen=True):
    """What may be let in, headroom taken off; where the figure is from, and why; whether a queue is being drained."""

    state: InboundCapacity
    rate_bits_per_s: int
    source: str
    reason: Reason
    draining: bool


def base_rate(policy: InterfacePolicy, sample: InterfaceSample | None) -> tuple[int, str]:
    """What comes in at most as far as operator and driver say, and who says it."""
    if policy.ingress_bits_per_s is not None:
        return max(BASE_BITS_PER_S_MIN, policy.ingress_bits_per_s), "configured"
    link = (sample.link_bits_per_s or 0) if sample is not None else 0
    return (link, "link") if link >= BASE_BITS_PER_S_MIN else (FALLBACK_BITS_PER_S, "fallback")


def estimate(
    *,
    now_s: float,
    state: InboundCapacity | None,
    base: tuple[int, str],
    received_bytes: int | None,
    flows: Sequence[FlowSample],
    senders: Sequence[SenderSample],
    held: frozenset[str],
    limited: bool,
    out: OutboundLoad,
    holding: bool | None = None,
    here: Mapping[str, float] = NOTHING_HERE,
) -> InboundEstimate:
    """Estimate what may come in now.

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
    before = estimator.of_base(state.estimate if state is not None else None, rate, now_s=now_s)
    seen = state.signals if state is not None else InboundSignalState()
    elapsed_s = now_s - seen.came[-1][0] if seen.came else 0.0
    seen = _count(seen, received_bytes, now_s=now_s)
    seen = inbound_delay.hear(seen, flows=flows, senders=senders, held=held, out=out, now_s=now_s, here=here)
    delay_s = PROBE_DELAY_S if raised_lately(before, now_s=now_s) else DELAY_S
    said = inbound_delay.verdict(seen, threshold_s=delay_s, now_s=now_s)
    evidence = Evidence(
        elapsed_s=elapsed_s,
        limiting=limited,
        heard=said.queue or said.clear or not seen.came,
        used=(_came_bits_per_s(seen, since_s=now_s - CAME_S) or 0.0) >= FORGET_LOAD * before.rate_bits_per_s,
        queue=Queue(excess_s=said.excess_s, votes=said.seen_by, ours=bool(held) if holding is None else holding),
        carried=Carried(),
        room=Room(),
    )
    if said.queue:
        load_min = INBOUND.load_min * rate if source != "fallback" else 0.0
        evidence = _behind_a_queue(before, evidence, seen, said, load_min=load_min, now_s=now_s)
    else:
        evidence = _without_a_queue(before, evidence, seen, said, now_s=now_s)
    after = estimator.estimate(before, evidence, INBOUND, now_s=now_s)
    if after.phase is Phase.DOUBTING and before.phase is not Phase.DOUBTING:
        seen = inbound_delay.rebase(seen)
    elif after.cut is not None and after.cut is not before.cut:
        seen = replace(seen, ignore_before_s=after.cut.drained_s)
    return InboundEstimate(
        InboundCapacity(after, seen),
        int(INBOUND.headroom * after.rate_bits_per_s),
        "measured" if after.rate_bits_per_s < rate else source,
        _reason(after, said, source, now_s=now_s),
        estimator.is_draining(after, at_s=now_s),
    )


def _count(state: InboundSignalState, received_bytes: int | None, *, now_s: float) -> InboundSignalState:
    if received_bytes is None:
        return replace(state, received_bytes=None, came=())
    if state.received_bytes is None or received_bytes < state.received_bytes or not state.came:
        return replace(state, received_bytes=received_bytes, came=((now_s, 0.0),))
    bits = state.came[-1][1] + 8.0 * (received_bytes - state.received_bytes)
    came = state.came
    if len(came) > 1 and came[-1][0] - came[-2][0] < CAME_EVERY_S:
        came = came[:-1]
    came = (*(entry for entry in came if entry[0] > now_s - CAME_S), (now_s, bits))
    return replace(state, received_bytes=received_bytes, came=came)


def _behind_a_queue(
    state: CapacityState, evidence: Evidence, seen: InboundSignalState, said: Verdict, *, load_min: float, now_s: float
) -> Evidence:
    """A queue stands: what came while all who see it saw it is what the link carries, where that is another capacity
    than was thought. A burst of training that storage makes room for fills the link, too, and then as much comes."""
    drained_s = state.cut.drained_s if state.cut is not None else 0.0
    came = _came_steadily(seen, since_s=max(now_s - VOTE_S, said.since_s, drained_s), until_s=said.until_s)
    if came is None or came < load_min:
        return evidence
    lower = came < (LOWER_RAISED if state.phase is Phase.PROBING else LOWER) * state.rate_bits_per_s
    if not lower and came <= state.rate_bits_per_s:
        return evidence
    measured = DeliveryRate(came, said.until_s - said.since_s, said.excess_s, said.excess_s, math.inf)
    return replace(
        evidence, queue=replace(evidence.queue, cause=Cause.DELAY), carried=Carried(measured=measured, reported=True)
    )


def _without_a_queue(
    state: CapacityState, evidence: Evidence, seen: InboundSignalState, said: Verdict, *, now_s: float
) -> Evidence:
    """No queue is seen: the link carries at least what comes, and maybe more."""
    came = _came_bits_per_s(seen, since_s=now_s - BUSY_S) or 0.0
    let_in = INBOUND.headroom * state.rate_bits_per_s
    room = Room(
        clear=said.clear and came >= USED * state.rate_bits_per_s,
        disputed=said.disputed,
        settled=True,
        most_bits_per_s=SHOWN * _busiest(seen, since_s=now_s - SHOWN_S),
        proven=_busiest(seen, since_s=state.changed_s) >= PROVEN * let_in,
    )
    return replace(evidence, room=room, carried=Carried(least_bits_per_s=came))


def _came_bits_per_s(state: InboundSignalState, *, since_s: float) -> float | None:
    """What came since a time, where that is long enough ago."""
    if len(state.came) < 2:
        return None
    end_s, end = state.came[-1]
    start_s, start = min(state.came, key=lambda entry: abs(entry[0] - since_s))
    return (end - start) / (end_s - start_s) if end_s - start_s >= CAME_S_MIN else None


def _came_steadily(state: InboundSignalState, *, since_s: float, until_s: float) -> float | None:
    """What came in a time for which a queue was seen; None where that is too short, or not every part of it brought
    about the same: then the link did not work all the time, whatever waited, and the figure says nothing of it."""
    during = [entry for entry in state.came if since_s <= entry[0] <= until_s]
    if len(during) < 2 or during[-1][0] - during[0][0] < CAME_S_MIN:
        return None
    (start_s, start), (end_s, end) = during[0], during[-1]
    mean, parts = (end - start) / (end_s - start_s), _parts(during)
    return mean if len(parts) > 1 and min(parts) >= STEADY * mean else None


def _busiest(state: InboundSignalState, *, since_s: float) -> float:
    """The highest rate at which anything came since a time, over a tenth of a second or nearly."""
    return max(_parts([entry for entry in state.came if entry[0] >= since_s]), default=0.0)


def _parts(came: Sequence[tuple[float, float]]) -> list[float]:
    """The rates of each tenth of a second or nearly."""
    rates, last = [], came[0] if came else (0.0, 0.0)
    for at_s, bits in came[1:]:
        if at_s - last[0] >= PART_S:
            rates.append((bits - last[1]) / (at_s - last[0]))
            last = at_s, bits
    return rates


def _reason(state: CapacityState, said: Verdict, source: str, *, now_s: float) -> Reason:
    rate, last = int(INBOUND.headroom * state.rate_bits_per_s), state.cut
    excess_s = last.excess_s if last is not None else 0.0
    if estimator.is_draining(state, at_s=now_s):
        return Because.WAY_IN_DRAINING(rate_bits_per_s=rate, excess_s=excess_s)
    if state.phase is Phase.DOUBTING:
        return Because.DELAY_NOT_OURS(rate_bits_per_s=rate)
    if state.rate_bits_per_s < state.base_bits_per_s:
        if state.phase is Phase.PROBING:
            base = int(INBOUND.headroom * state.base_bits_per_s)
            return Because.WAY_IN_PROBING(rate_bits_per_s=rate, base_bits_per_s=base)
        return Because.QUEUE_ON_THE_WAY_IN(
            rate_bits_per_s=rate, excess_s=excess_s, senders=last.votes if last is not None else 0
        )
    if source == "fallback":
        return Because.INGRESS_UNKNOWN()
    if said.heard < SENDERS_MIN:
        return Because.WAY_IN_UNHEARD(rate_bits_per_s=rate, source=source_of(source), heard=said.heard)
    return Because.LINK_RATE(rate_bits_per_s=rate, source=source_of(source), seen="no queue seen elsewhere")
