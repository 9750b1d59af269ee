"""Announced bursts: which are under way, how much of each is believed, and which are about to come.

How far an announcement is believed, and whether a job still may announce, is broker.law.bursts.credit's; when the next
one is due broker.law.bursts.forecast's. A burst is over when it is no longer passed in, when its deadline has passed,
or when its credit is used up. What a burst measured is what the class sent meanwhile: with several jobs at once too
much for each, which errs on the side of training.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Protocol, TypeVar

from msgspec import Struct
from msgspec.structs import replace

from broker.law.bursts import credit, forecast
from broker.law.state import BurstState, InterfaceState, JobState
from broker.model.reasons import Because, Reason
from broker.model.values import Burst, Credit, InterfaceSample

USED_MIN, START_S = 0.3, 0.3
"""A hold lasts while training uses 30 % of the capacity; the first 0.3 s are given to it for its start."""
AGAIN_S_MIN = 0.02
"""The pace is known to some percent, so that the end may be looked for twice; not more often than so. And what takes
less is not worth a hold."""
JOBS_MAX, JOBS_PER_USER_MAX = 256, 16
BURSTS_MAX, BURSTS_PER_USER_MAX = 256, 16
"""Jobs and bursts at one interface, and of one user: a host runs a handful. Beyond that a user's own oldest jobs are
forgotten, so that nobody pushes out another's."""
UNKNOWN = -1
"""What the class had sent when a burst began, where no counter was fresh."""
USERS_MAX = 256
"""Users whose allowance is remembered: as many as there may be sessions."""


class _HasUser(Protocol):
    @property
    def uid(self) -> int: ...


OfUser = TypeVar("OfUser", bound=_HasUser)


class ActiveBurst(Struct, frozen=True):
    """A burst that deserves room now: what is left of its credit, and of its time."""

    job: str
    step: int
    credited_bytes: int
    left_bytes: int
    remaining_s: float
    age_s: float
    uid: int = 0

    def reason(self) -> Reason:
        """Why storage waits."""
        return Because.YIELDS_TO_BURST(
            job=self.job, step=self.step, burst_bytes=self.credited_bytes, remaining_s=self.remaining_s
        )


def follow(
    state: InterfaceState, bursts: Sequence[Burst], *, sent_bytes: int | None, capacity_bits_per_s: int, now_s: float
) -> tuple[InterfaceState, tuple[ActiveBurst, ...]]:
    """Book the announcements of a tick.

    Args:
        state: the interface so far.
        bursts: as measured; order means nothing.
        sent_bytes: the compute class' counter; None where it is not known now: then nothing can be measured by it.
        capacity_bits_per_s: bounds a first announcement.
        now_s: the tick's time.

    Returns:
        The new state, whose `bursts` carry the credits, and the bursts that deserve room now, in order of user, job and
        step.
    """
    jobs = {(job.uid, job.job): job for job in state.jobs}
    users = {user.uid: user for user in state.users}
    known = {(burst.uid, burst.job, burst.step): burst for burst in state.bursts}
    current = _admitted(bursts)
    present = {(burst.uid, burst.job, burst.step) for burst in current}
    for key, ended in known.items():
        if key not in present:
            who = ended.uid, ended.job
            jobs[who] = _ended(jobs.get(who), ended, sent_bytes=sent_bytes, now_s=now_s)
    barred = {job.uid for job in jobs.values() if credit.is_barred(job, now_s=now_s)}
    followed, active = [], []
    for burst in current:
        who, entry = (burst.uid, burst.job), known.get((burst.uid, burst.job, burst.step))
        if entry is None:
            user = credit.renewed(users, burst.uid, now_s=now_s)
            belief, users[burst.uid] = credit.belief(
                jobs.get(who),
                user,
                barred_user=burst.uid in barred,
                capacity_bits_per_s=capacity_bits_per_s,
                now_s=now_s,
            )
            entry = BurstState(
                burst.job, burst.step, now_s, UNKNOWN if sent_bytes is None else sent_bytes, 0, burst.uid, 0,
                belief.bytes_max, belief.first, belief.withheld,
            )  # fmt: skip
            job = forecast.begun(jobs.get(who, _unknown(burst, now_s=now_s)), at_s=now_s - burst.age_s)
            admitted = job.admitted or not belief.withheld
            jobs[who] = replace(forecast.reported(job, burst, now_s=now_s), admitted=admitted)
        entry = credit.claim(entry, burst.announced_bytes)
        followed.append(entry)
        left = entry.credited_bytes - (_sent_since(entry, sent_bytes) or 0)
        if left > 0 and burst.remaining_s > 0:
            age_s = now_s - entry.started_s
            active.append(
                ActiveBurst(burst.job, burst.step, entry.credited_bytes, left, burst.remaining_s, age_s, burst.uid)
            )
    return replace(
        state,
        bursts=tuple(followed),
        jobs=_kept([forecast.missed(job, now_s=now_s) for job in jobs.values()]),
        users=credit.worth_keeping([credit.renewed(users, uid, now_s=now_s) for uid in users], most=USERS_MAX),
    ), tuple(active)  # fmt: skip


def using(
    bursts: Sequence[ActiveBurst], *, throughput_bits_per_s: float | None, capacity_bits_per_s: int
) -> tuple[ActiveBurst, ...]:
    """Those for which storage should wait: new ones, and older ones only while training does use the link.

    An announced burst may wait for a slower rank; storage need not wait with it. And a small one is new for no longer
    than it takes at the least use, or bursts of a byte, one after the other, would keep storage away all the time.
    """
    used = (throughput_bits_per_s or 0.0) >= USED_MIN * capacity_bits_per_s
    return tuple(
        burst
        for burst in bursts
        if used or burst.age_s < start_s(burst.credited_bytes, capacity_bits_per_s=capacity_bits_per_s)
    )


