"""The way down: to what was carried, and then the queue elsewhere has to go.

What was carried is broker.law.capacity.delivery_rate's word, by when packets arrived: over a queue of 100 ms or more
the least of several stretches, because a full buffer drops part of what was sent, and a tenth less than that. Where no
peer says when packets arrived, acknowledgements tell, and then a cut is bounded: they come all at once, or not at all,
when the way back has a queue of its own.

While the queue drains it is measured on: packets that leave now meet no full buffer, so what they say counts more than
what the cut was made from, and the drain ends when they find no queue. What a packet said that the next one shows to
have been held up at the peer is taken back, up to what the cut was made from.
"""

from __future__ import annotations

import math

from msgspec.structs import replace

from broker.law.capacity import delivery_rate, signals
from broker.law.state import CapacityState

CUTS = ("delay", "probe", "loss")
CUT_REFRACTORY_S = 0.3
"""At most one cut in 300 ms (cake-autorate), from the end of its drain on: what came through meanwhile was our own
doing."""
CUT_TO_THROUGH = 0.95
"""Of what came through: the queue has to get shorter, and the ratio of wire to delivered bytes is known to a few
percent."""
SURELY_MORE = 1.1
"""Of what may leave: a peer whose packets arrived closer together than that had stalled, and has no say. What waited
for it is no queue of ours."""
CUT_TO_DEEP, UNSURE, SURE = 0.9, 1.3, 1.04
"""Over a deep queue what was carried is known to 10 %, most of it because we know what left by the tick only: so a
tenth less. Where a quarter too little was measured, steps doubled 15 % past that, and the last one went 14 to 30 % over
the link: 70 ms for people. So 30 % more than measured before a raise counts as surely beyond it; else 4 %."""
SURE_SPAN_S = 0.25
"""Of arrivals within a drain, for them to put the rate up again: 10 ms of jitter are 4 % of it."""
AGAIN_S = 1.0
"""Acknowledgements that waited in a queue towards us come all at once when it has gone: what came through in 0.3 s was
1.5 times what the link carried, and a second cut went down by a tenth where a third was due (from 97 to 30 Mbit/s). A
queue that stands again within a second of a drain has not been away: what came through since then counts, too."""
CUT_MOST, CUT_BLIND, CUT_LEAST = 0.5, 0.8, 0.97
"""Never below half at once (a wrong measurement costs one step); a fifth without one; a cut that is worth a write."""
CUT_MOST_SEEN = 0.2
"""By arrivals a fall to a fifth is followed at once; a deeper one takes two cuts."""
FIRST_CUT, FIRST_CUT_DELAY_S = 0.35, 0.1
"""The first cut by acknowledgements may not be enough, and is at least 35 % when the queue is 130 ms or more, less with
less: a standing queue of that size at the full rate is no small difference."""
FOUND_AFTER_S = 0.2
"""What is sent beyond the capacity by a part p adds p seconds of queue a second, and a queue is found after 0.2 s at
the soonest: so a queue of D seconds means at most D / 0.2 too much, whatever acknowledgements say."""
PROBE_BACK, PROBE_BACK_UNTOLD = 0.95, 0.9
"""A failed probe costs at most a twentieth of what was there before it, and a tenth where arrivals are not known; and
nothing of a rate that stood without a queue, for a host that holds packets up makes probes fail one after the other.
Its queue is found before it is long enough to say what was carried: then it costs all of that, and the link is taken
for the geometric mean of what was there and what was tried. By acknowledgements, whose 0.3 s hold what a queue set
free, the law went back to 1 to 5 % over the link."""
LIMITED = 0.9
"""The shaper was the limit in a tick that used 90 % of it."""
DELAY_S = 0.030
"""A queue elsewhere of 30 ms is bloat (cake-autorate's T); less is the jitter of Wi-Fi and of busy hosts."""
DRAIN_FACTOR, DRAIN_S_MAX, DRAIN_S_LONGEST = 0.5, 0.8, 1.2
"""At half the rate a queue of D seconds is gone after 2 D; longer than 0.8 s would be felt by a training step. One that
is measured on may last 1.2 s: 330 ms of buffer at a third of its rate take 0.7 s, and we hear of it 0.4 s later."""
HOLD_S, HOLD_S_MAX = 1.0, 1.5
"""From a cut to the first probe, and at most: a rise has to be followed within 5 s."""
DOUBT_CUTS, DOUBT_RATE, DOUBT_RATE_CUTS, DOUBT_EXCESS = 6, 0.3, 3, 0.7
"""Six cuts, or three down to 0.3, with more than 0.7 of the first delay left: it does not follow our rate."""
BLAMELESS_S = 30.0
EPISODE_S = 5.0
"""Cuts further apart than this are about different things."""
PROBE_STEP = 0.03
PROBE_WATCH_S = 1.5
"""Just after a raise the suspicion is greater and a mistake cheap (the raise is taken back): half the delay, two of
three ticks."""
AGREED_S = 60.0
"""What two destinations have agreed on holds for all that leaves until one has said something else alone for so long:
a pause of one of them, of storage or of training, is shorter."""
CLAIMED_S = 60.0
"""Losses that programs tell of and our kernel's connections do not are believed for one cut a minute: TCP finds its own
0.4 to 0.6 s later, so at first they are all there is, and who invents them takes a half for as long as it takes to
come back."""
RATE_MIN_PART = 0.02
"""Never below 2 % of the base: the sum of small floors still moves."""


