"""Divide an interface's inbound traffic into storage by sender, bursts of training, and the rest.

TCP_INFO counts storage where it arrives. The interface counts everything. What is left is training and the rest.
A burst that our own ranks announce also comes in: an all_reduce receives about as much as it sends. The ratio of both
is learned from the job's last bursts. The burst is over when that much has arrived. A program reports its end only
later, and storage would wait needlessly until then.

    beside(t) = all that arrived - storage that arrived                        bits, since the state began
    received  = beside(now) - beside(start) - others * (now - start)           of one burst
    over      when received reaches 0.97 of what the last bursts received, by announced byte (their median)

A burst past its deadline is followed for as long as it is passed in, a second at most (`broker.model.values.Burst`).
Its remaining bytes are training's: counted as the rest they would shorten the holds for the next bursts. One that is
past its deadline when it is first seen is followed where it is new, so that it is judged as any other.

Without a burst, `others` is the smoothed rate beside storage. TCP counts in order, so a lost packet makes storage look
slow and then fast. Both errors are averaged over most of a second.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from msgspec.structs import replace

from broker.law.bursts.announced import BURSTS_MAX, JOBS_MAX, JOBS_PER_USER_MAX, USED_MIN, of_each_user
from broker.law.bursts.detector import USER as OBSERVED
from broker.law.inbound_state import InboundBurstState, InboundJobState, IngressState, SenderState
from broker.law.sharing.promises import LENDER
from broker.model.values import BrokerThere, Burst, SenderSample

WIRE_PER_PAYLOAD = 1.05
"""Wire bytes per delivered byte of TCP in frames of 1514 bytes: 1514 / 1448, and a little for retransmissions."""
SMOOTHING_S = 0.3
OTHERS_SMOOTHING_S = 0.7
MOST_S = 2.0
"""A sender's highest rate decays in two seconds: longer than a burst in which it was held."""
WINDOW_S_MIN = 0.05
"""The shortest time for a rate: over less, counters show single GRO batches of 64 KiB."""
FRESH_S = 0.02
WINDOW_S_STALE = 0.2
EXTRAPOLATED_S_MAX = 0.3
NEW_S = 0.1
"""A burst no older than this is followed although its deadline is over. Senders may have been asked to hold back at its
announcement, so it has to be judged, whatever its deadline."""
FORGET_SENDER_S = 5.0
REFUSED_S_MAX = 2.0
"""A broker that has refused for longer than a lease lasts counts as none."""
SENDERS_MAX = 256
OVER, GOES_ON = 0.97, 1.15
"""A burst whose last 3 % meet storage is hardly longer for it; one that exceeds its usual size by 15 % is not over."""
RATIOS_MIN = 2
REMEMBERED = 5
USED_LEAST = 0.1
"""A hold was unused, or its announcement false, if less than a tenth of the announced bytes came in."""
UNUSED_MAX = 3
"""After so many unused holds in a row a job gets none, until one of its bursts has been used."""
PEAK_AFTER_S = 0.3
LOOK_S_MIN = 0.02
"""A burst that is nearly over is checked fifty times a second: each check costs about 3 ms of CPU."""


def follow(
    state: IngressState, *, now_s: float, received_bytes: int | None, senders: Sequence[SenderSample],
    bursts: Sequence[Burst], capacity_bits_per_s: int,
) -> IngressState:  # fmt: skip
    """Add a tick's readings.

    Args:
        state: the interface's state of the last tick.
        received_bytes: the interface's counter, None where it was not read.
        senders: the hosts that send to us; those of other classes than storage count as the rest.
        bursts: announced by our own ranks, as far as they have credit (`broker.law.bursts.announced`).
        capacity_bits_per_s: of the inbound direction.
    """
    came = state.received_bits
    if received_bytes is not None and state.received_bytes is not None:
        came += 8 * max(0, received_bytes - state.received_bytes)
    state = _take_senders(
        replace(state, received_bits=came, received_bytes=received_bytes), senders,
        received_bits=came - state.received_bits, now_s=now_s,
    )  # fmt: skip
    beside = _beside(state, now_s=now_s)
    known = {_burst(burst): burst for burst in state.bursts}
    under_way = (
        burst for burst in bursts if burst.remaining_s > 0 or burst.age_s < NEW_S or _burst(burst) in known
    )  # fmt: skip
    current = sorted(under_way, key=_burst)[:BURSTS_MAX]
    present = {_burst(burst) for burst in current}
    changed = present != known.keys()
    aged_s = max((now_s - entry.read_s for entry in state.senders), default=0.0)
    if any(burst.uid == OBSERVED and _burst(burst) not in known for burst in current):
        state = replace(state, window_s=now_s, window_bits=beside)  # it began before it was seen: not the rest's
    state = _measure_rate(
        state, beside, capacity_bits_per_s=capacity_bits_per_s, now_s=now_s, fresh=aged_s <= FRESH_S, at_once=changed
    )
    jobs = {(job.uid, job.job): job for job in state.jobs}
    known = {_burst(burst): burst for burst in state.bursts}
    alone = len(known) == 1
    for key, ended in known.items():
        if key not in present:
            who = ended.uid, ended.job
            done = _progress(ended, state, beside, jobs.get(who), now_s=now_s)
            jobs[who] = _ended(jobs.get(who), done, alone=alone, now_s=now_s)
    followed = []
    for burst in current:
        who, entry = (burst.uid, burst.job), known.get(_burst(burst))
        if entry is None:
            entry = InboundBurstState(
                burst.job, burst.step, now_s, burst.announced_bytes, beside, used_s=now_s, uid=burst.uid
            )
            jobs[who] = replace(jobs.get(who) or InboundJobState(burst.job, now_s, uid=burst.uid), seen_s=now_s)
        entry = replace(entry, announced_bytes=max(entry.announced_bytes, burst.announced_bytes))
        followed.append(_progress(entry, state, beside, jobs.get(who), now_s=now_s, alone=len(current) == 1))
    return replace(
        state,
        at_s=now_s,
        bursts=tuple(followed),
        jobs=_kept(jobs.values()),
        training_s=now_s if current else state.training_s,
    )


