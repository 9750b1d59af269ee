"""The outbound direction: set the shaper's rate from the class counters and the connections' measurements.

The shaper stays a little below the link, so that the queue is here, where priorities are known. A bottleneck behind the
link is measured: destinations vote on a queue (broker.law.capacity.quorum), and arrival times show what was carried
(broker.law.capacity.delivery_rate).
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence
from functools import partial
from itertools import pairwise

from msgspec import Struct
from msgspec.structs import replace

from broker.law.capacity import delivery_rate, estimator, quorum, signals
from broker.law.capacity.decrease import DRAIN_FACTOR, DRAIN_S_LONGEST, REFRACTORY_S, least
from broker.law.capacity.delivery_rate import DeliveryRate, threshold_s
from broker.law.capacity.evidence import (
    BASE_BITS_PER_S_MIN,
    DELAY_S,
    OUTBOUND,
    UNNAMED,
    Carried,
    Direction,
    Evidence,
    Queue,
    Room,
    named_rate,
)
from broker.law.capacity.probe import BEYOND, CONFIRM_S, beside, late_s, raised_lately
from broker.law.capacity.signals import Signals
from broker.law.capacity.state import ArrivalState, CapacityState, Cause, OutboundCapacity, Phase, SignalState
from broker.law.sharing.demand import BACKLOG_BYTES_MIN
from broker.model.reasons import Because, Reason, source_of
from broker.model.values import ClassSample, FlowSample, InterfaceSample
from broker.policy.types import InterfacePolicy
from hive_qos.units import format_rate

FEW_HIGH, FEW_OF, SURELY_LESS = 2, 3, 0.8
"""Two of three samples suffice just after a raise, where a mistake costs only the raise. They also do when a packet
waited 100 ms and less than 0.8 of the rate was carried. A peer that stalls does not pass that test, because its
arrivals show more."""
LIMITED = 0.9
"""The shaper is the limit in a tick that used 90 % of it and left two packets waiting."""
LOSS_FRACTION, LOSS_SENT_MIN = 0.05, 5
"""5 % lost on the path in a second (StormGuard's lower step), and at least so many packets, mean a queue too short to
show as delay. Loss does not count where arrivals show a queue."""
LOSS_SETTLE_S = 1.0
"""Loss causes no cut for so long after a change of the rate. For longer after a cut earlier losses are still being
reported (`broker.law.capacity.signals.LOSS_LAG_S`)."""
CLAIMED_S = 60.0
"""Losses that only programs report justify one cut a minute. TCP detects its own 0.4 to 0.6 s later, so at first there
is no other evidence. A false report halves the rate until probing recovers it."""
SURELY_MORE = 1.1
"""A peer whose packets arrived faster than this part of the send rate had stalled, and has no vote: its delay is not
our queue."""
AGAIN_S = 1.0
"""A queue within a second of a drain is the old one, so the delivery since the drain also bounds the cut.
Acknowledgements that waited in a queue towards us come all at once when it empties. Delivery over 0.3 s then showed 1.5
times the link, and a second cut took off a tenth where a third was due (from 97 to 30 Mbit/s)."""
CUT_MOST, CUT_BLIND = 0.5, 0.8
"""A cut by acknowledgements goes to half at most, because a measurement may be wrong; without any it takes a fifth."""
FIRST_CUT, FIRST_CUT_DELAY_S = 0.35, 0.1
"""The first cut by acknowledgements takes at least 35 % over a queue of 130 ms or more, and less over a shorter one: a
queue of that size at the full rate means a large excess."""
FOUND_AFTER_S = 0.2
"""Sending a part p over the capacity adds p seconds of queue a second, and a queue is found after 0.2 s at the soonest.
So a queue of D seconds means an excess of at most D / 0.2, whatever acknowledgements show."""
BUSY_UNSEEN_S, SEEN_AFTER_S = 1.0, 0.2
"""The shaper has to be the limit for `BUSY_UNSEEN_S` before a probe where no destination reports. A sample reflects the
last raise if it was taken `SEEN_AFTER_S` later: a tick until it is applied, and a round trip."""
SETTLED_OF, SETTLED_LATE = 5, 0.25
"""A rate is settled if of at least five packets at most a quarter met a queue. A host that stalls for 150 ms delays two
of them; a host whose bursts exceed the link delays half."""


class OutboundEstimate(Struct, frozen=True):
    """The present capacity, its source and reason, and whether no speed is known at all.

    Fields: `unsettled` whether a queue may still persist elsewhere; `excess_s` how long a packet waits in it;
    `one_destination` whether a lowered rate rests on one destination only, so that other traffic may have more.
    """

    state: OutboundCapacity
    rate_bits_per_s: int
    source: str
    reason: Reason
    fallback: bool
    unsettled: bool
    excess_s: float = 0.0
    one_destination: bool = False


class Counters(Struct, frozen=True):
    """One reading of the class counters, in the order of `CLASS_NAMES`: sent and dropped since the last one, and
    queued now."""

    classes: tuple[ClassSample, ...]
    sent_bits: tuple[float, ...]
    dropped_packets: tuple[int, ...]
    elapsed_s: float
    received_bits: float | None


def line_rate(policy: InterfacePolicy, *, link_bits_per_s: int | None) -> int:
    """The link's rate as the operator or the driver names it, without headroom or measurement."""
    return named_rate(policy.egress_bits_per_s, link_bits_per_s)[0]


def base_rate(policy: InterfacePolicy, sample: InterfaceSample | None) -> tuple[int, str]:
    """The shaper's rate while no bottleneck is found, and its source."""
    named, source = named_rate(policy.egress_bits_per_s, sample.link_bits_per_s if sample is not None else None)
    rate = int(named * OUTBOUND.headroom)
    return (max(BASE_BITS_PER_S_MIN, rate) if source == "configured" else rate), source


def estimate(
    *, now_s: float, state: OutboundCapacity | None, base: tuple[int, str], flows: Sequence[FlowSample],
    counters: Counters | None,
) -> OutboundEstimate:  # fmt: skip
    """Estimate what the interface can send now.

    Args:
        now_s: the tick's time.
        state: None at first, then the last estimate's.
        base: from `base_rate`.
        flows: as measured, in any order.
        counters: this tick's reading; None where there is none, and then the last capacity is kept.
    """
    rate, source = base
    if state is None or estimator.is_another_link(state.estimate, rate):
        state = OutboundCapacity(estimator.of_base(None, rate, now_s=now_s))
    before = estimator.of_base(state.estimate, rate, now_s=now_s)
    if counters is None or counters.elapsed_s <= 0:
        reason = Because.SIGNALS_MISSING(rate_bits_per_s=before.rate_bits_per_s, limits=_limits(before))
        return _give(replace(state, estimate=before), source, reason, now_s=now_s)
    shaper = _shaper_rate(before, source, at_s=now_s - counters.elapsed_s)
    load = math.fsum(counters.sent_bits) / counters.elapsed_s / shaper
    seen = signals.observe(
        state.signals, now_s=now_s, flows=flows, classes=counters.classes, sent_bits=counters.sent_bits,
        received_bits=counters.received_bits, dropped_packets=counters.dropped_packets,
        elapsed_s=counters.elapsed_s, loaded=load > 0.5, rate_bits_per_s=shaper,
    )  # fmt: skip
    now = signals.read(seen, now_s=now_s)
    losing = quorum.losing(seen, flows) if max(now.lost_fraction, now.lost_since_fraction) > quorum.LOSS_PART else 0
    if not losing and before.claimed_s is not None and now_s - before.claimed_s <= CLAIMED_S:
        now = replace(now, lost_fraction=0.0, lost_since_packets=0, lost_since_fraction=0.0)
    waiting = sum(entry.backlog_bytes for entry in counters.classes) >= BACKLOG_BYTES_MIN
    measured, stalled = _measured(before, seen, since_s=0.0, now_s=now_s)
    unknown = source != "configured" and before.rate_bits_per_s >= before.base_bits_per_s
    cause, votes = _cause(before, seen, now, measured, stalled, losing=losing, unknown=unknown, now_s=now_s)
    limiting = waiting and load >= LIMITED
    busy_s = before.busy_s + (counters.elapsed_s if limiting else 0.0)
    evidence = Evidence(
        elapsed_s=counters.elapsed_s,
        limiting=limiting,
        reported=now.flows > 0,
        used=limiting,
        queue=Queue(cause, votes, now.excess_s or 0.0, now.baseline_s),
        carried=_carried(before, seen, now, measured, cause, limited=load >= LIMITED, now_s=now_s),
        room=_room(before, seen, now, lossy=losing > 0, busy_s=busy_s, now_s=now_s),
    )
    after = estimator.estimate(before, evidence, _direction(source), now_s=now_s)
    state = OutboundCapacity(after, _signals_after(seen, before, after))
    return _give(state, source, _reason(after, now, source, now_s=now_s), now_s=now_s)


def destination_reports(state: OutboundCapacity, flows: Sequence[FlowSample]) -> list[quorum.DestinationReport]:
    """The destinations' reports behind the capacity, as of the last tick; `flows` are that tick's connections."""
    delay_s = threshold_s(DELAY_S, state.estimate.rate_bits_per_s)
    return quorum.destination_reports(state.signals, flows=flows, threshold_s=delay_s, high=quorum.HIGH, of=quorum.OF)


def _measured(
    state: CapacityState, seen: SignalState, *, since_s: float, now_s: float
) -> tuple[DeliveryRate | None, frozenset[str]]:  # fmt: skip
    """The rate carried since a time, None where no peer reports it; and the peers that had stalled."""
    last = state.cut
    before = last.from_bits_per_s if last is not None and now_s - last.at_s <= DRAIN_S_LONGEST else 0
    most = SURELY_MORE * max(state.rate_bits_per_s, before)
    drained = state.phase in (Phase.DRAINING, Phase.HOLDING) and now_s < state.changed_s + REFRACTORY_S
    found = delivery_rate.by_peer(
        seen.arrivals, seen.ticks, since_s=since_s, now_s=now_s, most_bits_per_s=most,
        left_at_bits_per_s=(DRAIN_FACTOR if drained else 1.0) * state.rate_bits_per_s,
    )  # fmt: skip
    stalled = frozenset(peer for peer, entry in found.items() if entry is not None and entry.carried_bits_per_s > most)
    return delivery_rate.middle([entry for peer, entry in found.items() if peer not in stalled]), stalled


def _cause(
    state: CapacityState, seen: SignalState, now: Signals, measured: DeliveryRate | None, stalled: frozenset[str],
    *, losing: int, unknown: bool, now_s: float,
) -> tuple[Cause | None, int]:  # fmt: skip
    """The evidence of a bottleneck elsewhere, and by how many destinations' votes.

    The votes are 0 where our own kernel's connections do not confirm what programs report. `unknown`: the operator
    names no rate, and no bottleneck is found yet.
    """
    rate = state.rate_bits_per_s
    used = _used(state, seen, now_s=now_s) >= rate
    if not used and not (unknown and now.wanting):
        return None, 0
    agree = partial(quorum.agree, seen, now_s=now_s, stalled=stalled, shared=not used)
    delay_s = threshold_s(DELAY_S, rate)
    surely_less = measured is not None and measured.deep and measured.carried_bits_per_s < SURELY_LESS * rate
    if surely_less and (votes := agree(threshold_s=delay_s, high=FEW_HIGH, of=FEW_OF)):
        return Cause.DELAY, votes
    if votes := agree(threshold_s=delay_s, high=quorum.HIGH, of=quorum.OF):
        return Cause.DELAY, votes
    if raised_lately(state, now_s=now_s) and (votes := agree(threshold_s=late_s(state), high=FEW_HIGH, of=FEW_OF)):
        return Cause.PROBE, votes
    if measured is not None or stalled or not used:
        return None, 0
    settled = state.cut is None or now_s - state.changed_s >= LOSS_SETTLE_S
    if settled and now.lost_since_fraction >= LOSS_FRACTION and now.lost_since_packets >= LOSS_SENT_MIN:
        return Cause.LOSS, losing
    return None, 0


def _carried(
    state: CapacityState, seen: SignalState, now: Signals, measured: DeliveryRate | None, cause: Cause | None, *,
    limited: bool, now_s: float,
) -> Carried:  # fmt: skip
    """The rate carried, now and since the last cut if that is recent."""
    last, since, drained, assumed = state.cut, None, False, 0.0
    if last is not None and state.phase in (Phase.DRAINING, Phase.HOLDING) and now_s - last.at_s <= DRAIN_S_LONGEST:
        since, stalled = _measured(state, seen, since_s=last.at_s, now_s=now_s)
        drained = not stalled and any(entry.left_s >= last.at_s for entry in seen.arrivals)
    if measured is None and cause is not None:
        assumed = _assumed(state, seen, now, cause, limited=limited, now_s=now_s)
    return Carried(
        measured, since, drained, assumed, delivery_rate.is_reported(seen.arrivals),
        used_bits_per_s=_used(state, seen, now_s=now_s),
    )  # fmt: skip


def _used(state: CapacityState, seen: SignalState, *, now_s: float) -> float:
    """Our rate; or what left in the busiest tenth of the last second, where that is so little that ours is no limit."""
    peak = signals.peak_tx_bits_per_s(seen, now_s=now_s)
    return peak if peak < OUTBOUND.load_min * state.rate_bits_per_s else state.rate_bits_per_s


def _assumed(
    state: CapacityState, seen: SignalState, now: Signals, cause: Cause, *, limited: bool, now_s: float
) -> float:
    """The rate to cut to if no peer reports arrivals: by acknowledgements, or by a fixed step."""
    rate, excess_s = _used(state, seen, now_s=now_s), now.excess_s or 0.0
    if not (limited or now.wanting):
        # an application with little to send shows only that the network carries that much
        target = max(CUT_BLIND * rate, now.tx_bits_per_s)
    elif now.through_bits_per_s is not None:
        target = OUTBOUND.cut_to * min(now.through_bits_per_s, _through_since_the_drain(state, seen, now_s=now_s))
    elif not limited and now.tx_bits_per_s < LIMITED * rate:
        target = OUTBOUND.cut_to * now.tx_bits_per_s
    else:
        target = CUT_BLIND * rate
    if state.rate_bits_per_s >= state.base_bits_per_s:  # acknowledgements at a burst's end overstate the delivery rate
        target = min(target, rate * (1 - FIRST_CUT * min(1.0, max(0.0, excess_s - DELAY_S) / FIRST_CUT_DELAY_S)))
    most = CUT_MOST if cause is Cause.LOSS else max(CUT_MOST, 1 / (1 + excess_s / FOUND_AFTER_S))
    return max(target, most * rate)


def _through_since_the_drain(state: CapacityState, seen: SignalState, *, now_s: float) -> float:
    """The delivery rate since the last cut's drain ended, if that is recent; no bound otherwise.

    A queue that persists had input all the time, so the longer average is more accurate.
    """
    since_s = now_s - state.changed_s
    if state.phase is not Phase.HOLDING or not REFRACTORY_S < since_s <= AGAIN_S:
        return math.inf
    return signals.through_bits_per_s(seen, now_s=now_s, window_s=since_s)


def _room(state: CapacityState, seen: SignalState, now: Signals, *, lossy: bool, busy_s: float, now_s: float) -> Room:
    """Whether the destinations' reports leave room for a higher rate."""
    if state.rate_bits_per_s >= state.base_bits_per_s:
        return Room()
    arrivals = [entry for entry in seen.arrivals if entry.left_s >= state.changed_s + SEEN_AFTER_S]
    lossy = lossy and now.lost_fraction > quorum.LOSS_PART
    return Room(
        clear=not lossy and now.flows > 0 and _is_clear(state, seen, now, busy_s=busy_s, now_s=now_s),
        settled=_is_settled(arrivals, late_s(state)),
        jitter_s=_jitter_s(arrivals) if state.phase is not Phase.FORGETTING else None,
        wait_s=_wait_s(seen.arrivals, since_s=state.changed_s + CONFIRM_S / 2),
    )


def _is_clear(state: CapacityState, seen: SignalState, now: Signals, *, busy_s: float, now_s: float) -> bool:
    """Whether the destinations show no queue since the last change of the rate."""
    since_s = state.changed_s + SEEN_AFTER_S if state.phase is Phase.PROBING else state.changed_s
    clear = partial(quorum.clear, seen, since_s=since_s, threshold_s=late_s(state))
    one_way = clear(two_way=False)
    if one_way is not None:
        return one_way
    if clear(two_way=True):
        return True
    arrives = signals.arrives(seen, now_s=now_s)
    if not signals.one_way_expected(seen, now_s=now_s):
        return busy_s >= BUSY_UNSEEN_S and (arrives or now.through_bits_per_s is None)
    return arrives and not beside(state, upto=BEYOND)  # near a failed rate only a gap between bursts counts


def _is_settled(arrivals: Sequence[ArrivalState], late_s: float) -> bool:
    """Whether packets that left since the last change of the rate met no queue."""
    late = sum(entry.wait_s > late_s for entry in arrivals)
    return len(arrivals) >= SETTLED_OF and late <= SETTLED_LATE * len(arrivals)


def _jitter_s(arrivals: Sequence[ArrivalState]) -> float | None:
    """The median difference between a peer's successive waits; None of too few."""
    apart_s = [abs(late.wait_s - soon.wait_s) for soon, late in pairwise(arrivals) if late.peer == soon.peer]
    return statistics.median(apart_s) if len(apart_s) >= SETTLED_OF - 1 else None


def _wait_s(arrivals: Sequence[ArrivalState], *, since_s: float) -> float | None:
    """The median over peers of the wait of the last packet that left since a time."""
    last = {entry.peer: entry.wait_s for entry in arrivals if entry.left_s >= since_s}
    return statistics.median(last.values()) if last else None


def _signals_after(seen: SignalState, before: CapacityState, after: CapacityState) -> SignalState:
    """Drop signals of an earlier rate; when a doubt begins, make the present delay the baseline."""
    if after.phase is Phase.DOUBTING and before.phase is not Phase.DOUBTING:
        return signals.rebase(seen)
    if after.cut is None or after.cut is before.cut:
        return seen
    before_s = after.cut.drained_s + after.cut.baseline_s
    if before.cut is None or after.cut.at_s != before.cut.at_s:
        return signals.forget(seen, before_s=before_s)
    return replace(seen, ignore_before_s=before_s)


def _direction(source: str) -> Direction:
    return OUTBOUND if source == "configured" else UNNAMED


def _shaper_rate(state: CapacityState, source: str, *, at_s: float) -> int:
    """The root class' rate: half of the capacity while a queue elsewhere drains."""
    rate = state.rate_bits_per_s
    lowest = least(state, _direction(source))
    return max(lowest, int(DRAIN_FACTOR * rate)) if estimator.is_draining(state, at_s=at_s) else rate


def _reason(state: CapacityState, now: Signals, source: str, *, now_s: float) -> Reason:
    rate, last = _shaper_rate(state, source, at_s=now_s), state.cut
    if last is not None and estimator.is_draining(state, at_s=now_s):
        return Because.DRAINING(rate_bits_per_s=rate, excess_s=last.excess_s)
    if state.phase is Phase.DOUBTING:
        return Because.DELAY_NOT_OURS(rate_bits_per_s=rate)
    if state.rate_bits_per_s >= state.base_bits_per_s:
        seen = "queues elsewhere are not measured now" if now.excess_s is None else "no queue seen elsewhere"
        return Because.LINK_RATE(rate_bits_per_s=rate, source=source_of(source), seen=seen)
    if now.flows == 0:
        forgets = state.phase is Phase.FORGETTING or state.unreported_s >= OUTBOUND.forget_s
        return (
            Because.OUTBOUND_NOT_MEASURED(
                rate_bits_per_s=rate, limits=_limits(state), base_bits_per_s=state.base_bits_per_s
            )
            if forgets
            else Because.SIGNALS_MISSING(rate_bits_per_s=rate, limits=_limits(state))
        )
    if state.one_destination:
        return Because.ONE_DESTINATION(rate_bits_per_s=rate, base_bits_per_s=state.base_bits_per_s)
    if state.phase in (Phase.PROBING, Phase.FORGETTING):
        return Because.PROBING(rate_bits_per_s=rate, base_bits_per_s=state.base_bits_per_s)
    if last is not None and last.cause is Cause.LOSS:
        return Because.CAPPED_BY_LOSS(rate_bits_per_s=rate, lost_fraction=now.lost_fraction)
    return Because.CAPPED_BY_DELAY(
        rate_bits_per_s=rate,
        excess_s=last.excess_s if last is not None else 0.0,
        baseline_s=last.baseline_s if last is not None else 0.0,
    )


def _limits(state: CapacityState) -> str:
    """Whom a rate limits that nothing measures now; nothing is said where it limits all."""
    if not state.one_destination or state.rate_bits_per_s >= state.base_bits_per_s:
        return ""
    return f" for training and storage, {format_rate(state.base_bits_per_s)} for all"


def _give(state: OutboundCapacity, source: str, reason: Reason, *, now_s: float) -> OutboundEstimate:
    found = state.estimate
    measured = found.rate_bits_per_s < found.base_bits_per_s
    unsettled = estimator.is_unsettled(found, now_s=now_s)
    excess_s = signals.read(state.signals, now_s=now_s).excess_s or 0.0 if unsettled else 0.0
    return OutboundEstimate(
        state,
        _shaper_rate(found, source, at_s=now_s),
        "measured" if measured else source,
        reason,
        source == "fallback",
        unsettled,
        excess_s,
        one_destination=measured and found.one_destination,
    )
