"""Cut the capacity to what was carried, then drain the queue elsewhere.

Arrivals show what was carried (broker.law.capacity.delivery_rate); where no peer reports them, it is estimated from
acknowledgements (broker.law.capacity.outbound). Over a queue of 100 ms or more a cut goes a tenth below.

Measurement continues during the drain. Packets that leave then meet no full buffer, so they measure better than those
of the cut, and the drain ends when they meet no queue.
"""

from __future__ import annotations

import math

from msgspec.structs import replace

from broker.law.capacity.evidence import BASE_BITS_PER_S_MIN, Carried, Direction, Evidence, Queue
from broker.law.capacity.probe import BESIDE, HOLD_S, PROBE_STEP, raised_lately
from broker.law.capacity.state import CapacityState, Cause, Cut, Episode, Phase

REFRACTORY_S = 0.3
"""At most one cut in 300 ms (cake-autorate), from the end of its drain on: the drain itself sets the delivery rate."""
UNSURE = 1.3
"""Over a deep queue a raise counts as surely beyond the link 30 % above the measurement, else where "near" ends. The
main error there is that sent bytes are known by the tick only. After a measurement a quarter too low, steps doubled 15
% above it, and the last one exceeded the link by 14 to 30 %: 70 ms for people."""
SURE_SPAN_S = 0.25
"""The span of arrivals within a drain from which on they may raise the rate: 10 ms of jitter are 4 % of it."""
DRAIN_FACTOR, DRAIN_S_MAX, DRAIN_S_LONGEST = 0.5, 0.8, 1.2
"""At half the rate a queue of D seconds is gone after 2 D; longer than 0.8 s would slow a training step. A measured
drain may last 1.2 s: 330 ms of buffer at a third of its rate take 0.7 s, and reports come 0.4 s later."""
HOLD_S_MAX = 1.5
"""The longest pause from a cut to the first probe: a rise has to be followed within 5 s."""
DOUBT_CUTS, DOUBT_EXCESS = 5, 0.7
"""Five cuts that leave more than 0.7 of the least delay show that it does not follow our rate. With six, or with three
down to 0.3, others' delay took the rate to 0.31 of the link for good (simulated)."""
EPISODE_S = 5.0
"""Cuts further apart than this have different causes."""


def cut(state: CapacityState, evidence: Evidence, direction: Direction, *, now_s: float) -> CapacityState:
    """Cut the rate to what was carried, and start the drain."""
    queue, measured, rate = evidence.queue, evidence.carried.measured, state.rate_bits_per_s
    deep = measured is not None and measured.deep
    target, link = _target(state, queue, evidence.carried, direction)
    drain_s = 0.0
    if queue.cause is not Cause.LOSS and queue.ours and target < rate:
        wait_s = measured.wait_s if measured is not None else queue.excess_s
        drain_s = min(DRAIN_S_MAX, wait_s / (1 - DRAIN_FACTOR))
    failed_probe = raised_lately(state, now_s=now_s)
    back_off_s = min(HOLD_S_MAX, max(HOLD_S, 2 * state.probe.back_off_s)) if failed_probe else HOLD_S
    return replace(
        state,
        rate_bits_per_s=target,
        changed_s=now_s + drain_s,
        busy_s=0.0,
        cut=Cut(
            at_s=now_s,
            cause=queue.cause or Cause.DELAY,
            from_bits_per_s=int(min(rate, evidence.carried.used_bits_per_s)),
            carried_bits_per_s=link,
            first_bits_per_s=link if measured is not None or queue.cause is not Cause.DELAY else 0,
            surely_more_bits_per_s=int((UNSURE if deep else BESIDE) * link),
            drained_s=now_s + drain_s,
            excess_s=queue.excess_s,
            baseline_s=queue.baseline_s,
            votes=queue.votes,
        ),
        probe=replace(state.probe, step=PROBE_STEP, back_off_s=back_off_s, since_s=None),
        episode=_episode(state, queue, lower=target < rate, now_s=now_s),
        claimed_s=now_s if queue.cause is Cause.LOSS and not queue.votes else state.claimed_s,
    )


def drain(state: CapacityState, evidence: Evidence, direction: Direction, *, now_s: float) -> CapacityState:
    """Adapt the drain's length and the rate to the measurements made during the drain."""
    carried, last = evidence.carried, state.cut
    if last is None or last.cause is Cause.LOSS:
        return state
    measured, since = carried.measured, carried.since_cut
    drained_s, link, first = last.drained_s, last.carried_bits_per_s, last.first_bits_per_s
    if since is not None and since.span_s >= SURE_SPAN_S:
        link = int(since.carried_bits_per_s)
    elif measured is not None:
        first = first or int(measured.carried_bits_per_s)  # after a cut by acknowledgements: the first measurement
        link = min(first, int(measured.carried_bits_per_s))
    if measured is not None:
        drained_s = min(last.at_s + DRAIN_S_LONGEST, now_s + measured.wait_s / (1 - DRAIN_FACTOR))
    elif carried.drained:
        drained_s = now_s
    rate, surely_more = state.rate_bits_per_s, last.surely_more_bits_per_s
    if link != last.carried_bits_per_s:
        lowest, most = direction.cut_to_min * last.from_bits_per_s, direction.cut_to_max * last.from_bits_per_s
        if last.cause is Cause.PROBE:  # our own raise: undo it and no more
            lowest, most = _back_to(state, carried, direction)
        rate = int(min(max(direction.cut_to * link, lowest), most, state.base_bits_per_s))
        rate, surely_more = max(rate, least(state, direction)), int(UNSURE * link)
    return replace(
        state,
        rate_bits_per_s=rate,
        changed_s=drained_s,
        cut=replace(
            last, carried_bits_per_s=link, first_bits_per_s=first, surely_more_bits_per_s=surely_more,
            drained_s=drained_s,
        ),
    )  # fmt: skip


