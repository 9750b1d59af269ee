"""Follow announced bursts: which are in progress, how much of each is credited, and when storage makes room for one.

    begins   it is passed in for the first time: `broker.law.bursts.credit` sets its credit.
    ends     it is no longer passed in. What the class sent meanwhile is its size: with several jobs at once too much
             for each, which favours training.
    room     storage waits for a burst that is new, and for an older one while training uses the link. It may send
             again when the credit is used up, even before the job reports the end of the burst.
    before   a job announces with each burst when it expects the next. Storage sent just before would still be in a
             queue elsewhere then. So storage yields earlier, by a round trip and the delay of that queue.

Only a job whose last `GOOD_IN_A_ROW` forecasts came true is followed. A burst that is late by more than `ERROR_S_MAX`
is not waited for: a wrong forecast costs storage the lead and that time, once (docs/log/ablations.md).
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from msgspec import Struct
from msgspec.structs import replace

from broker.law.bursts import credit, tracker
from broker.law.state import BurstState, InterfaceState, JobState, Standing, Withheld
from broker.model.reasons import Because, Reason
from broker.model.values import Burst, Credit, FlowSample

USED_MIN, START_S = 0.3, 0.3
"""A hold lasts while training uses 30 % of the capacity; its first 0.3 s do not count."""
AGAIN_S_MIN = 0.02
"""The pace is known to a few percent, so the end may be checked twice, at most this often. A burst shorter than this is
not worth a hold."""
UNKNOWN = -1
"""Marks that no fresh counter was there when a burst began."""
USERS_MAX = 256
"""Users whose allowance is remembered: as many as there may be sessions."""
GOOD_IN_A_ROW = 3
ERROR_S_MAX = 0.05
"""Half a tick, and the pause after which the transport reports a burst's end."""
LEAD_S_MAX = 0.5
"""More than any path where tensors travel: 300 ms of round trip and an unmanaged buffer of 200 ms."""
ROUND_TRIP_S = 0.02
"""The round trip where no connection has measured one: across a site's uplink."""
FLOW_FRESH_S = 1.5
"""As broker.law.capacity.signals: reports come ten times a second, TCP_INFO once."""
AGAIN_S_MAX = 1.0
"""The longest tick that the configuration allows: the next tick handles anything later."""


class ActiveBurst(Struct, frozen=True):
    """A burst for which storage makes room now: the rest of its credit, and of its time."""

    job: str
    step: int
    credited_bytes: int
    left_bytes: int
    remaining_s: float
    age_s: float
    uid: int = 0

    def reason(self) -> Reason:
        """The reason why storage waits."""
        return Because.YIELDS_TO_BURST(
            job=self.job, step=self.step, burst_bytes=self.credited_bytes, remaining_s=self.remaining_s
        )


def follow(
    state: InterfaceState, bursts: Sequence[Burst], *, sent_bytes: int | None, capacity_bits_per_s: int, now_s: float
) -> tuple[InterfaceState, tuple[ActiveBurst, ...]]:
    """Process the announcements of a tick.

    Args:
        state: the interface so far.
        bursts: as measured, in any order.
        sent_bytes: the compute class' counter; None where it is unknown now, and then no burst is measured.
        capacity_bits_per_s: bounds a first announcement.
        now_s: the tick's time.

    Returns:
        The new state, whose `bursts` carry the credits, and the bursts for which storage makes room now, in order of
        user, job and step.
    """
    jobs = {tracker.owner(job): credit.aged(job, now_s=now_s) for job in state.jobs}
    users = {user.uid: user for user in state.users}
    current, over = tracker.match(state.bursts, bursts)
    for ended in over:
        who = tracker.owner(ended)
        jobs[who] = _ended(jobs.get(who), ended, sent_bytes=sent_bytes, now_s=now_s)
    barred = {job.uid for job in jobs.values() if job.standing is Standing.BARRED}
    followed, active = [], []
    for burst, entry in current:
        if entry is None:
            who = tracker.owner(burst)
            user = credit.renewed(users, burst.uid, now_s=now_s)
            belief, users[burst.uid] = credit.belief(
                jobs.get(who),
                user,
                barred_user=burst.uid in barred,
                capacity_bits_per_s=capacity_bits_per_s,
            )
            entry = BurstState(
                burst.job, burst.step, now_s, UNKNOWN if sent_bytes is None else sent_bytes, 0, burst.uid, 0,
                belief.bytes_max, belief.first, belief.withheld,
            )  # fmt: skip
            job = jobs.get(who) or JobState(burst.job, now_s, uid=burst.uid)
            admitted = job.admitted or not belief.withheld
            jobs[who] = replace(_expecting(job, burst, now_s=now_s), admitted=admitted)
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
        jobs=tracker.latest([_missed(job, now_s=now_s) for job in jobs.values()], seen_s=_last_s),
        users=credit.worth_keeping([credit.renewed(users, uid, now_s=now_s) for uid in users], most=USERS_MAX),
    ), tuple(active)  # fmt: skip


