"""The inbound direction: estimate what may be let in, from our interface's counter and the senders' packet delays.

We have no shaper before the queue in front of our link. So usually nothing limits the senders, and a cut changes
nothing; but our own counter sees every bit that arrives. A link with a queue before it is always busy, so what arrived
meanwhile is its capacity, and no application can have limited it. broker.law.capacity.inbound_delay finds which
senders see that queue. Where fewer than two senders report delay, the configured rate counts, and the reason shows it.
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
    INBOUND,
    PROBE_DELAY_S,
    Carried,
    Evidence,
    Queue,
    Room,
    named_rate,
)
from broker.law.capacity.inbound_delay import SENDERS_MIN, OutboundLoad, Verdict
from broker.law.capacity.probe import BUSY_S, raised_lately
from broker.law.capacity.quorum import VOTE_S
from broker.law.capacity.state import CapacityState, Cause, InboundCapacity, InboundSignalState, Phase
from broker.model.reasons import Because, Reason, source_of
from broker.model.values import FlowSample, InterfaceSample, SenderSample
from broker.policy.types import InterfacePolicy

CAME_S, CAME_S_MIN, CAME_EVERY_S = 2.0, 0.2, 0.05
"""Counter readings are kept for `CAME_S`, at most one each `CAME_EVERY_S`, though decisions may come fifty times a
second. A rate needs `CAME_S_MIN`: a GSO batch of 64 KiB is 2.6 % of what 100 Mbit/s carry in it."""
LOWER, LOWER_RAISED = 0.97, 0.99
"""The arrival rate during a queue is a new capacity when it is below 97 % of the estimate, and 99 % just after a raise;
the estimate may be exact."""
PART_S, STEADY = 0.07, 0.8
"""Each part of a queue's time, two at least, has to carry 0.8 of the mean. Measured: behind a queue each tenth of a
second carries the same to 1 %. A queue that has ended, or a busy host that reports late, does not pass that test."""
USED = 0.8
"""Storage is held to 0.95 of the capacity, and at least 0.9 of that arrives when the hold is the limit."""
SHOWN_S, SHOWN = 0.6, 1.15
"""A raise goes at most 15 % over the busiest tenth of a second of the last 0.6 s. For a burst, storage may be held to
its floor meanwhile, and then nothing shows whether the previous raise was right."""
PROVEN = 0.98
"""A raise is proven once 0.98 of the allowed rate arrived in one tenth of a second."""
FORGET_LOAD = 0.3
"""Reports are expected only while at least this part of the rate arrives."""


class InboundEstimate(Struct, frozen=True):
    """The rate to let in, less headroom; its source and reason; and whether a queue is being drained."""

    state: InboundCapacity
    rate_bits_per_s: int
    source: str
    reason: Reason
    draining: bool


def base_rate(policy: InterfacePolicy, sample: InterfaceSample | None) -> tuple[int, str]:
    """The link's inbound rate as the operator or the driver names it, and its source."""
    rate, source = named_rate(policy.ingress_bits_per_s, sample.link_bits_per_s if sample is not None else None)
    return max(BASE_BITS_PER_S_MIN, rate), source


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
    holding: bool,
    here: Mapping[str, float],
) -> InboundEstimate:
    """Estimate what can arrive now.

    Args:
        now_s: the tick's time.
        state: None at first, then the last estimate's.
        base: from `base_rate`.
        received_bytes: the interface's counter; None where it was not read, and then the last capacity is kept.
        flows, senders: as measured, in any order.
        held: the addresses that a hold limits, or did a moment ago.
        holding: whether any sender is limited, by a hold or by our IFB.
        here: class to how long its packets wait in that IFB.
        limited: whether storage that is held uses all of its rate.
        out: the other direction.
    """
    rate, source = base
    before = estimator.of_base(state.estimate if state is not None else None, rate, now_s=now_s)
    seen = state.signals if state is not None else InboundSignalState()
    elapsed_s = now_s - seen.came[-1][0] if seen.came else 0.0
    seen = _count(seen, received_bytes, now_s=now_s)
    seen = inbound_delay.observe(seen, flows=flows, senders=senders, held=held, out=out, now_s=now_s, here=here)
    delay_s = PROBE_DELAY_S if raised_lately(before, now_s=now_s) else DELAY_S
    verdict = inbound_delay.verdict(seen, threshold_s=delay_s, now_s=now_s)
    evidence = Evidence(
        elapsed_s=elapsed_s,
        limiting=limited,
        reported=verdict.queue or verdict.clear or not seen.came,
        used=(_came_bits_per_s(seen, since_s=now_s - CAME_S) or 0.0) >= FORGET_LOAD * before.rate_bits_per_s,
        queue=Queue(excess_s=verdict.excess_s, votes=verdict.seen_by, ours=holding),
        carried=Carried(),
        room=Room(),
    )
    if verdict.queue:
        load_min = INBOUND.load_min * rate if source == "configured" else 0.0
        evidence = _behind_a_queue(before, evidence, seen, verdict, load_min=load_min, now_s=now_s)
    else:
        evidence = _without_a_queue(before, evidence, seen, verdict, now_s=now_s)
    after = estimator.estimate(before, evidence, INBOUND, now_s=now_s)
    if after.phase is Phase.DOUBTING and before.phase is not Phase.DOUBTING:
        seen = inbound_delay.rebase(seen)
    elif after.cut is not None and after.cut is not before.cut:
        seen = replace(seen, ignore_before_s=after.cut.drained_s)
    return InboundEstimate(
        InboundCapacity(after, seen),
        int(INBOUND.headroom * after.rate_bits_per_s),
        "measured" if after.rate_bits_per_s < rate else source,
        _reason(after, verdict, source, now_s=now_s),
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
    state: CapacityState, evidence: Evidence, seen: InboundSignalState, verdict: Verdict, *, load_min: float,
    now_s: float,
) -> Evidence:  # fmt: skip
    """Evidence during a queue: the arrival rate while all its senders saw it, where that is a new capacity.

    A burst of training for which storage makes room also fills the link, and then as much arrives.
    """
    drained_s = state.cut.drained_s if state.cut is not None else 0.0
    came = _came_steadily(seen, since_s=max(now_s - VOTE_S, verdict.since_s, drained_s), until_s=verdict.until_s)
    if came is None or came < load_min:
        return evidence
    lower = came < (LOWER_RAISED if state.phase is Phase.PROBING else LOWER) * state.rate_bits_per_s
    if not lower and came <= state.rate_bits_per_s:
        return evidence
    measured = DeliveryRate(came, verdict.until_s - verdict.since_s, verdict.excess_s, verdict.excess_s, math.inf)
    return replace(
        evidence, queue=replace(evidence.queue, cause=Cause.DELAY), carried=Carried(measured=measured, reported=True)
    )