def look_again_s(state: IngressState, *, capacity_bits_per_s: int) -> float | None:
    """In how many seconds a burst may be over, None where that is unknown."""
    times = []
    for burst in state.bursts:
        usual = _usual_bits(burst, _job(state, burst.uid, burst.job))
        if usual is not None and not burst.over and len(state.bursts) == 1:
            times.append(max(LOOK_S_MIN, (OVER * usual - burst.received_bits) / capacity_bits_per_s))
    return min(times, default=None)


def peak_bits_per_s(state: IngressState, uid: int, job: str) -> float | None:
    """The highest arrival rate of a job's last bursts, None where fewer than `REMEMBERED` are known."""
    entry = _job(state, uid, job)
    if entry is None or len(entry.peaks_bits_per_s) < REMEMBERED:
        return None
    return max(entry.peaks_bits_per_s)


def has_privilege(state: IngressState, uid: int, job: str) -> bool:
    """Whether a job's bursts are worth a hold: not after several without inbound bytes."""
    entry = _job(state, uid, job)
    return entry is None or entry.unused < UNUSED_MAX


def _take_senders(
    state: IngressState, samples: Sequence[SenderSample], *, received_bits: float, now_s: float
) -> IngressState:  # fmt: skip
    """Count storage by sender.

    A new sender's bytes count, too, up to `received_bits`, all that arrived since the last tick. Counted as the rest,
    which is remembered, they would make training's next bursts look too small.
    """
    known = {entry.address: entry for entry in state.senders}
    stored = state.storage_bits
    brokerless_s = state.brokerless_s
    for sample in sorted(samples, key=lambda entry: entry.address):
        if sample.traffic_class != LENDER:
            continue
        read_s = now_s - sample.age_s
        entry = known.get(sample.address)
        if entry is None:
            brought = min(received_bits, WIRE_PER_PAYLOAD * 8 * sample.received_bytes)
            stored, received_bits = stored + brought, received_bits - brought
            known[sample.address] = SenderState(sample.address, now_s, sample.received_bytes, read_s)
            continue
        elapsed_s = read_s - entry.read_s
        if elapsed_s > 0 and sample.received_bytes >= entry.received_bytes:
            bits = WIRE_PER_PAYLOAD * 8 * (sample.received_bytes - entry.received_bytes)
            stored += bits
            part = min(1.0, elapsed_s / SMOOTHING_S)
            smooth = entry.rate_bits_per_s + part * (bits / elapsed_s - entry.rate_bits_per_s)
            most = max(bits / elapsed_s, entry.most_bits_per_s * max(0.0, 1 - elapsed_s / MOST_S))
            entry = replace(entry, last_bits_per_s=bits / elapsed_s, rate_bits_per_s=smooth, most_bits_per_s=most)
        if elapsed_s > 0:
            entry = replace(entry, received_bytes=sample.received_bytes, read_s=read_s)
        refused_s = (now_s if entry.refused_s is None else entry.refused_s) if sample.refused else None
        unheld = sample.broker is BrokerThere.NO or (refused_s is not None and now_s - refused_s > REFUSED_S_MAX)
        if unheld and entry.rate_bits_per_s > 0:
            brokerless_s = now_s
        known[sample.address] = replace(entry, seen_s=now_s, refused_s=refused_s)
    kept = sorted(
        (entry for entry in known.values() if now_s - entry.seen_s <= FORGET_SENDER_S),
        key=lambda entry: (-entry.rate_bits_per_s, entry.address),
    )[:SENDERS_MAX]
    kept.sort(key=lambda entry: entry.address)
    return replace(state, senders=tuple(kept), storage_bits=stored, brokerless_s=brokerless_s)