def using(
    bursts: Sequence[ActiveBurst], *, throughput_bits_per_s: float | None, capacity_bits_per_s: int
) -> tuple[ActiveBurst, ...]:
    """The bursts for which storage should wait: new ones, and older ones only while training uses the link.

    An announced burst may wait for a slower rank, and storage need not wait with it. A small burst is new for no longer
    than it takes at the least use; otherwise successive bursts of a byte would hold storage back all the time.
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
    """In how many seconds to decide again before the next tick: to hold storage back, or to release it.

    Args:
        jobs: as `follow` left them.
        bursts: those for which storage waits.
        throughput_bits_per_s: of training.
        capacity_bits_per_s: of the interface.
        lead_s: from the function of that name.
        now_s: the tick's time.
    """
    times = []
    for _, in_s in _expected(jobs, now_s=now_s):
        times.append(in_s - lead_s if in_s > lead_s else in_s + ERROR_S_MAX)
    if bursts and throughput_bits_per_s:
        left_s = min(burst.left_bytes for burst in bursts) * 8 / throughput_bits_per_s
        times.append(max(AGAIN_S_MIN, left_s))
    if (throughput_bits_per_s or 0.0) < USED_MIN * capacity_bits_per_s:
        times += [
            start_s(burst.credited_bytes, capacity_bits_per_s=capacity_bits_per_s) - burst.age_s for burst in bursts
        ]
    return min((time_s for time_s in times if 0 < time_s < AGAIN_S_MAX), default=None)


def lead_s(flows: Iterable[FlowSample], bursts: Iterable[Burst], *, excess_s: float) -> float:
    """How long before a burst storage has to yield: a round trip, and the delay of a queue elsewhere.

    Args:
        flows: as measured; those of storage count, and those to where the bursts go.
        bursts: announced.
        excess_s: how long a packet waits in queues that are not ours; drained at the rate at which it was filled.
    """
    towards = {address for burst in bursts for address, _ in burst.by_destination}
    trips = (
        flow.rtt_s_min or flow.rtt_s or 0.0
        for flow in flows
        if flow.age_s < FLOW_FRESH_S and (flow.traffic_class == "storage" or flow.peer in towards)
    )
    return min(LEAD_S_MAX, max(trips, default=0.0) + excess_s or ROUND_TRIP_S)


def makes_room(
    jobs: Sequence[JobState], bursts: Sequence[ActiveBurst], *, lead_s: float, now_s: float
) -> Reason | None:  # fmt: skip
    """The reason why storage waits: the longest burst in progress, else one that is due; None where it does not wait.

    Arguments as of `again_s`.
    """
    if bursts:
        return max(bursts, key=lambda burst: burst.remaining_s).reason()
    for job, in_s in _expected(jobs, now_s=now_s):
        if in_s <= lead_s:
            when = f"due in {1000 * in_s:.0f} ms" if in_s >= 0 else f"late by {-1000 * in_s:.0f} ms"
            size = credit.CREDIT_FACTOR * max(job.burst_bytes)
            return Because.EXPECTS_BURST(job=job.job, when=when, burst_bytes=size)
    return None


def start_s(credited_bytes: int, *, capacity_bits_per_s: int) -> float:
    """How long a burst counts as new; 0 for one that is not worth a hold."""
    at_least_use_s = credited_bytes * 8 / max(1.0, USED_MIN * capacity_bits_per_s)
    return min(START_S, at_least_use_s) if at_least_use_s >= AGAIN_S_MIN else 0.0


def credits(interface: str, state: InterfaceState, *, now_s: float) -> tuple[Credit, ...]:
    """The credit of each burst in progress, and the reason."""
    return tuple(
        Credit(
            interface, burst.job, burst.step, burst.credited_bytes, burst.uid,
            _why(burst, state.jobs, now_s=now_s),
        )
        for burst in state.bursts
    )  # fmt: skip


def _why(burst: BurstState, jobs: Sequence[JobState], *, now_s: float) -> Reason:
    if burst.withheld is Withheld.PRIVILEGE_LOST:
        until_s = max((job.barred_until_s for job in jobs if tracker.owner(job) == tracker.owner(burst)), default=0.0)
        return Because.CREDIT_LOST(left_s=max(0.0, until_s - now_s))
    if burst.withheld is Withheld.NAME_UNKNOWN:
        return Because.NAME_UNKNOWN(uid=burst.uid)
    if burst.first:
        return Because.CREDIT_OF_FIRST(most_bytes=burst.claim_bytes_max)
    return Because.CREDIT_OF_MEASURED(most_bytes=burst.claim_bytes_max)


def _ended(job: JobState | None, burst: BurstState, *, sent_bytes: int | None, now_s: float) -> JobState:
    """Record the size of a burst that ended. A counter that is unknown, or was reset, measures nothing."""
    known = job or JobState(burst.job, now_s, uid=burst.uid)
    size_bytes = _sent_since(burst, sent_bytes)
    if size_bytes is None:
        return replace(known, seen_s=now_s)
    return credit.judge(known, burst, size_bytes=size_bytes, now_s=now_s)


def _sent_since(burst: BurstState, sent_bytes: int | None) -> int | None:
    """What the class has sent since a burst began; None where that is unknown."""
    if sent_bytes is None or burst.sent_bytes_before == UNKNOWN or sent_bytes < burst.sent_bytes_before:
        return None
    return sent_bytes - burst.sent_bytes_before


def _expecting(job: JobState, burst: Burst, *, now_s: float) -> JobState:
    """Compare a burst that has begun with its forecast, and record its forecast of the next one."""
    if job.expected_s is not None:
        good = abs(now_s - burst.age_s - job.expected_s) <= ERROR_S_MAX
        job = replace(job, expected_s=None, foretold=min(GOOD_IN_A_ROW, job.foretold + 1) if good else 0)
    return job if burst.next_s is None else replace(job, expected_s=now_s + burst.next_s)


def _missed(job: JobState, *, now_s: float) -> JobState:
    """Give up a burst that did not come."""
    if job.expected_s is None or now_s <= job.expected_s + ERROR_S_MAX:
        return job
    return replace(job, expected_s=None, foretold=0)


def _expected(jobs: Iterable[JobState], *, now_s: float) -> list[tuple[JobState, float]]:
    """Jobs whose forecasts have been good and whose bursts were used, each with the seconds to its next burst."""
    return [
        (job, job.expected_s - now_s)
        for job in jobs
        if job.expected_s is not None
        and job.foretold >= GOOD_IN_A_ROW
        and job.standing is not Standing.BARRED
        and max(job.burst_bytes, default=0) > 0
    ]


def _last_s(job: JobState) -> float:
    """When a job was seen last. A barred one counts until it is trusted again: new names would clear its record."""
    return max(job.barred_until_s, job.seen_s)
