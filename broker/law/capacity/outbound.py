"""The outbound direction: what the shaper gets, from the class counters and from what connections report.

The shaper stays a little below the link, so that the queue is here, where priorities are known. What is behind it is
found out by those who see it: destinations vote on a queue (broker.law.capacity.quorum), and by when packets arrived it
is known what was carried (broker.law.capacity.delivery_rate).
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
    FALLBACK_BITS_PER_S,
    OUTBOUND,
    Carried,
    Evidence,
    Queue,
    Room,
)
from broker.law.capacity.probe import BEYOND, CONFIRM_S, beside, late_s, raised_lately
from broker.law.capacity.signals import Signals
from broker.law.capacity.state import ArrivalState, CapacityState, Cause, OutboundCapacity, Phase, SignalState
from broker.model.reasons import Because, Reason, source_of
from broker.model.values import ClassSample, FlowSample, InterfaceSample
from broker.policy.types import InterfacePolicy

FEW_HIGH, FEW_OF, SURELY_LESS = 2, 3, 0.8
"""Two of three samples do just after a raise, where a mistake costs only the raise; and where a packet waited 100 ms
and what was carried is below 0.8 of the rate. A hiccup of a peer is no reason, for by its arrivals more was
carried."""
LIMITED, BACKLOG_BYTES_MIN = 0.9, 3_028
"""The shaper is the limit in a tick that used 90 % of it and left two packets waiting."""
LOSS_FRACTION, LOSS_SENT_MIN = 0.05, 5
"""5 % lost on the way in a second (StormGuard's lower step), and at least so many packets, is a queue too short to show
delay: not where arrivals show one."""
LOSS_SETTLE_S = 1.0
"""After a cut, losses of before are still being found and reported; those count that come half a second after it and
later (`broker.law.capacity.signals.LOSS_LAG_S`), and are looked at over as long again."""
CLAIMED_S = 60.0
"""Losses that programs report and our kernel's connections do not are believed for one cut a minute: TCP finds its own
0.4 to 0.6 s later, so at first they are all there is, and who invents them takes a half for as long as it takes to
come back."""
SURELY_MORE = 1.1
"""Of what may leave: a peer whose packets arrived closer together than that had stalled, and has no vote. What waited
for it is no queue of ours."""
AGAIN_S = 1.0
"""Acknowledgements that waited in a queue towards us come all at once when it has gone: what came through in 0.3 s was
1.5 times what the link carried, and a second cut went down by a tenth where a third was due (from 97 to 30 Mbit/s). A
queue that stands again within a second of a drain has not been away: what came through since then counts, too."""
CUT_MOST, CUT_BLIND = 0.5, 0.8
"""By acknowledgements never below half at once (a wrong measurement costs one step); a fifth without any."""
FIRST_CUT, FIRST_CUT_DELAY_S = 0.35, 0.1
"""The first cut by acknowledgements may not be enough, and is at least 35 % when the queue is 130 ms or more, less with
less: a standing queue of that size at the full rate is no small difference."""
FOUND_AFTER_S = 0.2
"""What is sent beyond the capacity by a part p adds p seconds of queue a second, and a queue is found after 0.2 s at
the soonest: so a queue of D seconds means at most D / 0.2 too much, whatever acknowledgements say."""
BUSY_UNSEEN_S, SEEN_AFTER_S = 1.0, 0.2
"""How long the shaper has to be the limit before a probe where no destination reports anything. A sample is about the
last raise when it was taken this much later: a tick until it is applied, and a round trip."""
SETTLED_OF, SETTLED_LATE = 5, 0.25
"""A rate settled if of at least five packets at most a quarter met a queue: a host that holds packets up for 150 ms
delays two, one whose bursts are too much half of them."""


class OutboundEstimate(Struct, frozen=True):
    """The capacity of the moment, where the figure is from, why, and whether no speed is known at all.

    `unsettled` says that a queue may still stand elsewhere, `excess_s` how long a packet waits in it;
    `one_destination` that the rate, found lower, rests on one destination only, so that what goes elsewhere may have
    more.
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
    """One fresh reading of the class counters, in the order of `CLASS_NAMES`: since the last one, and waiting now."""

    classes: tuple[ClassSample, ...]
    sent_bits: tuple[float, ...]
    dropped_packets: int
    elapsed_s: float
    received_bits: float | None


def line_rate(policy: InterfacePolicy, *, link_bits_per_s: int | None) -> int:
    """What the link carries as far as operator and driver say: no headroom, nothing measured."""
    if policy.egress_bits_per_s is not None:
        return policy.egress_bits_per_s
    known = (link_bits_per_s or 0) >= BASE_BITS_PER_S_MIN
    return (link_bits_per_s or 0) if known else FALLBACK_BITS_PER_S


def base_rate(policy: InterfacePolicy, sample: InterfaceSample | None) -> tuple[int, str]:
    """What the shaper gets while no bottleneck is found, and where that figure is from."""
    if policy.egress_bits_per_s is not None:
        return max(BASE_BITS_PER_S_MIN, int(policy.egress_bits_per_s * OUTBOUND.headroom)), "configured"
    if sample is not None and (sample.link_bits_per_s or 0) >= BASE_BITS_PER_S_MIN:
        return int((sample.link_bits_per_s or 0) * OUTBOUND.headroom), "link"
    return int(FALLBACK_BITS_PER_S * OUTBOUND.headroom), "fallback"


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
        counters: this tick's reading; None where there is none, and then the last capacity stands.
    """
    rate, source = base
    if state is None or estimator.is_another_link(state.estimate, rate):
        state = OutboundCapacity(estimator.of_base(None, rate, now_s=now_s))
    before = estimator.of_base(state.estimate, rate, now_s=now_s)
    if counters is None or counters.elapsed_s <= 0:
        reason = Because.SIGNALS_MISSING(rate_bits_per_s=before.rate_bits_per_s)
        return _give(replace(state, estimate=before), source, reason, now_s=now_s)
    shaper = _shaper_rate(before, at_s=now_s - counters.elapsed_s)
    load = math.fsum(counters.sent_bits) / counters.elapsed_s / shaper
    seen = signals.observe(
        state.signals, now_s=now_s, flows=flows, classes=counters.classes, sent_bits=counters.sent_bits,
        received_bits=counters.received_bits, dropped_packets=counters.dropped_packets,
        elapsed_s=counters.elapsed_s, loaded=load > 0.5, rate_bits_per_s=shaper,
    )  # fmt: skip
    now = signals.read(seen, now_s=now_s)
    losing = quorum.losing(seen, flows) if max(now.lost_fraction, now.lost_since_fraction) > quorum.LOSS_PART else 0
    if not losing and before.claimed_s is not None and now_s - before.claimed_s <= CLAIMED_S:
        now = replace(now, lost_packets=0, lost_fraction=0.0, lost_since_packets=0, lost_since_fraction=0.0)
    waiting = sum(entry.backlog_bytes for entry in counters.classes) >= BACKLOG_BYTES_MIN
    measured, stalled = _measured(before, seen, since_s=0.0, now_s=now_s)
    cause, votes = _cause(before, seen, now, measured, stalled, losing=losing, now_s=now_s)
    limiting = waiting and load >= LIMITED
    busy_s = before.busy_s + (counters.elapsed_s if limiting else 0.0)
    evidence = Evidence(
        elapsed_s=counters.elapsed_s,
        limiting=limiting,
        heard=now.flows > 0,
        used=limiting,
        queue=Queue(cause, votes, now.excess_s or 0.0, now.baseline_s),
        carried=_carried(before, seen, now, measured, cause, limited=load >= LIMITED, now_s=now_s),
        room=_room(before, seen, now, lossy=losing > 0, busy_s=busy_s, now_s=now_s),
    )
    after = estimator.estimate(before, evidence, OUTBOUND, now_s=now_s)
    state = OutboundCapacity(after, _signals_after(seen, before, after))
    return _give(state, source, _reason(after, now, source, now_s=now_s), now_s=now_s)


def heard(state: OutboundCapacity, flows: Sequence[FlowSample]) -> list[quorum.Heard]:
    """What the destinations report on which the capacity rests, as of the last tick, whose connections `flows` are."""
    delay_s = threshold_s(DELAY_S, state.estimate.rate_bits_per_s)
    return quorum.heard(state.signals, flows=flows, threshold_s=delay_s, high=quorum.HIGH, of=quorum.OF)


def _measured(
    state: CapacityState, seen: SignalState, *, since_s: float, now_s: float
) -> tuple[DeliveryRate | None, frozenset[str]]:  # fmt: skip
    """What was carried of what left since a time, None where no peer knows; and which peers had stalled."""
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
    *, losing: int, now_s: float,
) -> tuple[Cause | None, int]:  # fmt: skip
    """Why a bottleneck elsewhere is believed in, and how many destinations' votes that is, 0 where our own kernel's do
    not confirm what programs report."""
    rate = state.rate_bits_per_s
    if signals.peak_tx_bits_per_s(seen, now_s=now_s) < OUTBOUND.load_min * rate:
        return None, 0
    agree = partial(quorum.agree, seen, now_s=now_s, stalled=stalled)
    delay_s = threshold_s(DELAY_S, rate)
    surely_less = measured is not None and measured.deep and measured.carried_bits_per_s < SURELY_LESS * rate
    if surely_less and (votes := agree(threshold_s=delay_s, high=FEW_HIGH, of=FEW_OF)):
        return Cause.DELAY, votes
    if votes := agree(threshold_s=delay_s, high=quorum.HIGH, of=quorum.OF):
        return Cause.DELAY, votes
    if raised_lately(state, now_s=now_s) and (votes := agree(threshold_s=late_s(state), high=FEW_HIGH, of=FEW_OF)):
        return Cause.PROBE, votes
    if measured is not None or stalled:
        return None, 0
    settled = state.cut is None or now_s - state.changed_s >= LOSS_SETTLE_S
    if settled and now.lost_since_fraction >= LOSS_FRACTION and now.lost_since_packets >= LOSS_SENT_MIN:
        return Cause.LOSS, losing
    return None, 0


def _carried(
    state: CapacityState, seen: SignalState, now: Signals, measured: DeliveryRate | None, cause: Cause | None, *,
    limited: bool, now_s: float,
) -> Carried:  # fmt: skip
    """What was carried, now and since the last cut while that is lately."""
    last, since, drained, assumed = state.cut, None, False, 0.0
    if last is not None and state.phase in (Phase.DRAINING, Phase.HOLDING) and now_s - last.at_s <= DRAIN_S_LONGEST:
        since, stalled = _measured(state, seen, since_s=last.at_s, now_s=now_s)
        drained = not stalled and any(entry.left_s >= last.at_s for entry in seen.arrivals)
    if measured is None and cause is not None:
        assumed = _assumed(state, seen, now, cause, limited=limited, now_s=now_s)
    return Carried(measured, since, drained, assumed, delivery_rate.is_reported(seen.arrivals))


def _assumed(
    state: CapacityState, seen: SignalState, now: Signals, cause: Cause, *, limited: bool, now_s: float
) -> float:
    """Where to cut to if no peer reports when packets arrived: by acknowledgements, or blindly."""
    rate, excess_s = state.rate_bits_per_s, now.excess_s or 0.0
    if not (limited or now.wanting):
        # an application that had little to send shows only that the network carries that
        target = max(CUT_BLIND * rate, now.tx_bits_per_s)
    elif now.through_bits_per_s is not None:
        target = OUTBOUND.cut_to * min(now.through_bits_per_s, _through_since_the_drain(state, seen, now_s=now_s))
    elif not limited and now.tx_bits_per_s < LIMITED * rate:
        target = OUTBOUND.cut_to * now.tx_bits_per_s
    else:
        target = CUT_BLIND * rate
    if rate >= state.base_bits_per_s:  # acknowledgements that a burst's end sets free make too much of what came
        target = min(target, rate * (1 - FIRST_CUT * min(1.0, max(0.0, excess_s - DELAY_S) / FIRST_CUT_DELAY_S)))
    most = CUT_MOST if cause is Cause.LOSS else max(CUT_MOST, 1 / (1 + excess_s / FOUND_AFTER_S))
    return max(target, most * rate)


def _through_since_the_drain(state: CapacityState, seen: SignalState, *, now_s: float) -> float:
    """What came through since the last cut's drain ended, where that is lately; no bound otherwise.

    A queue that still stands was fed all the time: then the longer average is the truer one.
    """
    since_s = now_s - state.changed_s
    if state.phase is not Phase.HOLDING or not REFRACTORY_S < since_s <= AGAIN_S:
        return math.inf
    return signals.through_bits_per_s(seen, now_s=now_s, window_s=since_s)


def _room(state: CapacityState, seen: SignalState, now: Signals, *, lossy: bool, busy_s: float, now_s: float) -> Room:
    """Whether there is room for more, to those who report."""
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
    """Whether no queue shows since the last change, to those who would see it."""
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
    return arrives and not beside(state, upto=BEYOND)  # there, only a gap between bursts counts


def _is_settled(arrivals: Sequence[ArrivalState], late_s: float) -> bool:
    """Whether packets that left since the last change met no queue."""
    late = sum(entry.wait_s > late_s for entry in arrivals)
    return len(arrivals) >= SETTLED_OF and late <= SETTLED_LATE * len(arrivals)


def _jitter_s(arrivals: Sequence[ArrivalState]) -> float | None:
    """By how much a peer's waits differ from one to the next, the middle one; None of too few."""
    apart_s = [abs(late.wait_s - soon.wait_s) for soon, late in pairwise(arrivals) if late.peer == soon.peer]
    return statistics.median(apart_s) if len(apart_s) >= SETTLED_OF - 1 else None


def _wait_s(arrivals: Sequence[ArrivalState], *, since_s: float) -> float | None:
    """How long the last packet to each peer waited that left since a time, the middle one."""
    last = {entry.peer: entry.wait_s for entry in arrivals if entry.left_s >= since_s}
    return statistics.median(last.values()) if last else None


def _signals_after(seen: SignalState, before: CapacityState, after: CapacityState) -> SignalState:
    """Forget what describes a rate that is over, and after a doubt take today's delay as the path's own."""
    if after.phase is Phase.DOUBTING and before.phase is not Phase.DOUBTING:
        return signals.rebase(seen)
    if after.cut is None or after.cut is before.cut:
        return seen
    before_s = after.cut.drained_s + after.cut.baseline_s
    if before.cut is None or after.cut.at_s != before.cut.at_s:
        return signals.forget(seen, before_s=before_s)
    return replace(seen, ignore_before_s=before_s)


def _shaper_rate(state: CapacityState, *, at_s: float) -> int:
    """What the root class gets: half while a queue elsewhere drains."""
    rate = state.rate_bits_per_s
    return max(least(state, OUTBOUND), int(DRAIN_FACTOR * rate)) if estimator.is_draining(state, at_s=at_s) else rate


def _reason(state: CapacityState, now: Signals, source: str, *, now_s: float) -> Reason:
    rate, last = _shaper_rate(state, at_s=now_s), state.cut
    if last is not None and estimator.is_draining(state, at_s=now_s):
        return Because.DRAINING(rate_bits_per_s=rate, excess_s=last.excess_s)
    if state.phase is Phase.DOUBTING:
        return Because.DELAY_NOT_OURS(rate_bits_per_s=rate)
    if state.rate_bits_per_s >= state.base_bits_per_s:
        seen = "queues elsewhere are not measured now" if now.excess_s is None else "no queue seen elsewhere"
        return Because.LINK_RATE(rate_bits_per_s=rate, source=source_of(source), seen=seen)
    if now.flows == 0:
        forgets = state.phase is Phase.FORGETTING or state.unheard_s >= OUTBOUND.forget_s
        return (
            Because.WAY_OUT_UNHEARD(rate_bits_per_s=rate, base_bits_per_s=state.base_bits_per_s)
            if forgets
            else Because.SIGNALS_MISSING(rate_bits_per_s=rate)
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


def _give(state: OutboundCapacity, source: str, reason: Reason, *, now_s: float) -> OutboundEstimate:
    found = state.estimate
    measured = found.rate_bits_per_s < found.base_bits_per_s
    unsettled = estimator.is_unsettled(found, now_s=now_s)
    excess_s = signals.read(state.signals, now_s=now_s).excess_s or 0.0 if unsettled else 0.0
    return OutboundEstimate(
        state,
        _shaper_rate(found, at_s=now_s),
        "measured" if measured else source,
        reason,
        source == "fallback",
        unsettled,
        excess_s,
        one_destination=measured and found.one_destination,
    )