def _beside(state: IngressState, *, now_s: float) -> float:
    """All bits that arrived beside storage; since its last reading storage is assumed to arrive at the same rate."""
    since = 0.0
    for entry in state.senders:
        rate = entry.last_bits_per_s
        if entry.allowed_bits_per_s:
            rate = min(rate, entry.allowed_bits_per_s)
        since += rate * min(EXTRAPOLATED_S_MAX, max(0.0, now_s - entry.read_s))
    return state.received_bits - state.storage_bits - since


def _measure_rate(
    state: IngressState, beside: float, *, capacity_bits_per_s: int, now_s: float, fresh: bool, at_once: bool
) -> IngressState:
    """Attribute the bits beside storage since the window began to the burst, or to the rest.

    A window contains one of them. It ends when storage's counters are as fresh as the interface's, or when it is long.
    """
    if state.window_s is None:
        return replace(state, window_s=now_s, window_bits=beside)
    elapsed_s = now_s - state.window_s
    if not at_once and elapsed_s < (WINDOW_S_MIN if fresh else WINDOW_S_STALE):
        return state
    if elapsed_s >= WINDOW_S_MIN:
        rate = (beside - state.window_bits) / elapsed_s
        if state.bursts:
            training = max(0.0, rate - _others(state))
            coming = []
            for burst in state.bursts:
                usual = peak_bits_per_s(state, burst.uid, burst.job) or capacity_bits_per_s
                used = training >= USED_MIN * min(usual, capacity_bits_per_s)
                coming.append(
                    replace(
                        burst,
                        peak_bits_per_s=max(burst.peak_bits_per_s, training),
                        used_s=now_s if used else burst.used_s,
                    )
                )
            state = replace(state, training_bits_per_s=training, bursts=tuple(coming))
        else:
            part = min(1.0, elapsed_s / OTHERS_SMOOTHING_S)
            state = replace(state, others_bits_per_s=state.others_bits_per_s + part * (rate - state.others_bits_per_s))
    if at_once:
        state = replace(state, training_bits_per_s=None)
    return replace(state, window_s=now_s, window_bits=beside)


def _progress(
    burst: InboundBurstState, state: IngressState, beside: float, job: InboundJobState | None, *, now_s: float,
    alone: bool = True,
) -> InboundBurstState:  # fmt: skip
    come = beside - burst.before_bits - _others(state) * (now_s - burst.started_s)
    usual = _usual_bits(burst, job)
    over = alone and usual is not None and OVER * usual <= come < GOES_ON * usual
    return replace(burst, received_bits=max(0.0, come), over=over)


def _usual_bits(burst: InboundBurstState, job: InboundJobState | None) -> float | None:
    """The expected inbound bits of a burst of this size, None where unknown."""
    if job is None or len(job.ratios) < RATIOS_MIN:
        return None
    return sorted(job.ratios)[len(job.ratios) // 2] * 8 * burst.announced_bytes


def _others(state: IngressState) -> float:
    return max(0.0, state.others_bits_per_s)


def _ended(job: InboundJobState | None, burst: InboundBurstState, *, alone: bool, now_s: float) -> InboundJobState:
    job = job or InboundJobState(burst.job, now_s, uid=burst.uid)
    unused = burst.received_bits < USED_LEAST * 8 * burst.announced_bytes
    ratios, peaks = job.ratios, job.peaks_bits_per_s
    if not unused and alone and burst.announced_bytes > 0:
        ratios = (burst.received_bits / (8 * burst.announced_bytes), *ratios)[:REMEMBERED]
    if not unused and now_s - burst.started_s >= PEAK_AFTER_S:
        peaks = (burst.peak_bits_per_s, *peaks)[:REMEMBERED]
    return replace(
        job, seen_s=now_s, ratios=ratios, peaks_bits_per_s=peaks, unused=job.unused + 1 if unused else 0
    )  # fmt: skip


def _burst(burst: Burst | InboundBurstState) -> tuple[int, str, int]:
    return burst.uid, burst.job, burst.step


def _job(state: IngressState, uid: int, name: str) -> InboundJobState | None:
    return next((job for job in state.jobs if (job.uid, job.job) == (uid, name)), None)


def _kept(jobs: Iterable[InboundJobState]) -> tuple[InboundJobState, ...]:
    """The latest jobs of each user, so that no user displaces another's."""
    latest = sorted(jobs, key=lambda job: (-job.seen_s, job.uid, job.job))
    kept = of_each_user(latest, each=JOBS_PER_USER_MAX, most=JOBS_MAX)
    return tuple(sorted(kept, key=lambda job: (job.uid, job.job)))
