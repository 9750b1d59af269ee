"""What an interface can carry now: the link's own rate, or less when the bottleneck turns out to be elsewhere.

The shaper starts a little below the link, so that the queue is here, where priorities are known. When a slower link or
a shared uplink lies behind, a queue grows there instead: delay that our own queues do not explain, then loss. The law:

    cut     when destinations agree (broker.signals): to 0.95 of what came through, at most to half at once. Where
            reports do not cover the traffic: to 0.95 of what left, if that was clearly less than allowed, else to 0.8.
    drain   then for about twice the excess delay use half: the far link stays busy with its queue meanwhile, so this
            costs no throughput. Signals from before its end are ignored, they tell about a rate that is over.
    probe   when the shaper has been the limit for a while and no queue shows: 3 % more; steps double up to 20 % once
            well past what failed last. A probe that shows a queue is taken back; the next one waits up to 1.5 s.
    hold    when nothing fresh is known: the last capacity stands.
    doubt   delay that stays although the rate was cut again and again is not our queue: the rate is given back,
            today's delay becomes the baseline, and delay is not believed for half a minute.

Why not the textbooks' fixed steps: from 40 to 20 Mbit/s with steps of 5 % takes fourteen cuts of 300 ms; what came
through says it at once. cake-autorate gave up "set the rate to the achieved rate" because an idle sender achieves
nothing; so here a cut needs load, never goes below half, and is not made from an application that had little to send.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

from broker import passage, reasons, signals
from broker.model import ClassSample, FlowSample, InterfaceSample
from broker.policy import InterfacePolicy
from broker.state import CapacityState

HEADROOM = 0.97
"""The shaper stays below the link, so that the queue is here; 3 % covers framing that HTB does not see."""
BASE_BITS_PER_S_MIN = 64_000
"""Below an ISDN channel a speed is a driver's way to say that it has none, and HTB's timer has no grip."""
FALLBACK_BITS_PER_S = 1_000_000_000
"""Where neither the operator nor the driver names a speed: what most hosts have; slower ones are found by measuring."""

DELAY_S = 0.030
"""A queue elsewhere of 30 ms is bloat (cake-autorate's T); less is the jitter of Wi-Fi and of busy hosts."""
SURELY_LESS = 0.8
HIGH, OF = 3, 4
"""Three of the last four ticks: one scheduling hiccup of any length is one tick. Found after 0.3-0.4 s."""
QUIET_DELAY_S, QUIET_S = 0.010, 0.8
QUIET_HIGH, QUIET_OF = 4, 5
"""BBR and short buffers keep a queue elsewhere below 30 ms (two bandwidth-delay products at most). Then what tells is
that the shaper has stopped being the limit although connections have more to send, and 10 ms of delay stay: for 0.8
s."""
FALL_S = 0.4
"""In the middle of a burst only two-way signals come. While nothing was cut yet they count when the shaper has stopped
being the limit for as long, others than training have more to send, and the way in is not what is full."""
FALLING_S = 1.5
FIRST_CUT, FIRST_CUT_DELAY_S = 0.35, 0.1
"""The first cut may not be enough: for so long the same evidence counts again. And it is at least 35 % when the queue
is 130 ms or more, less with less: a standing queue of that size at the full rate is no small difference."""
PROBE_DELAY_S = 0.012
PROBE_HIGH, PROBE_OF = 2, 3
PROBE_WATCH_S = 1.5
"""Just after a raise the suspicion is greater and a mistake cheap (the raise is taken back): half the delay, two of
three ticks."""
CUTS = ("delay", "probe", "loss")
CUT_REFRACTORY_S = 0.3
"""At most one cut in 300 ms (cake-autorate), from the end of its drain on: what came through meanwhile was our own
doing."""
CUT_TO_THROUGH = 0.95
"""Of what came through: the queue has to get shorter, and the ratio of wire to delivered bytes is known to a few
percent."""
AGAIN_S = 1.0
"""Acknowledgements that waited in a queue towards us come all at once when it has gone: what came through in 0.3 s was
1.5 times what the link carried, and a second cut went down by a tenth where a third was due (from 97 to 30 Mbit/s). A
queue that stands again within a second of a drain has not been away: what came through since then counts, too."""
CUT_TO_DEEP, SPAN_S_SURE = 0.9, 0.25
CUT_MOST_SEEN, DRAIN_S_LONGEST = 0.2, 1.2
CUT_MOST, CUT_BLIND, CUT_LEAST = 0.5, 0.8, 0.97
"""Never below half at once (a wrong measurement costs one step); a fifth without one; a cut that is worth a write."""
FOUND_AFTER_S = 0.2
"""What is sent beyond the capacity by a part p adds p seconds of queue a second, and a queue is found after 0.2 s at
the soonest: so a queue of D seconds means at most D / 0.2 too much, whatever the measured rates say."""
PROBE_BACK = 0.96
"""A failed probe costs at most a twentieth of what was there before it: a tenth each time was a ratchet, where every
probe fails because of what waits above our own queue."""
DRAIN_FACTOR, DRAIN_S_MAX = 0.5, 0.8
"""At half the rate a queue of D seconds is gone after 2 D; longer than 0.8 s would be felt by a training step."""
LOAD_MIN = 0.3
"""Below this part of the capacity, delay elsewhere is somebody else's."""
LIMITED = 0.9
BACKLOG_BYTES_MIN = 3_028
"""The shaper is the limit in a tick that used 90 % of it and left two packets waiting."""
BUSY_S = 0.3
BUSY_UNSEEN_S = 1.0
SEEN_AFTER_S = 0.2
"""How long it has to be the limit before a probe: one detection time, or three when no destination says anything.
A sample tells about the last raise when it was taken this much later: a tick until it is applied, and a round trip."""
PROBE_STEP, PROBE_STEP_MAX = 0.03, 0.2
NEAR, GENTLE_UP_TO, BEYOND = 0.97, 1.02, 1.12
"""3 % over a bottleneck adds 30 ms of queue a second: seen within a second, harmless until then. So up to 4 % over what
came through at the last cut steps stay small, and 12 % over it the back-off is forgotten. At 20 % the climb from a half
takes eight steps, 3.2 s; its overshoot is 60 ms of queue."""
CONFIRM_S = 0.5
HOLD_S, HOLD_S_MAX = 1.0, 1.5
"""From a cut to the first probe, and at most: a rise has to be followed within 5 s."""
LOSS_FRACTION, LOSS_SENT_MIN = 0.05, 5
"""5 % lost on the way in a second (StormGuard's lower step), and at least so many packets, is a queue too short to show
delay."""
LOSS_SETTLE_S = 1.0
"""After a cut, losses of before are still being found and reported: a second, the window in which they are counted."""
RAISE_LOSS = 0.01
"""No probe while more than 1 % is lost on the way: a lossy Wi-Fi stays below, a full short buffer does not."""
DOUBT_CUTS, DOUBT_RATE, DOUBT_EXCESS = 6, 0.3, 0.7
"""Six cuts, or down to 0.3, with more than 0.7 of the first delay left: it does not follow our rate."""
BLAMELESS_S = 30.0
UNSETTLED_S = 2.0
"""For so long after a cut or a raise a queue may stand elsewhere, where no priority helps: storage makes room for
bursts. While the shaper is what limits, raises come more often than that; so it does for as long as the bottleneck is
elsewhere and busy, and where it is here, never."""
EPISODE_S = 5.0
"""Cuts further apart than this are about different things."""
RATE_MIN_PART = 0.02
"""Never below 2 % of the base: the sum of small floors still moves."""


@dataclass(frozen=True)
class CapacityEstimate:
    """The capacity of the moment, where the figure is from, why, and whether no speed is known at all.

    `unsettled` says that a queue may still stand elsewhere, `excess_s` how long a packet waits in it.
    """

    state: CapacityState
    rate_bits_per_s: int
    source: str
    reason: reasons.Reasoned
    fallback: bool
    unsettled: bool
    excess_s: float = 0.0


@dataclass(frozen=True)
class Counters:
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
    if state is None or state.base_bits_per_s != rate:
        state = CapacityState(base_bits_per_s=rate, rate_bits_per_s=rate, changed_s=now_s, hold_s=HOLD_S)
    if counters is None or counters.elapsed_s <= 0:
        return _give(state, source, reasons.SignalsMissing(state.rate_bits_per_s), now_s=now_s)
    shaper = _shaper_rate(state, now_s=now_s - counters.elapsed_s)
    load = sum(counters.sent_bits) / counters.elapsed_s / shaper
    seen = signals.observe(
        state.signals, now_s=now_s, flows=flows, classes=counters.classes, sent_bits=counters.sent_bits,
        received_bits=counters.received_bits, dropped_packets=counters.dropped_packets,
        elapsed_s=counters.elapsed_s, loaded=load > 0.5,
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
    passed = passage.read(seen.arrivals, seen.ticks, since_s=0.0, now_s=now_s)
    if now_s < state.drain_until_s:
        state = _measured_drain(state, passed, now_s=now_s)
        if now_s < state.drain_until_s:
            return _give(state, source, reasons.Draining(_shaper_rate(state, now_s=now_s), state.moved_excess_s), now_s=now_s)
    blamed = _blamed(state, now, passed, now_s=now_s)
    if blamed:
        state = _cut(state, now, passed, by=blamed, limited=load >= LIMITED, now_s=now_s)
    elif _may_raise(state, now, now_s=now_s):
        state = _raise(state, now_s=now_s)
    return _give(state, source, _reason(state, now, source, now_s=now_s), now_s=now_s)


def _blamed(
    state: CapacityState, now: signals.Signals, passed: passage.Passage | None, *, now_s: float
) -> str:
    """What speaks for a bottleneck elsewhere: "delay", "probe" (delay just after a raise), "loss", or "": nothing."""
    if now_s < state.blameless_until_s:
        return ""
    if state.moved_by in ("delay", "probe") and now_s - state.changed_s < CUT_REFRACTORY_S:
        return ""
    if signals.peak_tx_bits_per_s(state.signals, now_s=now_s) < LOAD_MIN * state.rate_bits_per_s:
        return ""
    if (
        passed is not None
        and passed.deepest_s >= passage.DEEP_S
        and passed.carried_bits_per_s < SURELY_LESS * state.rate_bits_per_s
        and signals.agree(state.signals, now_s=now_s, threshold_s=DELAY_S, high=2, of=3)
    ):
        return "delay"
    if passed is not None and passed.carried_bits_per_s > 1.1*state.rate_bits_per_s:
        return ""
    if state.moved_by == "loss" and now_s - state.changed_s < CUT_REFRACTORY_S:
        return ""
    if signals.agree(state.signals, now_s=now_s, threshold_s=DELAY_S, high=HIGH, of=OF):
        return "delay"
    if _raised_lately(state, now_s=now_s) and signals.agree(
        state.signals, now_s=now_s, threshold_s=PROBE_DELAY_S, high=PROBE_HIGH, of=PROBE_OF
    ):  # fmt: skip
        return "probe"
    untouched = state.rate_bits_per_s >= state.base_bits_per_s
    falling = state.fallen_s is not None and now_s - state.fallen_s < FALLING_S
    if (
        (untouched or falling)
        and now.pressed
        and state.free_s >= FALL_S
        and signals.less_comes_in(state.signals, now_s=now_s)
        and signals.two_way_high(state.signals, now_s=now_s, threshold_s=DELAY_S, high=HIGH, of=OF)
    ):
        return "delay"
    if now.pressed and state.free_s >= QUIET_S and signals.agree(
        state.signals, now_s=now_s, threshold_s=QUIET_DELAY_S, high=QUIET_HIGH, of=QUIET_OF
    ):  # fmt: skip
        return "delay"
    if signals.deep(state.signals) or signals.overdue(state.signals, now_s=now_s):
        return ""
    lost = now.lost_packets
    settled = state.cut_s is None or now_s - state.changed_s >= LOSS_SETTLE_S
    if settled and now.lost_fraction >= LOSS_FRACTION and lost >= LOSS_SENT_MIN:
        return "loss"
    return ""


def _raised_lately(state: CapacityState, *, now_s: float) -> bool:
    if state.raised_s is None or now_s - state.raised_s > PROBE_WATCH_S:
        return False
    return state.cut_s is None or state.cut_s < state.raised_s


def _measured_drain(state: CapacityState, passed: passage.Passage | None, *, now_s: float) -> CapacityState:
    """Let the drain last as long as the queue does, by what is measured while it drains; and mend the rate likewise."""
    if state.moved_by == "loss" or state.cut_s is None:
        return state
    until_s, carried = state.drain_until_s, state.failed_bits_per_s
    since = passage.read(state.signals.arrivals, state.signals.ticks, since_s=state.cut_s, now_s=now_s)
    if since is not None and since.span_s >= SPAN_S_SURE:
        carried = int(since.carried_bits_per_s)
    elif passed is not None:
        carried = min(carried, int(passed.carried_bits_per_s))
    if passed is not None:
        until_s = min(state.cut_s + DRAIN_S_LONGEST, now_s + passed.wait_s / (1 - DRAIN_FACTOR))
    elif any(entry.left_s >= state.cut_s for entry in state.signals.arrivals):
        until_s = now_s
    rate = state.rate_bits_per_s
    if carried != state.failed_bits_per_s:
        most = CUT_LEAST * state.cut_from_bits_per_s
        rate = int(min(max(CUT_TO_THROUGH * carried, CUT_MOST_SEEN * state.cut_from_bits_per_s), most))
    return replace(
        state,
        rate_bits_per_s=max(rate, _least(state)),
        failed_bits_per_s=carried,
        drain_until_s=until_s,
        changed_s=until_s,
        signals=replace(state.signals, ignore_before_s=until_s + state.moved_baseline_s),
    )


def _cut(
    state: CapacityState, now: signals.Signals, passed: passage.Passage | None, *, by: str, limited: bool, now_s: float
) -> CapacityState:
    """Go down to what was carried, and empty the queue; or give up blaming ourselves."""
    excess_s = now.excess_s or 0.0
    probe_failed = _raised_lately(state, now_s=now_s)
    apart = state.cut_s is None or now_s - state.cut_s > EPISODE_S
    if apart or probe_failed:
        state = replace(state, episode_rate_bits_per_s=state.rate_bits_per_s, episode_excess_s=excess_s, episode_cuts=0)
    elif _in_doubt(state, excess_s):
        return replace(
            state,
            rate_bits_per_s=state.episode_rate_bits_per_s, signals=signals.rebase(state.signals),
            blameless_until_s=now_s + BLAMELESS_S, changed_s=now_s, moved_by="doubt", busy_s=0.0,
        )  # fmt: skip
    rate = state.rate_bits_per_s
    untouched = rate >= state.base_bits_per_s
    if passed is not None:
        deep = passed.deepest_s >= passage.DEEP_S
        target = (CUT_TO_DEEP if deep else CUT_TO_THROUGH) * passed.carried_bits_per_s
    elif now.through_bits_per_s is not None:
        target = CUT_TO_THROUGH * min(now.through_bits_per_s, _through_since_the_drain(state, now_s=now_s))
    elif not limited and now.tx_bits_per_s < LIMITED * rate:
        target = CUT_TO_THROUGH * now.tx_bits_per_s
    else:
        target = CUT_BLIND * rate
    if untouched and passed is None:  # acknowledgements that a burst's end sets free make too much of what came through
        target = min(target, rate * (1 - FIRST_CUT * min(1.0, max(0.0, excess_s - DELAY_S) / FIRST_CUT_DELAY_S)))
    most = CUT_MOST_SEEN if passed else CUT_MOST if by == "loss" else max(CUT_MOST, 1 / (1 + excess_s / FOUND_AFTER_S))
    target = min(max(target, most * rate), CUT_LEAST * rate)
    if by == "probe":
        before = state.rate_before_raise_bits_per_s
        target = min(max(target, PROBE_BACK * before), before)
    back_off_s = min(HOLD_S_MAX, max(HOLD_S, 2 * state.back_off_s)) if probe_failed else HOLD_S
    drain_s = min(DRAIN_S_MAX, (passed.wait_s if passed else excess_s) / (1 - DRAIN_FACTOR)) if by != "loss" else 0.0
    return replace(
        state,
        rate_bits_per_s=max(int(target), _least(state)),
        drain_until_s=now_s + drain_s,
        signals=state.signals
        if by == "loss"
        else signals.forget(state.signals, before_s=now_s + drain_s + now.baseline_s),
        cut_s=now_s,
        cut_from_bits_per_s=rate,
        fallen_s=now_s if untouched else state.fallen_s,
        changed_s=now_s + drain_s,
        hold_s=back_off_s,
        back_off_s=back_off_s,
        step=PROBE_STEP,
        failed_bits_per_s=int(passed.carried_bits_per_s if passed else target / CUT_TO_THROUGH),
        busy_s=0.0,
        episode_cuts=state.episode_cuts + 1,
        moved_by=by,
        moved_excess_s=excess_s,
        moved_baseline_s=now.baseline_s,
    )


def _through_since_the_drain(state: CapacityState, *, now_s: float) -> float:
    """What came through since the last cut's drain ended, where that is lately; no bound otherwise.

    A queue that still stands was fed all the time: then the longer average is the truer one.
    """
    since_s = now_s - state.changed_s
    if state.moved_by not in CUTS or not CUT_REFRACTORY_S < since_s <= AGAIN_S:
        return math.inf
    return signals.through_bits_per_s(state.signals, now_s=now_s, window_s=since_s)


def _in_doubt(state: CapacityState, excess_s: float) -> bool:
    far = state.episode_cuts >= DOUBT_CUTS or state.episode_cuts >= 3 and state.rate_bits_per_s <= DOUBT_RATE * state.episode_rate_bits_per_s
    return far and excess_s >= DOUBT_EXCESS * state.episode_excess_s


def _may_raise(state: CapacityState, now: signals.Signals, *, now_s: float) -> bool:
    if state.rate_bits_per_s >= state.base_bits_per_s or now_s - state.changed_s < state.hold_s:
        return False
    if now.flows == 0 or now.lost_fraction > RAISE_LOSS:
        return False
    beside = NEAR * state.failed_bits_per_s < state.rate_bits_per_s < GENTLE_UP_TO * state.failed_bits_per_s
    if state.moved_by == "raise" and beside and not _confirmed(state):
        return False
    since_s = state.changed_s + SEEN_AFTER_S if state.moved_by == "raise" else state.changed_s
    one_way = signals.clear(state.signals, two_way=False, since_s=since_s, threshold_s=PROBE_DELAY_S)
    two_way = signals.clear(state.signals, two_way=True, since_s=since_s, threshold_s=PROBE_DELAY_S)
    if one_way is False or state.busy_s < BUSY_S:
        return False
    if one_way or two_way:
        return True
    arrives = signals.arrives(state.signals, now_s=now_s)
    if not signals.one_way_expected(state.signals, now_s=now_s):
        return state.busy_s >= BUSY_UNSEEN_S and (arrives or now.through_bits_per_s is None)
    near = NEAR * state.failed_bits_per_s < state.rate_bits_per_s < BEYOND * state.failed_bits_per_s
    return arrives and not near  # beside what failed, only a gap between bursts can tell


def _confirmed(state: CapacityState) -> bool:
    """Whether a raise beside what failed last has been used for long enough for its queue to show, and shows none."""
    if state.busy_s < CONFIRM_S:
        return False
    heard = [entry.wait_s for entry in state.signals.arrivals if entry.left_s >= state.changed_s + CONFIRM_S / 2]
    return not heard or heard[-1] <= PROBE_DELAY_S


def _raise(state: CapacityState, *, now_s: float) -> CapacityState:
    step = state.step or PROBE_STEP
    gentle = state.rate_bits_per_s < GENTLE_UP_TO * state.failed_bits_per_s
    return replace(
        state,
        rate_bits_per_s=min(state.base_bits_per_s, int(state.rate_bits_per_s * (1 + step))),
        rate_before_raise_bits_per_s=state.rate_bits_per_s,
        raised_s=now_s,
        changed_s=now_s,
        hold_s=BUSY_S,
        back_off_s=state.back_off_s if state.rate_bits_per_s < BEYOND * state.failed_bits_per_s else 0.0,
        step=PROBE_STEP if gentle else min(PROBE_STEP_MAX, 2 * step),
        busy_s=0.0,
        moved_by="raise",
    )


def _least(state: CapacityState) -> int:
    return max(1, int(RATE_MIN_PART * state.base_bits_per_s))


def _shaper_rate(state: CapacityState, *, now_s: float) -> int:
    """What the root class gets: half while a queue elsewhere drains."""
    rate = state.rate_bits_per_s
    return max(_least(state), int(DRAIN_FACTOR * rate)) if now_s < state.drain_until_s else rate


def _reason(state: CapacityState, now: signals.Signals, source: str, *, now_s: float) -> reasons.Reasoned:
    rate = _shaper_rate(state, now_s=now_s)
    if now_s < state.drain_until_s:
        return reasons.Draining(rate, state.moved_excess_s)
    if now_s < state.blameless_until_s:
        return reasons.DelayNotOurs(rate)
    if state.rate_bits_per_s >= state.base_bits_per_s:
        return reasons.LinkRate(rate, source)
    if now.flows == 0:
        return reasons.SignalsMissing(rate)
    if state.moved_by == "loss":
        return reasons.CappedByLoss(rate, now.lost_fraction)
    if state.moved_by == "raise":
        return reasons.Probing(rate, state.base_bits_per_s)
    return reasons.CappedByDelay(rate, state.moved_excess_s, state.moved_baseline_s)


def _give(state: CapacityState, source: str, reason: reasons.Reasoned, *, now_s: float) -> CapacityEstimate:
    measured = state.rate_bits_per_s < state.base_bits_per_s
    rate = _shaper_rate(state, now_s=now_s)
    unsettled = measured and state.moved_by in (*CUTS, "raise") and now_s - state.changed_s < UNSETTLED_S
    excess_s = signals.read(state.signals, now_s=now_s).excess_s or 0.0 if unsettled else 0.0
    return CapacityEstimate(
        state, rate, "measured" if measured else source, reason, source == "fallback", unsettled, excess_s
    )