def _without_a_queue(
    state: CapacityState, evidence: Evidence, seen: InboundSignalState, verdict: Verdict, *, now_s: float
) -> Evidence:
    """Evidence without a queue: the link carries at least what arrives, and perhaps more."""
    came = _came_bits_per_s(seen, since_s=now_s - BUSY_S) or 0.0
    let_in = INBOUND.headroom * state.rate_bits_per_s
    room = Room(
        clear=verdict.clear and came >= USED * state.rate_bits_per_s,
        disputed=verdict.disputed,
        settled=True,
        most_bits_per_s=SHOWN * _busiest(seen, since_s=now_s - SHOWN_S),
        proven=_busiest(seen, since_s=state.changed_s) >= PROVEN * let_in,
    )
    return replace(evidence, room=room, carried=Carried(least_bits_per_s=came))


def _came_bits_per_s(state: InboundSignalState, *, since_s: float) -> float | None:
    """The arrival rate since a time, where that is long enough ago."""
    if len(state.came) < 2:
        return None
    end_s, end = state.came[-1]
    start_s, start = min(state.came, key=lambda entry: abs(entry[0] - since_s))
    return (end - start) / (end_s - start_s) if end_s - start_s >= CAME_S_MIN else None


def _came_steadily(state: InboundSignalState, *, since_s: float, until_s: float) -> float | None:
    """The arrival rate in the time for which a queue was seen; None where that time is too short or the rate unsteady.

    With an unsteady rate the link was not busy all the time, so the rate is not its capacity.
    """
    during = [entry for entry in state.came if since_s <= entry[0] <= until_s]
    if len(during) < 2 or during[-1][0] - during[0][0] < CAME_S_MIN:
        return None
    (start_s, start), (end_s, end) = during[0], during[-1]
    mean, parts = (end - start) / (end_s - start_s), _parts(during)
    return mean if len(parts) > 1 and min(parts) >= STEADY * mean else None


def _busiest(state: InboundSignalState, *, since_s: float) -> float:
    """The highest arrival rate since a time, over about a tenth of a second."""
    return max(_parts([entry for entry in state.came if entry[0] >= since_s]), default=0.0)


def _parts(came: Sequence[tuple[float, float]]) -> list[float]:
    """The arrival rates of successive parts, about a tenth of a second each."""
    rates, last = [], came[0] if came else (0.0, 0.0)
    for at_s, bits in came[1:]:
        if at_s - last[0] >= PART_S:
            rates.append((bits - last[1]) / (at_s - last[0]))
            last = at_s, bits
    return rates


def _reason(state: CapacityState, verdict: Verdict, source: str, *, now_s: float) -> Reason:
    rate, last = int(INBOUND.headroom * state.rate_bits_per_s), state.cut
    excess_s = last.excess_s if last is not None else 0.0
    if estimator.is_draining(state, at_s=now_s):
        return Because.INBOUND_DRAINING(rate_bits_per_s=rate, excess_s=excess_s)
    if state.phase is Phase.DOUBTING:
        return Because.DELAY_NOT_OURS(rate_bits_per_s=rate)
    if state.rate_bits_per_s < state.base_bits_per_s:
        if state.phase is Phase.PROBING:
            base = int(INBOUND.headroom * state.base_bits_per_s)
            return Because.INBOUND_PROBING(rate_bits_per_s=rate, base_bits_per_s=base)
        return Because.INBOUND_QUEUE(
            rate_bits_per_s=rate, excess_s=excess_s, senders=last.votes if last is not None else 0
        )
    if source == "fallback":
        return Because.INGRESS_UNKNOWN()
    if verdict.reporting < SENDERS_MIN:
        return Because.INBOUND_NOT_MEASURED(rate_bits_per_s=rate, source=source_of(source), reporting=verdict.reporting)
    return Because.LINK_RATE(rate_bits_per_s=rate, source=source_of(source), seen="no queue seen elsewhere")