def carried(
    state: CapacityState, *, since_s: float, now_s: float
) -> tuple[delivery_rate.DeliveryRate | None, frozenset[str]]:  # fmt: skip
    """What peers say was carried of what left since a time, None where nobody does; and which of them had stalled."""
    before = state.cut_from_bits_per_s if state.cut_s is not None and now_s - state.cut_s <= DRAIN_S_LONGEST else 0
    most = SURELY_MORE * max(state.rate_bits_per_s, before)
    drained = state.changed_by in CUTS and now_s < state.drain_until_s + CUT_REFRACTORY_S
    heard = delivery_rate.by_peer(
        state.signals.arrivals, state.signals.ticks, since_s=since_s, now_s=now_s, most_bits_per_s=most,
        left_at_bits_per_s=(DRAIN_FACTOR if drained else 1.0) * state.rate_bits_per_s,
    )  # fmt: skip
    stalled = frozenset(peer for peer, entry in heard.items() if entry is not None and entry.carried_bits_per_s > most)
    return delivery_rate.middle([entry for peer, entry in heard.items() if peer not in stalled]), stalled


def cut(
    state: CapacityState,
    now: signals.Signals,
    passed: delivery_rate.DeliveryRate | None,
    *,
    by: str,
    limited: bool,
    now_s: float,
) -> CapacityState:
    """Go down to what was carried, and empty the queue; or give up blaming ourselves.

    Args:
        state: so far.
        now: the signals of the moment.
        passed: what was carried by when packets arrived; None where nobody says.
        by: what speaks for it, one of `CUTS`.
        limited: whether the shaper was the limit in this tick.
        now_s: the tick's time.
    """
    excess_s = now.excess_s or 0.0
    probe_failed = raised_lately(state, now_s=now_s)
    apart = state.cut_s is None or now_s - state.cut_s > EPISODE_S
    if apart or probe_failed:
        state = replace(state, episode_rate_bits_per_s=state.rate_bits_per_s, episode_excess_s=excess_s, episode_cuts=0)
    elif _in_doubt(state, excess_s):
        return replace(
            state,
            rate_bits_per_s=state.episode_rate_bits_per_s, signals=signals.rebase(state.signals),
            ignore_delay_until_s=now_s + BLAMELESS_S, changed_s=now_s, changed_by="doubt", busy_s=0.0,
        )  # fmt: skip
    rate = state.rate_bits_per_s
    untouched = rate >= state.base_bits_per_s
    deep = passed is not None and passed.deep
    if passed is not None:
        target = (CUT_TO_DEEP if deep else CUT_TO_THROUGH) * passed.carried_bits_per_s
    elif not (limited or now.wanting):
        # what an application sent that had little to send says nothing of what the network carries, but that it does
        target = max(CUT_BLIND * rate, now.tx_bits_per_s)
    elif now.through_bits_per_s is not None:
        target = CUT_TO_THROUGH * min(now.through_bits_per_s, _through_since_the_drain(state, now_s=now_s))
    elif not limited and now.tx_bits_per_s < LIMITED * rate:
        target = CUT_TO_THROUGH * now.tx_bits_per_s
    else:
        target = CUT_BLIND * rate
    if untouched and passed is None:  # acknowledgements that a burst's end sets free make too much of what came through
        target = min(target, rate * (1 - FIRST_CUT * min(1.0, max(0.0, excess_s - DELAY_S) / FIRST_CUT_DELAY_S)))
    most = CUT_MOST if by == "loss" else max(CUT_MOST, 1 / (1 + excess_s / FOUND_AFTER_S))
    if passed is not None:
        most = CUT_MOST_SEEN
    target = min(max(target, most * rate), CUT_LEAST * rate)
    lowest, before = _back_to(state)
    if by == "probe":
        target = min(max(target, lowest), before)
    failed = int(passed.carried_bits_per_s if passed else target / CUT_TO_THROUGH)
    if by == "probe" and passed is None and delivery_rate.is_reported(state.signals.arrivals):
        target, failed = lowest, int(math.sqrt(before * rate))
    back_off_s = min(HOLD_S_MAX, max(HOLD_S, 2 * state.back_off_s)) if probe_failed else HOLD_S
    drain_s = min(DRAIN_S_MAX, (passed.wait_s if passed else excess_s) / (1 - DRAIN_FACTOR)) if by != "loss" else 0.0
    return replace(
        state,
        rate_bits_per_s=max(int(target), least(state)),
        drain_until_s=now_s + drain_s,
        signals=signals.forget(state.signals, before_s=now_s + drain_s + now.baseline_s),
        cut_s=now_s,
        cut_from_bits_per_s=rate,
        fallen_s=now_s if untouched else state.fallen_s,
        changed_s=now_s + drain_s,
        hold_s=back_off_s,
        back_off_s=back_off_s,
        step=PROBE_STEP,
        failed_bits_per_s=failed,
        cut_carried_bits_per_s=failed if passed is not None or by != "delay" else 0,
        surely_more_bits_per_s=int((UNSURE if deep else SURE) * failed),
        busy_s=0.0,
        episode_cuts=state.episode_cuts + 1,
        changed_by=by,
        moved_excess_s=excess_s,
        moved_baseline_s=now.baseline_s,
    )


