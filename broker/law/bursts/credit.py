"""Limit the credit of announcements, by job and by user, and withhold it from jobs that did not use it.

An announcement holds storage back, so a program could announce what it never sends, under any job's name:

    known     a job is believed up to twice the largest of its last measured bursts.
    new       a name without a history, up to what the link carries in `FIRST_BURST_S`; of each user `NAMES_AT_ONCE`
              such names, one more each `NAME_S`, and none while a job of that user is barred. Beyond that a name has
              to be measured first; its bursts are measured without credit.
    unused    `UNUSED_IN_A_ROW` bursts that carry less than `USED_PART` of what was claimed bar a job: it holds no
              storage back for `BARRED_S`, twice as long each time that it happens again, up to `BARRED_S_MAX`.
    redeemed  `USED_IN_A_ROW` bursts that were used restore the credit at once, with a clean record. A job whose time is
              over is on trial: one more unused burst bars it again.

The states of a job, and their transitions (`TRANSITIONS`):

    trusted   --unused in a row-->  barred
    barred    --time over-------->  on trial
    on trial  --unused----------->  barred, for twice as long
    barred, on trial  --used in a row-->  trusted

The number of a step makes no difference: every burst that ends is judged. So false announcements take only beginnings
of bursts from storage, of 0.3 s each: `UNUSED_IN_A_ROW` for each first name of a user, or as many as the user may have
in progress at once (16 in all), then one in `BARRED_S_MAX`. To keep its credit a program has to send half of what it
claims. Storage is repaid for all of it within its window (broker.law.sharing.guarantee).
"""

from __future__ import annotations

import enum
from collections.abc import Iterable, Mapping

from msgspec import Struct
from msgspec.structs import replace

from broker.law.state import BurstState, JobState, Standing, UserState, Withheld
from broker.model.values import Alarm

CREDIT_FACTOR = 2
"""An announcement is believed up to twice the recently measured burst (docs/log/law.md)."""
FIRST_BURST_S = 2.0
"""A job without history: what the link carries in two seconds, which is also the longest hold between brokers."""
BURSTS_REMEMBERED = 4
NAMES_AT_ONCE, NAME_S = 4.0, 60.0
"""A user starts a few jobs at once; a program that changes its job's name with each burst has credit once a minute."""
USED_PART = 0.5
"""Steps of one job differ in size (a last, smaller batch; an exchange now and then), but not three times in a row by so
much: what is claimed follows the last one."""
UNUSED_IN_A_ROW, USED_IN_A_ROW = 3, 3
BARRED_S, BARRED_S_MAX = 10.0, 600.0
"""Ten seconds are ten steps or more without a hold: a cost for false announcements, little for accidental ones."""

ALARMS_MAX = 16
"""The most alarms of one interface: more of the same add nothing."""


class _Event(enum.Enum):
    USED = enum.auto()
    UNUSED = enum.auto()
    TIME_OVER = enum.auto()


TRANSITIONS = {
    (Standing.TRUSTED, _Event.UNUSED): Standing.BARRED,
    (Standing.BARRED, _Event.TIME_OVER): Standing.ON_TRIAL,
    (Standing.BARRED, _Event.USED): Standing.TRUSTED,
    (Standing.ON_TRIAL, _Event.UNUSED): Standing.BARRED,
    (Standing.ON_TRIAL, _Event.USED): Standing.TRUSTED,
}


class Belief(Struct, frozen=True):
    """The credit of a burst that begins; `withheld` is the reason of none."""

    bytes_max: int
    first: bool
    withheld: Withheld | None = None


def belief(
    job: JobState | None, user: UserState, *, barred_user: bool, capacity_bits_per_s: int
) -> tuple[Belief, UserState]:
    """Set the credit of a burst that begins, and what it costs the user's allowance.

    Args:
        job: the job's state; None at its first burst.
        user: from `renewed`.
        barred_user: whether a job of this user is barred.
        capacity_bits_per_s: bounds a first announcement.
    """
    if job is not None and job.burst_bytes:
        bytes_max = CREDIT_FACTOR * max(job.burst_bytes)
        return Belief(bytes_max, False, Withheld.PRIVILEGE_LOST if job.standing is Standing.BARRED else None), user
    bytes_max = int(capacity_bits_per_s * FIRST_BURST_S / 8)
    if job is not None and job.admitted:
        return Belief(bytes_max, True), user
    if barred_user or user.names_left < 1:
        return Belief(bytes_max, True, Withheld.NAME_UNKNOWN), user
    return Belief(bytes_max, True), replace(user, names_left=user.names_left - 1)


