"""Measure what comes in of each burst of training: at what rate, and whether all of it has come.

A burst that our own ranks announce also comes in: an all_reduce receives about as much as it sends. The ratio of both
is learned from the job's last bursts. The burst is over when that much has arrived. A program reports its end only
later, and storage would wait needlessly until then.

    received  = beside(now) - beside(start) - others * (now - start)           of one burst
    over      when received reaches 0.97 of what the last bursts received, by announced byte (their median)

`beside` is all that has arrived beside storage (`broker.law.holds.senders`). Without a burst, its rate is smoothed to
`others`. Where the last bursts brought next to nothing, as those of a rank that only sends, a new one counts as over
until something comes.

A burst past its deadline is followed for as long as it is passed in, a second at most (`broker.model.values.Burst`).
Its remaining bytes are training's: counted as the rest they would shorten the holds for the next bursts.
"""

from __future__ import annotations

from collections.abc import Sequence

from msgspec.structs import replace

from broker.law.bursts import tracker
from broker.law.bursts.announced import USED_MIN
from broker.law.bursts.detector import USER as OBSERVED
from broker.law.inbound_state import InboundBurstState, InboundJobState, IngressState
from broker.model.values import Burst

OTHERS_SMOOTHING_S = 0.7
"""TCP's counters are up to a second old, and what they miss is counted later: both errors are averaged."""
WINDOW_S_MIN = 0.05
"""The shortest time for a rate: over less, counters show single GRO batches of 64 KiB."""
WINDOW_S_STALE = 0.2
"""The longest that a rate waits for a fresh count of storage."""
OVER, GOES_ON = 0.97, 1.15
"""A burst whose last 3 % meet storage is hardly longer for it; one that exceeds its usual size by 15 % is not over."""
RATIOS_MIN = 2
REMEMBERED = 5
USED_LEAST = 0.1
"""A burst brought next to nothing, or was announced falsely, if less than a tenth of the announced bytes came in."""
PEAK_AFTER_S = 0.1
"""The end of a burst is reported 50 ms late. At full rate, one shorter than this would look like half of it."""
LOOK_S_MIN = 0.02
"""A burst that is nearly over is checked fifty times a second: each check costs about 3 ms of CPU."""


def follow(
    state: IngressState, bursts: Sequence[Burst], *, beside_bits: float, fresh: bool, capacity_bits_per_s: int,
    now_s: float,
) -> IngressState:  # fmt: skip
    """Add a tick's readings.

    Args:
        state: the interface's state, with this tick's senders.
        bursts: announced by our own ranks, as far as they have credit (`broker.law.bursts.announced`), or detected.
        beside_bits: all that has arrived beside storage.
        fresh: whether storage's counters are as new as the interface's.
        capacity_bits_per_s: of the inbound direction.
        now_s: the tick's time.
    """
    known, present = ({tracker.identity(one) for one in some} for some in (state.bursts, bursts))
    if any(uid == OBSERVED for uid, _, _ in present - known):
        state = replace(state, window_s=now_s, window_bits=beside_bits)  # it began before it was seen: not the rest's
    state = _measure_rate(
        state, beside_bits, capacity_bits_per_s=capacity_bits_per_s, now_s=now_s, fresh=fresh,
        at_once=present != known,
    )  # fmt: skip
    current, ended = tracker.match(state.bursts, bursts)
    jobs = {tracker.owner(job): job for job in state.jobs}
    for last in ended:
        who = tracker.owner(last)
        last = replace(last, received_bits=_received_bits(last, state, beside_bits, now_s=now_s))
        jobs[who] = _remember(jobs.get(who), last, alone=len(known) == 1, now_s=now_s)
    followed = []
    for burst, entry in current:
        who = tracker.owner(burst)
        if entry is None:
            entry = InboundBurstState(burst.job, burst.step, now_s, 0, beside_bits, used_s=now_s, uid=burst.uid)
            jobs[who] = replace(jobs.get(who) or InboundJobState(burst.job, now_s, uid=burst.uid), seen_s=now_s)
        entry = replace(
            entry,
            announced_bytes=max(entry.announced_bytes, burst.announced_bytes),
            received_bits=_received_bits(entry, state, beside_bits, now_s=now_s),
        )
        followed.append(replace(entry, over=_is_over(entry, jobs[who], alone=len(current) == 1)))
    return replace(
        state,
        at_s=now_s,
        bursts=tuple(followed),
        jobs=tracker.latest(jobs.values(), seen_s=lambda job: job.seen_s),
        training_s=now_s if current else state.training_s,
    )