def is_deeper(state: CapacityState, carried: Carried, direction: Direction, *, now_s: float) -> bool:
    """Whether a cut over a deep queue was not deep enough, by later measurements of the same queue."""
    last, measured = state.cut, carried.measured
    if state.phase is not Phase.HOLDING or last is None or last.cause is not Cause.DELAY or measured is None:
        return False
    lately = now_s - last.at_s <= DRAIN_S_LONGEST
    return lately and measured.deep and measured.carried_bits_per_s < direction.cut_to * last.carried_bits_per_s


def may_cut(state: CapacityState, queue: Queue, *, now_s: float) -> bool:
    """Whether a queue is a reason to cut now."""
    just_cut = state.phase is Phase.HOLDING and now_s - state.changed_s < REFRACTORY_S
    return queue.cause is not None and state.phase is not Phase.DOUBTING and not just_cut


def give_back(state: CapacityState, evidence: Evidence, direction: Direction, *, now_s: float) -> CapacityState:
    """Return to the rate before the cuts, because they changed nothing."""
    rate = min(state.base_bits_per_s, state.episode.rate_bits_per_s)
    return replace(state, rate_bits_per_s=rate, changed_s=now_s, busy_s=0.0, episode=Episode())


def is_in_doubt(state: CapacityState, queue: Queue, *, now_s: float) -> bool:
    """Whether the delay has not followed our rate, cut after cut."""
    episode = state.episode
    if _is_new_episode(state, now_s=now_s):
        return False
    return episode.cuts >= DOUBT_CUTS and queue.excess_s >= DOUBT_EXCESS * episode.excess_s


def least(state: CapacityState, direction: Direction) -> int:
    """The lowest rate."""
    return int(direction.rate_min * state.base_bits_per_s) or min(BASE_BITS_PER_S_MIN, state.base_bits_per_s)


def _target(state: CapacityState, queue: Queue, carried: Carried, direction: Direction) -> tuple[int, int]:
    """The rate that a cut goes to, and the link's estimated rate."""
    measured, rate = carried.measured, state.rate_bits_per_s
    if measured is not None:
        to = direction.cut_to_deep if measured.deep else direction.cut_to
        target = max(to * measured.carried_bits_per_s, direction.cut_to_min * min(rate, carried.used_bits_per_s))
    else:
        target = carried.assumed_bits_per_s
    target = min(target, direction.cut_to_max * rate)
    lowest, before = _back_to(state, carried, direction)
    if queue.cause is Cause.PROBE:
        target = min(max(target, lowest), before)
    link = measured.carried_bits_per_s if measured is not None else target / direction.cut_to
    if queue.cause is Cause.PROBE and measured is None and carried.reported:
        target, link = lowest, math.sqrt(before * rate)
    return max(min(int(target), state.base_bits_per_s), least(state, direction)), int(link)


def _episode(state: CapacityState, queue: Queue, *, lower: bool, now_s: float) -> Episode:
    """The cuts so far, with this one. Only cuts that would shorten a queue of ours count."""
    counts = lower and queue.ours
    if _is_new_episode(state, now_s=now_s):
        return Episode(state.rate_bits_per_s, queue.excess_s, int(counts))
    episode = state.episode
    cuts = episode.cuts + counts if lower else 0
    return replace(episode, excess_s=min(episode.excess_s, queue.excess_s), cuts=cuts)


def _is_new_episode(state: CapacityState, *, now_s: float) -> bool:
    apart = state.cut is None or now_s - state.cut.at_s > EPISODE_S
    return apart or raised_lately(state, now_s=now_s)


def _back_to(state: CapacityState, carried: Carried, direction: Direction) -> tuple[float, float]:
    """The lowest and the highest rate after a failed probe.

    A failed probe costs at most a twentieth of the rate before it, and a tenth where arrivals are not measured. It
    costs nothing of a rate that settled without a queue, because a host that delays packets makes one probe after
    another fail. A probe's queue is found before it is long enough to measure the carried rate. Then the whole cost
    applies, and the link is estimated as the geometric mean of the rate before and the rate tried.
    """
    before = state.probe.before_bits_per_s
    back = direction.cut_to if carried.reported else direction.cut_to_deep
    return max(back * before, min(before, state.probe.settled_bits_per_s)), before
