"""Which jobs' next bursts are asked for at once, with what the last decision made ready.

From an announcement to a decision takes two to four milliseconds: TCP is looked at, counters are read, and a path that
is taken three times a second is cold in every cache. Whom to ask, and for what, is known before: so each decision makes
ready what the next one would ask for if a burst began now. When one is announced that is sent first, and the decision
follows, which lets it stand, changes it or takes it back.

Nobody gains by it: a job is here if a burst of it would be believed and deserve room (`broker.law.bursts.credit`,
`broker.law.bursts.inbound`), and one that was asked for ahead stays announced until a decision has judged it
(`broker.daemon.speculative_holds`).
"""

from __future__ import annotations

from collections.abc import Sequence

from broker.law.bursts import credit, inbound
from broker.law.bursts.announced import AGAIN_S_MIN, USED_MIN, of_each_user
from broker.law.inbound_state import IngressState
from broker.law.state import JobState

JOBS_MAX, JOBS_PER_USER_MAX = 8, 2
"""The latest: a host trains one or two, and every entry is written to the recording."""


def jobs(
    state: IngressState, trained: Sequence[JobState], *, capacity_bits_per_s: int, now_s: float
) -> tuple[JobState, ...]:
    """The jobs whose next burst would be believed and deserve room; none while a burst is under way.

    Args:
        state: the way in, as this tick leaves it.
        trained: the jobs of the same interface's way out, likewise.
    """
    if state.bursts:
        return ()
    least_bytes = bytes_min(capacity_bits_per_s)
    believed = [
        job
        for job in trained
        if credit.CREDIT_FACTOR * max(job.burst_bytes, default=0) >= least_bytes
        and not credit.is_barred(job, now_s=now_s)
        and inbound.has_privilege(state, job.uid, job.job)
    ]
    believed.sort(key=lambda job: (-job.seen_s, job.uid, job.job))
    return tuple(of_each_user(believed, each=JOBS_PER_USER_MAX, most=JOBS_MAX))


def bytes_min(capacity_bits_per_s: int) -> int:
    """What a burst announces at least to be worth a hold (`broker.law.bursts.announced.start_s`)."""
    return int(AGAIN_S_MIN * USED_MIN * capacity_bits_per_s / 8) + 1