def look_again_s(state: IngressState, *, capacity_bits_per_s: int) -> float | None:
    """In how many seconds a burst may be over, None where that is unknown."""
    if len(state.bursts) != 1 or state.bursts[0].over:
        return None
    (burst,) = state.bursts
    usual_bits = _usual_bits(burst, _job(state, tracker.owner(burst)))
    if usual_bits is None:
        return None
    return max(LOOK_S_MIN, (OVER * usual_bits - burst.received_bits) / capacity_bits_per_s)


def peak_bits_per_s(state: IngressState, who: tuple[int, str]) -> float | None:
    """The highest arrival rate of the last bursts of a user's job, None where fewer than `REMEMBERED` are known."""
    job = _job(state, who)
    if job is None or len(job.peaks_bits_per_s) < REMEMBERED:
        return None
    return max(job.peaks_bits_per_s)


def others_bits_per_s(state: IngressState) -> float:
    """What comes in beside storage and bursts."""
    return max(0.0, state.others_bits_per_s)


def _measure_rate(
    state: IngressState, beside_bits: float, *, capacity_bits_per_s: int, now_s: float, fresh: bool, at_once: bool
) -> IngressState:
    """Attribute the bits beside storage since the window began to the burst, or to the rest.

    A window contains one of them. It ends when storage's counters are as fresh as the interface's, or when it is long.
    """
    if state.window_s is None:
        return replace(state, window_s=now_s, window_bits=beside_bits)
    elapsed_s = now_s - state.window_s
    if not at_once and elapsed_s < (WINDOW_S_MIN if fresh else WINDOW_S_STALE):
        return state
    if elapsed_s >= WINDOW_S_MIN:
        rate = (beside_bits - state.window_bits) / elapsed_s
        if state.bursts:
            training = max(0.0, rate - others_bits_per_s(state))
            coming = []
            for burst in state.bursts:
                usual = peak_bits_per_s(state, tracker.owner(burst)) or capacity_bits_per_s
                used = training >= USED_MIN * min(usual, capacity_bits_per_s)
                peak = max(burst.peak_bits_per_s, training)
                coming.append(replace(burst, peak_bits_per_s=peak, used_s=now_s if used else burst.used_s))
            state = replace(state, training_bits_per_s=training, bursts=tuple(coming))
        else:
            part = min(1.0, elapsed_s / OTHERS_SMOOTHING_S)
            state = replace(state, others_bits_per_s=state.others_bits_per_s + part * (rate - state.others_bits_per_s))
    if at_once:
        state = replace(state, training_bits_per_s=None)
    return replace(state, window_s=now_s, window_bits=beside_bits)


def _received_bits(burst: InboundBurstState, state: IngressState, beside_bits: float, *, now_s: float) -> float:
    return max(0.0, beside_bits - burst.before_bits - others_bits_per_s(state) * (now_s - burst.started_s))


def _is_over(burst: InboundBurstState, job: InboundJobState, *, alone: bool) -> bool:
    """Whether all has come that comes usually; with other bursts nobody knows whose it was."""
    usual_bits = _usual_bits(burst, job)
    if usual_bits is None:
        return False
    least_bits = _least_bits(burst)
    if usual_bits < least_bits:
        return burst.received_bits < least_bits
    return alone and OVER * usual_bits <= burst.received_bits < GOES_ON * usual_bits


def _usual_bits(burst: InboundBurstState, job: InboundJobState | None) -> float | None:
    """The expected inbound bits of a burst of this size, None where unknown."""
    if job is None or len(job.ratios) < RATIOS_MIN:
        return None
    return sorted(job.ratios)[len(job.ratios) // 2] * 8 * burst.announced_bytes


def _least_bits(burst: InboundBurstState) -> float:
    """Less than this is next to nothing."""
    return USED_LEAST * 8 * burst.announced_bytes


def _remember(job: InboundJobState | None, burst: InboundBurstState, *, alone: bool, now_s: float) -> InboundJobState:
    """Record what a burst brought: its ratio where it is known to be its own, and its rate where it used the link."""
    job = job or InboundJobState(burst.job, now_s, uid=burst.uid)
    ratios, peaks = job.ratios, job.peaks_bits_per_s
    unused = burst.received_bits < _least_bits(burst)
    if alone or unused:
        ratios = (burst.received_bits / (8 * burst.announced_bytes), *ratios)[:REMEMBERED]
    if not unused and now_s - burst.started_s >= PEAK_AFTER_S:
        peaks = (burst.peak_bits_per_s, *peaks)[:REMEMBERED]
    return replace(job, seen_s=now_s, ratios=ratios, peaks_bits_per_s=peaks)


def _job(state: IngressState, who: tuple[int, str]) -> InboundJobState | None:
    return next((job for job in state.jobs if tracker.owner(job) == who), None)