def attributed_to(state: CapacityState, *, by: str, votes: int, now_s: float) -> CapacityState:
    """Note on how many destinations a cut rests: by one alone it may be about that destination's own link; and whether
    it was for losses that only programs tell of."""
    if by == "loss" and not votes:
        state = replace(state, claimed_s=now_s)
    if votes > 1:
        return replace(state, one_destination=False, agreed_s=now_s)
    agreed = state.agreed_s is not None and now_s - state.agreed_s <= AGREED_S
    return state if agreed else replace(state, one_destination=True, agreed_s=None)


def is_refuted(state: CapacityState, *, now_s: float) -> bool:
    """Whether losses that only programs tell of are not believed, because there was a cut for such a while ago."""
    return state.claimed_s is not None and now_s - state.claimed_s <= CLAIMED_S


def drain(state: CapacityState, passed: delivery_rate.DeliveryRate | None, *, now_s: float) -> CapacityState:
    """Let the drain last as long as the queue does, by what is measured while it drains; and mend the rate likewise."""
    if state.changed_by == "loss" or state.cut_s is None:
        return state
    until_s, failed, first = state.drain_until_s, state.failed_bits_per_s, state.cut_carried_bits_per_s
    since, stalled = carried(state, since_s=state.cut_s, now_s=now_s)
    if since is not None and since.span_s >= SURE_SPAN_S:
        failed = int(since.carried_bits_per_s)
    elif passed is not None:
        first = first or int(passed.carried_bits_per_s)  # of a cut by acknowledgements that is the first word
        failed = min(first, int(passed.carried_bits_per_s))
    if passed is not None:
        until_s = min(state.cut_s + DRAIN_S_LONGEST, now_s + passed.wait_s / (1 - DRAIN_FACTOR))
    elif not stalled and any(entry.left_s >= state.cut_s for entry in state.signals.arrivals):
        until_s = now_s
    if failed != state.failed_bits_per_s:
        lowest, most = CUT_MOST_SEEN * state.cut_from_bits_per_s, CUT_LEAST * state.cut_from_bits_per_s
        if state.changed_by == "probe":  # a mistake of our own, to be taken back and no more
            lowest, most = _back_to(state)
        rate = int(min(max(CUT_TO_THROUGH * failed, lowest), most))
        state = replace(
            state,
            rate_bits_per_s=max(rate, least(state)),
            failed_bits_per_s=failed,
            surely_more_bits_per_s=int(UNSURE * failed),
        )
    return replace(
        state,
        drain_until_s=until_s,
        cut_carried_bits_per_s=first,
        changed_s=until_s,
        signals=replace(state.signals, ignore_before_s=until_s + state.moved_baseline_s),
    )


