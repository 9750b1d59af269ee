"""Track bursts of either direction: which are in progress, which have ended, and which jobs are remembered.

The directions count differently. Outbound, a class counter tells a burst's size (`broker.law.bursts.announced`).
Inbound, it is what arrives beside storage (`broker.law.bursts.inbound`). So each keeps its own record of a burst.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import TypeVar

from broker.law.inbound_state import InboundBurstState, InboundJobState
from broker.law.state import BurstState, JobState
from broker.model.values import Burst

JOBS_MAX, JOBS_PER_USER_MAX = 256, 16
BURSTS_MAX, BURSTS_PER_USER_MAX = 256, 16
"""Jobs and bursts at one interface, and of one user: a host runs a handful. Beyond that a user's own oldest jobs are
forgotten, so that no user displaces another's."""

Record = BurstState | InboundBurstState
OfBurst = TypeVar("OfBurst", BurstState, InboundBurstState)
OfJob = TypeVar("OfJob", JobState, InboundJobState)
OfUser = TypeVar("OfUser", Burst, JobState, InboundJobState)


def owner(entry: Burst | Record | JobState | InboundJobState) -> tuple[int, str]:
    """The job of an entry: names are a user's own."""
    return entry.uid, entry.job


def identity(entry: Burst | Record) -> tuple[int, str, int]:
    """What tells two bursts apart."""
    return entry.uid, entry.job, entry.step


def match(
    known: Iterable[OfBurst], bursts: Iterable[Burst]
) -> tuple[list[tuple[Burst, OfBurst | None]], list[OfBurst]]:
    """Match the bursts of a tick with the records of the last one.

    Returns:
        Each burst in progress with its record, None where it begins, in order of user, job and step, and limited by
        user and in all; and the records of bursts that ended.
    """
    records = {identity(record): record for record in known}
    current = _of_each_user(sorted(bursts, key=identity), each=BURSTS_PER_USER_MAX, most=BURSTS_MAX)
    return [(burst, records.pop(identity(burst), None)) for burst in current], list(records.values())


def latest(jobs: Iterable[OfJob], *, seen_s: Callable[[OfJob], float]) -> tuple[OfJob, ...]:
    """The jobs to remember: the latest of each user by `seen_s`, in order of user and name."""
    ordered = sorted(jobs, key=lambda job: (-seen_s(job), *owner(job)))
    return tuple(sorted(_of_each_user(ordered, each=JOBS_PER_USER_MAX, most=JOBS_MAX), key=owner))


def _of_each_user(entries: Iterable[OfUser], *, each: int, most: int) -> list[OfUser]:
    """The first `each` of every user, and `most` in all."""
    count: dict[int, int] = {}
    found = []
    for entry in entries:
        count[entry.uid] = count.get(entry.uid, 0) + 1
        if count[entry.uid] <= each:
            found.append(entry)
    return found[:most]
