"""Which bursts are in progress, which have ended, and that no user displaces another's."""

from __future__ import annotations

from broker.law.bursts import tracker
from broker.law.state import BurstState, JobState
from broker.model.values import Burst


def burst(step: int, *, uid: int = 0) -> Burst:
    return Burst("J", step, 1_000, 0.0, 1.0, uid=uid)


def record(step: int, *, uid: int = 0) -> BurstState:
    return BurstState("J", step, 0.0, 0, 0, uid)


def test_bursts_begin_go_on_and_end_by_user_job_and_step() -> None:
    known = [record(1), record(2), record(1, uid=7)]
    current, ended = tracker.match(known, [burst(3), burst(2), burst(1, uid=7)])
    assert [(tracker.identity(now), before is not None) for now, before in current] == [
        ((0, "J", 2), True), ((0, "J", 3), False), ((7, "J", 1), True)
    ]  # fmt: skip
    assert ended == [record(1)]


def test_no_user_displaces_the_bursts_or_the_jobs_of_another() -> None:
    many = [burst(step) for step in range(10 * tracker.BURSTS_PER_USER_MAX)]
    none: tuple[BurstState, ...] = ()
    current, _ = tracker.match(none, [*many, burst(1, uid=7)])
    assert [now.uid for now, _ in current] == [0] * tracker.BURSTS_PER_USER_MAX + [7]
    jobs = [JobState(f"J{number}", float(number), uid=1) for number in range(10 * tracker.JOBS_PER_USER_MAX)]
    kept = tracker.latest([JobState("J", 0.0, uid=7), *jobs], seen_s=lambda job: job.seen_s)
    assert {job.uid for job in kept} == {1, 7}
    assert min(job.seen_s for job in kept if job.uid == 1) == 9.0 * tracker.JOBS_PER_USER_MAX