def is_remeasured_higher(state: CapacityState, passed: delivery_rate.DeliveryRate | None, *, now_s: float) -> bool:
    """Whether a cut over a deep queue was not deep enough, by what has been heard since of the same queue."""
    if state.changed_by != "delay" or state.cut_s is None or now_s - state.cut_s > DRAIN_S_LONGEST or passed is None:
        return False
    return passed.deep and passed.carried_bits_per_s < CUT_TO_THROUGH * state.failed_bits_per_s


def raised_lately(state: CapacityState, *, now_s: float) -> bool:
    """Whether the last move was a raise, so lately that its queue may only now show."""
    if state.raised_s is None or now_s - state.raised_s > PROBE_WATCH_S:
        return False
    return state.cut_s is None or state.cut_s < state.raised_s


def least(state: CapacityState) -> int:
    """The rate below which nothing goes."""
    return max(1, int(RATE_MIN_PART * state.base_bits_per_s))


def _back_to(state: CapacityState) -> tuple[float, float]:
    """The least and the most that a probe which failed leaves."""
    before = state.rate_before_raise_bits_per_s
    back = PROBE_BACK if delivery_rate.is_reported(state.signals.arrivals) else PROBE_BACK_UNTOLD
    return max(back * before, min(before, state.settled_bits_per_s)), before


def _through_since_the_drain(state: CapacityState, *, now_s: float) -> float:
    """What came through since the last cut's drain ended, where that is lately; no bound otherwise.

    A queue that still stands was fed all the time: then the longer average is the truer one.
    """
    since_s = now_s - state.changed_s
    if state.changed_by not in CUTS or not CUT_REFRACTORY_S < since_s <= AGAIN_S:
        return math.inf
    return signals.through_bits_per_s(state.signals, now_s=now_s, window_s=since_s)


def _in_doubt(state: CapacityState, excess_s: float) -> bool:
    far = state.episode_cuts >= DOUBT_CUTS or (
        state.episode_cuts >= DOUBT_RATE_CUTS and state.rate_bits_per_s <= DOUBT_RATE * state.episode_rate_bits_per_s
    )
    return far and excess_s >= DOUBT_EXCESS * state.episode_excess_s
