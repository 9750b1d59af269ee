"""What an interface can carry now: the link's own rate, or less when the bottleneck turns out to be elsewhere.

The shaper starts a little below the link, so that the queue is here, where priorities are known. When a slower link or
a shared uplink lies behind, a queue grows there instead: delay that our own queues do not explain, then loss. The law:

    cut     when destinations agree (broker.law.capacity.quorum): to what was carried by when packets arrived
    (broker.law.capacity.delivery_rate), less
            5 to 10 %. Where no peer says that: to 0.95 of what came through, at most to half at once; and where reports
            do not cover the traffic: to 0.95 of what left, if that was clearly less than allowed, else to 0.8.
    drain   then use half until the queue has gone: the far link stays busy with it meanwhile, so this costs no
            throughput. Signals from before its end are ignored, they tell about a rate that is over.
    probe   when the shaper has been the limit for a while and no queue shows: 3 % more, proven by a packet beside what
            failed last where arrivals are known; steps double up to 20 % once surely past it. A probe that shows a
            queue is taken back; the next one waits up to 1.5 s.
    hold    when nothing fresh is known: the last capacity stands, for a minute in which the shaper was the limit. Then
            3 % more a second, until somebody says that it is too much: what nobody can see may be long gone.
    doubt   delay that stays although the rate was cut again and again is not our queue: the rate is given back,
            today's delay becomes the baseline, and delay is not believed for half a minute.

Cuts and drains are broker.law.capacity.decrease's, raises broker.law.capacity.probe's; here is who is blamed, and the
answer.

Why not the textbooks' fixed steps: from 40 to 20 Mbit/s with steps of 5 % takes fourteen cuts of 300 ms; what came
through says it at once. cake-autorate gave up "set the rate to the achieved rate" because an idle sender achieves
nothing; so here a cut needs load, a bound, and is not made from an application that had little to send.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import partial

from msgspec import Struct
from msgspec.structs import replace

from broker.law.capacity import delivery_rate, nominal_rate, quorum, signals
from broker.law.capacity.decrease import (
    CUT_REFRACTORY_S,
    CUTS,
    DELAY_S,
    DRAIN_FACTOR,
    LIMITED,
    attributed_to,
    carried,
    cut,
    drain,
    is_refuted,
    is_remeasured_higher,
    least,
    raised_lately,
)
from broker.law.capacity.probe import (
    FORGETTING,
    RAISE_LOSS,
    UNHEARD_S,
    forgetting,
    late_s,
    listened,
    may_forget,
    may_raise,
    raised,
)
from broker.law.state import CapacityState
from broker.model.reasons import Because, Reason, source_of
from broker.model.values import ClassSample, FlowSample, InterfaceSample
from broker.policy.types import InterfacePolicy

HEADROOM = 0.97
"""The shaper stays below the link, so that the queue is here; 3 % covers framing that HTB does not see."""
BASE_BITS_PER_S_MIN = 64_000
"""Below an ISDN channel a speed is a driver's way to say that it has none, and HTB's timer has no grip."""
FALLBACK_BITS_PER_S = 1_000_000_000
"""Where neither the operator nor the driver names a speed: what most hosts have; slower ones are found by measuring."""

HIGH, OF = 3, 4
"""Three of the last four ticks: one scheduling hiccup of any length is one tick. Found after 0.3-0.4 s."""
DEEP_HIGH, DEEP_OF, SURELY_LESS = 2, 3, 0.8
"""Where a packet waited 100 ms and what was carried is below 0.8 of the rate, two of three do: a hiccup of a peer is no
reason, for by its arrivals more was carried, not less."""
QUIET_DELAY_S, QUIET_S = 0.010, 0.8
QUIET_HIGH, QUIET_OF = 4, 5
"""BBR and short buffers keep a queue elsewhere below 30 ms (two bandwidth-delay products at most). Then what tells is
that the shaper has stopped being the limit although connections have more to send, and 10 ms of delay stay: for 0.8
s."""
FALL_S = 0.4
"""In the middle of a burst only two-way signals come. While nothing was cut yet they count when the shaper has stopped
being the limit for as long, others than training have more to send, and the way in is not what is full."""
FALLING_S = 1.5
"""The first cut may not be enough: for so long the same evidence counts again."""
PROBE_HIGH, PROBE_OF = 2, 3
LOAD_MIN = 0.3
"""Below this part of the capacity, delay elsewhere is somebody else's. The busiest tenth of a second counts: training
that the queue slows down to 0.3 of its link, and that computes a third of the time, is below it on average while each
of its bursts begins with a queue of 120 ms (measured: the peer's broker never cut, and people waited for it)."""
BACKLOG_BYTES_MIN = 3_028
"""The shaper is the limit in a tick that used 90 % of it and left two packets waiting."""
LOSS_FRACTION, LOSS_SENT_MIN = 0.05, 5
"""5 % lost on the way in a second (StormGuard's lower step), and at least so many packets, is a queue too short to show
delay: not where arrivals tell of one."""
LOSS_SETTLE_S = 1.0
"""After a cut, losses of before are still being found and reported; those count that come half a second after it and
later (`broker.law.capacity.signals.LOSS_LAG_S`), and are looked at over as long again."""
NOTHING = ("", 0)
"""Nothing speaks for a bottleneck elsewhere, and nobody."""
UNSETTLED_S = 2.0
"""For so long after a cut or a raise a queue may stand elsewhere, where no priority helps: storage makes room for
bursts. While the shaper is what limits, raises come more often than that; so it does for as long as the bottleneck is
elsewhere and busy, and where it is here, never."""


class CapacityEstimate(Struct, frozen=True):
    """The capacity of the moment, where the figure is from, why, and whether no speed is known at all.

    `unsettled` says that a queue may still stand elsewhere, `excess_s` how long a packet waits in it;
    `one_destination` that the rate, found lower, rests on one destination only, so that what goes elsewhere may have
    more.
    """

    state: CapacityState
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
    """What the way out carries as far as operator and driver say: no headroom, nothing measured."""
    if policy.egress_bits_per_s is not None:
        return policy.egress_bits_per_s
    known = (link_bits_per_s or 0) >= BASE_BITS_PER_S_MIN
    return (link_bits_per_s or 0) if known else FALLBACK_BITS_PER_S


def base_rate(policy: InterfacePolicy, sample: InterfaceSample | None) -> tuple[int, str]:
    """What the shaper gets while nothing speaks against it, and where that figure is from."""
    if policy.egress_bits_per_s is not None:
        return max(BASE_BITS_PER_S_MIN, int(policy.egress_bits_per_s * HEADROOM)), "configured"
    if sample is not None and (sample.link_bits_per_s or 0) >= BASE_BITS_PER_S_MIN:
        return int((sample.link_bits_per_s or 0) * HEADROOM), "link"
    return int(FALLBACK_BITS_PER_S * HEADROOM), "fallback"


def estimate(
    *, now_s: float, state: CapacityState | None, base: tuple[int, str], flows: Sequence[FlowSample],
    counters: Counters | None,
) -> CapacityEstimate:  # fmt: skip
    """Estimate what the interface can carry now.

    Args:
        now_s: the tick's time.
        state: None at first, then the last estimate's.
        base: from `base_rate`.
        flows: as measured, in any order.
        counters: this tick's reading; None where there is none, and then the last capacity stands.
    """
    rate, source = base
    state = nominal_rate.outbound(state, rate, now_s=now_s)
    if counters is None or counters.elapsed_s <= 0:
        return _give(state, source, Because.SIGNALS_MISSING(rate_bits_per_s=state.rate_bits_per_s), now_s=now_s)
    shaper = _shaper_rate(state, now_s=now_s - counters.elapsed_s)
    load = math.fsum(counters.sent_bits) / counters.elapsed_s / shaper
    seen = signals.observe(
        state.signals, now_s=now_s, flows=flows, classes=counters.classes, sent_bits=counters.sent_bits,
        received_bits=counters.received_bits, dropped_packets=counters.dropped_packets,
        elapsed_s=counters.elapsed_s, loaded=load > 0.5, rate_bits_per_s=shaper,
    )  # fmt: skip
    waiting = sum(entry.backlog_bytes for entry in counters.classes) >= BACKLOG_BYTES_MIN
    limiting = waiting and load >= LIMITED
    state = replace(
        state,
        signals=seen,
        busy_s=state.busy_s + (counters.elapsed_s if limiting else 0.0),
        free_s=0.0 if limiting else state.free_s + counters.elapsed_s,
    )
    now = signals.read(seen, now_s=now_s)
    refuted = is_refuted(state, now_s=now_s)
    losing = quorum.losing(seen, flows) if refuted or now.lost_fraction > RAISE_LOSS else 0
    if refuted and not losing:
        now = replace(now, lost_packets=0, lost_fraction=0.0, lost_since_packets=0, lost_since_fraction=0.0)
    lossy = losing > 0 and now.lost_fraction > RAISE_LOSS
    state = listened(state, now, limiting_s=counters.elapsed_s if limiting else 0.0)
    passed, stalled = carried(state, since_s=0.0, now_s=now_s)
    if now_s < state.drain_until_s or is_remeasured_higher(state, passed, now_s=now_s):
        state = drain(state, passed, now_s=now_s)
        if now_s < state.drain_until_s:
            return _give(state, source, _reason(state, now, source, now_s=now_s), now_s=now_s)
    blamed, votes = _blamed(state, now, passed, stalled, flows, now_s=now_s)
    if blamed:
        state = cut(state, now, passed, by=blamed, limited=load >= LIMITED, now_s=now_s)
        state = attributed_to(state, by=blamed, votes=votes, now_s=now_s)
    elif not lossy and may_raise(state, now, now_s=now_s):
        state = raised(state, now_s=now_s)
    elif may_forget(state, now_s=now_s):
        state = forgetting(state, now_s=now_s)
    return _give(state, source, _reason(state, now, source, now_s=now_s), now_s=now_s)


def heard(state: CapacityState, flows: Sequence[FlowSample]) -> list[quorum.Heard]:
    """What the destinations say on which the capacity rests, as of the last tick, whose connections `flows` are."""
    threshold_s = delivery_rate.threshold_s(DELAY_S, state.rate_bits_per_s)
    return quorum.heard(state.signals, flows=flows, threshold_s=threshold_s, high=HIGH, of=OF)


def _blamed(
    state: CapacityState, now: signals.Signals, passed: delivery_rate.DeliveryRate | None, stalled: frozenset[str],
    flows: Sequence[FlowSample], *, now_s: float,
) -> tuple[str, int]:  # fmt: skip
    """What speaks for a bottleneck elsewhere: "delay", "probe" (delay just after a raise), "loss", or "": nothing; and
    how many destinations' votes that is, 0 where our own kernel's do not confirm what programs say."""
    if now_s < state.ignore_delay_until_s:
        return NOTHING
    if state.changed_by in ("delay", "probe") and now_s - state.changed_s < CUT_REFRACTORY_S:
        return NOTHING
    agree = partial(quorum.agree, state.signals, now_s=now_s, stalled=stalled)
    if signals.peak_tx_bits_per_s(state.signals, now_s=now_s) < LOAD_MIN * state.rate_bits_per_s:
        return NOTHING
    delay_s = delivery_rate.threshold_s(DELAY_S, state.rate_bits_per_s)
    quiet_delay_s = delivery_rate.threshold_s(QUIET_DELAY_S, state.rate_bits_per_s)
    if (
        passed is not None
        and passed.deep
        and passed.carried_bits_per_s < SURELY_LESS * state.rate_bits_per_s
        and (votes := agree(threshold_s=delay_s, high=DEEP_HIGH, of=DEEP_OF))
    ):
        return "delay", votes
    if state.changed_by == "loss" and now_s - state.changed_s < CUT_REFRACTORY_S:
        return NOTHING
    if votes := agree(threshold_s=delay_s, high=HIGH, of=OF):
        return "delay", votes
    if raised_lately(state, now_s=now_s) and (votes := agree(threshold_s=late_s(state), high=PROBE_HIGH, of=PROBE_OF)):
        return "probe", votes
    untouched = state.rate_bits_per_s >= state.base_bits_per_s
    falling = state.fallen_s is not None and now_s - state.fallen_s < FALLING_S
    if (
        (untouched or falling)
        and now.pressed
        and state.free_s >= FALL_S
        and signals.less_comes_in(state.signals, now_s=now_s)
        and (votes := quorum.two_way_high(state.signals, now_s=now_s, threshold_s=delay_s, high=HIGH, of=OF))
    ):
        return "delay", votes
    if (
        now.pressed
        and state.free_s >= QUIET_S
        and (votes := agree(threshold_s=quiet_delay_s, high=QUIET_HIGH, of=QUIET_OF))
    ):
        return "delay", votes
    if passed is not None or stalled:
        return NOTHING
    lost = now.lost_since_packets
    settled = state.cut_s is None or now_s - state.changed_s >= LOSS_SETTLE_S
    if settled and now.lost_since_fraction >= LOSS_FRACTION and lost >= LOSS_SENT_MIN:
        return "loss", quorum.losing(state.signals, flows)
    return NOTHING


def _shaper_rate(state: CapacityState, *, now_s: float) -> int:
    """What the root class gets: half while a queue elsewhere drains."""
    rate = state.rate_bits_per_s
    return max(least(state), int(DRAIN_FACTOR * rate)) if now_s < state.drain_until_s else rate


def _reason(state: CapacityState, now: signals.Signals, source: str, *, now_s: float) -> Reason:
    rate = _shaper_rate(state, now_s=now_s)
    if now_s < state.drain_until_s:
        return Because.DRAINING(rate_bits_per_s=rate, excess_s=state.moved_excess_s)
    if now_s < state.ignore_delay_until_s:
        return Because.DELAY_NOT_OURS(rate_bits_per_s=rate)
    if state.rate_bits_per_s >= state.base_bits_per_s:
        seen = "queues elsewhere are not measured now" if now.excess_s is None else "no queue seen elsewhere"
        return Because.LINK_RATE(rate_bits_per_s=rate, source=source_of(source), seen=seen)
    if now.flows == 0:
        forgets = state.changed_by == FORGETTING or state.unheard_s >= UNHEARD_S
        return (
            Because.WAY_OUT_UNHEARD(rate_bits_per_s=rate, base_bits_per_s=state.base_bits_per_s)
            if forgets
            else Because.SIGNALS_MISSING(rate_bits_per_s=rate)
        )
    if state.one_destination:
        return Because.ONE_DESTINATION(rate_bits_per_s=rate, base_bits_per_s=state.base_bits_per_s)
    if state.changed_by == "loss":
        return Because.CAPPED_BY_LOSS(rate_bits_per_s=rate, lost_fraction=now.lost_fraction)
    if state.changed_by in ("raise", FORGETTING):
        return Because.PROBING(rate_bits_per_s=rate, base_bits_per_s=state.base_bits_per_s)
    return Because.CAPPED_BY_DELAY(
        rate_bits_per_s=rate, excess_s=state.moved_excess_s, baseline_s=state.moved_baseline_s
    )


def _give(state: CapacityState, source: str, reason: Reason, *, now_s: float) -> CapacityEstimate:
    measured = state.rate_bits_per_s < state.base_bits_per_s
    rate = _shaper_rate(state, now_s=now_s)
    unsettled = measured and state.changed_by in (*CUTS, "raise", FORGETTING) and now_s - state.changed_s < UNSETTLED_S
    excess_s = signals.read(state.signals, now_s=now_s).excess_s or 0.0 if unsettled else 0.0
    return CapacityEstimate(
        state,
        rate,
        "measured" if measured else source,
        reason,
        source == "fallback",
        unsettled,
        excess_s,
        one_destination=measured and state.one_destination,
    )