def again_s(
    jobs: Sequence[JobState], bursts: Sequence[ActiveBurst], *, throughput_bits_per_s: float | None,
    capacity_bits_per_s: int, lead_s: float, now_s: float,
) -> float | None:  # fmt: skip
    """When to decide again before the next tick: to move storage, or to let it back.

    It is let back when a burst has sent what it was credited with, whether or not its job has said yet that it is over,
    and when one that does not begin has had its time for that.

    Args:
        jobs: as `follow` left them.
        bursts: those for which storage waits.
        throughput_bits_per_s: of training.
        capacity_bits_per_s: of the interface.
        lead_s: from `forecast.lead_s`.
        now_s: the tick's time.
    """
    times = [forecast.again_s(jobs, lead_s=lead_s, now_s=now_s)]
    if bursts and throughput_bits_per_s:
        left_s = min(burst.left_bytes for burst in bursts) * 8 / throughput_bits_per_s
        times.append(max(AGAIN_S_MIN, left_s))
    if (throughput_bits_per_s or 0.0) < USED_MIN * capacity_bits_per_s:
        starts = [
            start_s(burst.credited_bytes, capacity_bits_per_s=capacity_bits_per_s) - burst.age_s for burst in bursts
        ]
        times += [time_s for time_s in starts if time_s > 0]
    return min((time_s for time_s in times if time_s is not None and time_s < forecast.AGAIN_S_MAX), default=None)


def start_s(credited_bytes: int, *, capacity_bits_per_s: int) -> float:
    """How long a burst is new; 0 for one that is not worth a hold."""
    at_least_use_s = credited_bytes * 8 / max(1.0, USED_MIN * capacity_bits_per_s)
    return min(START_S, at_least_use_s) if at_least_use_s >= AGAIN_S_MIN else 0.0


def destinations(sample: InterfaceSample) -> tuple[str, ...]:
    """Where the announced bursts of an interface go."""
    return tuple(address for burst in sample.bursts for address, _ in burst.by_destination)


def credits(interface: str, state: InterfaceState, *, now_s: float) -> tuple[Credit, ...]:
    """What each burst under way is credited with, and why."""
    return tuple(
        Credit(
            interface, burst.job, burst.step, burst.credited_bytes, burst.uid,
            _why(burst, state.jobs, now_s=now_s),
        )
        for burst in state.bursts
    )  # fmt: skip


def of_each_user(entries: Iterable[OfUser], *, each: int, most: int) -> list[OfUser]:
    """The first `each` of every user, and `most` in all: nobody pushes out another's, however many he has."""
    count: dict[int, int] = {}
    found = []
    for entry in entries:
        count[entry.uid] = count.get(entry.uid, 0) + 1
        if count[entry.uid] <= each:
            found.append(entry)
    return found[:most]


def _why(burst: BurstState, jobs: Sequence[JobState], *, now_s: float) -> Reason:
    if burst.withheld == credit.LOST:
        until_s = max((job.barred_until_s for job in jobs if (job.uid, job.job) == (burst.uid, burst.job)), default=0.0)
        return Because.CREDIT_LOST(left_s=max(0.0, until_s - now_s))
    if burst.withheld == credit.UNKNOWN:
        return Because.NAME_UNKNOWN(uid=burst.uid)
    if burst.first:
        return Because.CREDIT_OF_FIRST(most_bytes=burst.claim_bytes_max)
    return Because.CREDIT_OF_MEASURED(most_bytes=burst.claim_bytes_max)


def _admitted(bursts: Sequence[Burst]) -> list[Burst]:
    """At most so many of each user, and in all, whatever is announced; in order of user, job and step."""
    ordered = sorted(bursts, key=lambda burst: (burst.uid, burst.job, burst.step))
    return of_each_user(ordered, each=BURSTS_PER_USER_MAX, most=BURSTS_MAX)


def _ended(job: JobState | None, burst: BurstState, *, sent_bytes: int | None, now_s: float) -> JobState:
    """A burst ended: remember its size. A counter that is not known, or began anew, measures nothing."""
    known = job or JobState(burst.job, now_s, uid=burst.uid)
    size_bytes = _sent_since(burst, sent_bytes)
    if size_bytes is None:
        return replace(known, seen_s=now_s)
    return credit.judge(known, burst, size_bytes=size_bytes, now_s=now_s)


def _sent_since(burst: BurstState, sent_bytes: int | None) -> int | None:
    """What the class has sent since a burst began; None where that cannot be known."""
    if sent_bytes is None or burst.sent_bytes_before == UNKNOWN or sent_bytes < burst.sent_bytes_before:
        return None
    return sent_bytes - burst.sent_bytes_before


def _unknown(burst: Burst, *, now_s: float) -> JobState:
    return JobState(burst.job, now_s, uid=burst.uid)


def _kept(jobs: Sequence[JobState]) -> tuple[JobState, ...]:
    """The latest jobs of each user; those that have lost their privilege count as seen until they have it back, or new
    names would wash them clean."""
    latest = sorted(jobs, key=lambda job: (-max(job.barred_until_s, job.seen_s), job.uid, job.job))
    kept = of_each_user(latest, each=JOBS_PER_USER_MAX, most=JOBS_MAX)
    return tuple(sorted(kept, key=lambda job: (job.uid, job.job)))