def claim(burst: BurstState, announced_bytes: int) -> BurstState:
    """Update a burst's announcement, which may grow while it lasts.

    A job without recent bursts claims a byte, so that it is judged as well.
    """
    claimed = max(0, min(announced_bytes, max(1, burst.claim_bytes_max)))
    credited = 0 if burst.withheld else min(claimed, burst.claim_bytes_max)
    return replace(burst, claimed_bytes=claimed, credited_bytes=credited)


def judge(job: JobState, burst: BurstState, *, size_bytes: int, now_s: float) -> JobState:
    """Record a burst that has ended: its size, and whether it was used."""
    job = replace(job, seen_s=now_s, burst_bytes=(size_bytes, *job.burst_bytes)[:BURSTS_REMEMBERED])
    if burst.claimed_bytes <= 0:
        return job  # nothing was announced
    if size_bytes >= USED_PART * burst.claimed_bytes:
        job = replace(job, unused=0, used=min(USED_IN_A_ROW, job.used + 1))
        return _moved(job, _Event.USED, now_s=now_s) if job.used >= USED_IN_A_ROW else job
    job = replace(job, used=0, unused=min(UNUSED_IN_A_ROW, job.unused + 1))
    if job.unused >= UNUSED_IN_A_ROW or job.standing is Standing.ON_TRIAL:
        return _moved(job, _Event.UNUSED, now_s=now_s)
    return job


def aged(job: JobState, *, now_s: float) -> JobState:
    """A job's state as of now: when its bar has ended it is on trial."""
    return job if now_s < job.barred_until_s else _moved(job, _Event.TIME_OVER, now_s=now_s)


def _moved(job: JobState, event: _Event, *, now_s: float) -> JobState:
    standing = TRANSITIONS.get((job.standing, event))
    if standing is None:
        return job
    job = replace(job, standing=standing)
    if standing is Standing.BARRED:
        barred_s = min(BARRED_S_MAX, 2 * job.barred_s or BARRED_S)
        return replace(job, barred_s=barred_s, barred_until_s=now_s + barred_s)
    return replace(job, barred_s=0.0, barred_until_s=0.0) if standing is Standing.TRUSTED else job


def alarms(name: str, jobs: Iterable[JobState], *, now_s: float) -> tuple[Alarm, ...]:
    """The alarms of barred jobs, the longest barred first.

    Args:
        name: of the interface.
        jobs: all known jobs of that interface.
        now_s: the tick's time.
    """
    lost = sorted(
        (job for job in jobs if job.standing is Standing.BARRED), key=lambda job: (-job.barred_s, job.uid, job.job)
    )
    return tuple(
        Alarm(
            "announcements-unused", f"{name}/{job.job}",
            f"user {job.uid} announced bursts for job {job.job} and did not send them; they hold no storage back for "
            f"{job.barred_until_s - now_s:.0f} s, or until {USED_IN_A_ROW} of them are sent",
        )
        for job in lost[:ALARMS_MAX]
    )  # fmt: skip


def renewed(users: Mapping[int, UserState], uid: int, *, now_s: float) -> UserState:
    """A user's allowance of new names as of now."""
    user = users.get(uid)
    if user is None:
        return UserState(uid, NAMES_AT_ONCE, now_s)
    left = min(NAMES_AT_ONCE, user.names_left + (now_s - user.as_of_s) / NAME_S)
    return UserState(uid, left, now_s)


def worth_keeping(users: Iterable[UserState], *, most: int) -> tuple[UserState, ...]:
    """The users whose allowance is not full; of too many, those with the smallest."""
    spent = [user for user in users if user.names_left < NAMES_AT_ONCE]
    return tuple(sorted(sorted(spent, key=lambda user: (user.names_left, user.uid))[:most], key=lambda user: user.uid))
