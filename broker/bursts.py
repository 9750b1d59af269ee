"""Announced bursts: how much of an announcement is believed, and whether one is under way.

A job could announce bursts that it never sends, to keep storage away. So an announcement gets credit for at most twice
the largest of the job's last measured bursts; a first one for what the link carries in `FIRST_BURST_S`. A burst is over
when it is no longer passed in, when its deadline has passed, or when its credit is used up. What a burst measured is
what the class sent meanwhile: with several jobs at once too much for each, which errs on the side of training.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from broker.model import Burst
from broker.state import BurstState, InterfaceState, JobState

CREDIT_FACTOR = 2
"""docs/architecture.md, Trust: at most twice the recently measured burst."""
FIRST_BURST_S = 2.0
"""A job without history: what the link carries in two seconds, which is also the longest hold between brokers."""
USED_MIN, START_S = 0.3, 0.3
"""A hold lasts while training uses 30 % of the capacity; the first 0.3 s are given to it for its start."""
BURSTS_REMEMBERED = 4
JOBS_MAX = 64
BURSTS_MAX = 64
"""Jobs and bursts at one interface; beyond that the oldest are forgotten. A host runs a handful."""


@dataclass(frozen=True)
class ActiveBurst:
    """A burst that deserves room now: what is left of its credit, and of its time."""

    job: str
    step: int
    credited_bytes: int
    left_bytes: int
    remaining_s: float
    age_s: float


def follow(
    state: InterfaceState, bursts: Sequence[Burst], *, sent_bytes: int, capacity_bits_per_s: int, now_s: float
) -> tuple[InterfaceState, tuple[ActiveBurst, ...]]:
    """Book the announcements of a tick.

    Args:
        state: the interface so far.
        bursts: as measured; order means nothing.
        sent_bytes: the compute class' counter.
        capacity_bits_per_s: bounds a first announcement.
        now_s: the tick's time.

    Returns:
        The new state, whose `bursts` carry the credits, and the bursts that deserve room now, in order of job and step.
    """
    jobs = {job.job: job for job in state.jobs}
    known = {(burst.job, burst.step): burst for burst in state.bursts}
    current = sorted(bursts, key=lambda burst: (burst.job, burst.step))[:BURSTS_MAX]
    present = {(burst.job, burst.step) for burst in current}
    for key, ended in known.items():
        if key not in present:
            jobs[ended.job] = _measured(jobs.get(ended.job), ended, sent_bytes=sent_bytes, now_s=now_s)
    followed, active = [], []
    for burst in current:
        entry = known.get((burst.job, burst.step))
        if entry is None:
            credit = _credit(burst, jobs.get(burst.job), capacity_bits_per_s=capacity_bits_per_s)
            entry = BurstState(burst.job, burst.step, now_s, sent_bytes, credit)
        followed.append(entry)
        left = entry.credited_bytes - max(0, sent_bytes - entry.sent_bytes_before)
        if left > 0 and burst.remaining_s > 0:
            active.append(
                ActiveBurst(
                    burst.job, burst.step, entry.credited_bytes, left, burst.remaining_s, now_s - entry.started_s
                )
            )
    kept = sorted(jobs.values(), key=lambda job: (-job.seen_s, job.job))[:JOBS_MAX]
    return replace(state, bursts=tuple(followed), jobs=tuple(sorted(kept, key=lambda job: job.job))), tuple(active)


def using(
    bursts: Sequence[ActiveBurst], *, throughput_bits_per_s: float | None, capacity_bits_per_s: int
) -> tuple[ActiveBurst, ...]:
    """Those for which storage should wait: new ones, and older ones only while training does use the link.

    An announced burst may wait for a slower rank; storage need not wait with it.
    """
    used = (throughput_bits_per_s or 0.0) >= USED_MIN * capacity_bits_per_s
    return tuple(burst for burst in bursts if used or burst.age_s < START_S)


def _measured(job: JobState | None, burst: BurstState, *, sent_bytes: int, now_s: float) -> JobState:
    """A burst ended: remember its size. One in which nothing was sent counts as well: unused holds cost credit."""
    before = job.burst_bytes if job is not None else ()
    size = max(0, sent_bytes - burst.sent_bytes_before)
    return JobState(burst.job, now_s, (size, *before)[:BURSTS_REMEMBERED])


def _credit(burst: Burst, job: JobState | None, *, capacity_bits_per_s: int) -> int:
    if job is None or not job.burst_bytes:
        bound = int(capacity_bits_per_s * FIRST_BURST_S / 8)
    else:
        bound = CREDIT_FACTOR * max(job.burst_bytes)
    return max(0, min(burst.announced_bytes, bound))
