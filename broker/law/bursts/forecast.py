"""When the next burst of a job is due, whether that may be believed, and how long before it storage has to move.

A job says with each burst when it expects the next. What was sent a moment before a burst begins still stands in a
queue elsewhere when it begins: for a round trip packets are on their way there, and then the queue has to drain. So
storage moves that much before, and not earlier:

    lead = round trip of the connections concerned + queue elsewhere, at most `LEAD_S_MAX`

Only a job whose last `GOOD_IN_A_ROW` forecasts came true is followed: within 10 % of the time foretold, at least 10 and
at most 50 ms. A burst that is later than that is not waited for, and counts as a forecast that failed; so a wrong one
costs storage its lead and 50 ms, once.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from msgspec import Struct
from msgspec.structs import replace

from broker.law.bursts.credit import CREDIT_FACTOR, is_barred
from broker.law.state import JobState
from broker.model.reasons import Because, Reason
from broker.model.values import Burst, FlowSample

GOOD_IN_A_ROW = 3
ERROR_PART, ERROR_S_MIN, ERROR_S_MAX = 0.1, 0.01, 0.05
"""50 ms is half a tick, and the pause by which the transport knows that a burst is over; 10 ms is a busy scheduler."""
LEAD_S_MAX = 0.5
"""More than any path where tensors travel: 300 ms of round trip and an unmanaged buffer of 200 ms."""
ROUND_TRIP_S = 0.02
"""Where no connection has told: across a site's uplink."""
FLOW_FRESH_S = 1.5
"""As broker.law.capacity.signals: reports come ten times a second, TCP_INFO once."""
AGAIN_S_MAX = 1.0
"""The longest tick that configuration allows: what is further away the next tick sees."""


class ExpectedBurst(Struct, frozen=True):
    """A burst that is due within the lead: storage moves for it now. `remaining_s`: until it is not waited for any
    more; it has nothing to ask for yet."""

    job: str
    step: int
    in_s: float
    remaining_s: float
    credited_bytes: int
    error_s: float

    def reason(self) -> Reason:
        """Why storage waits."""
        when = f"due in {1000 * self.in_s:.0f} ms" if self.in_s >= 0 else f"late by {-1000 * self.in_s:.0f} ms"
        return Because.EXPECTS_BURST(job=self.job, when=when, burst_bytes=self.credited_bytes, error_s=self.error_s)


def begun(job: JobState, *, at_s: float) -> JobState:
    """A burst has begun: compare with what was foretold."""
    if job.expected_s is None:
        return job
    error_s = at_s - job.expected_s
    good = abs(error_s) <= tolerance_s(job.interval_s)
    return replace(job, expected_s=None, error_s=error_s, foretold=min(GOOD_IN_A_ROW, job.foretold + 1) if good else 0)


def reported(job: JobState, burst: Burst, *, now_s: float) -> JobState:
    """Take what a burst under way says of the next one, counted from its own begin."""
    if burst.next_s is None:
        return replace(job, step=burst.step)
    expected_s = now_s + burst.next_s
    return replace(job, step=burst.step, expected_s=expected_s, interval_s=burst.next_s + burst.age_s)


def missed(job: JobState, *, now_s: float) -> JobState:
    """Give up a burst that did not come."""
    if job.expected_s is None or now_s <= job.expected_s + tolerance_s(job.interval_s):
        return job
    return replace(job, expected_s=None, error_s=now_s - job.expected_s, foretold=0)


def tolerance_s(interval_s: float) -> float:
    """How wrong a forecast over an interval may be."""
    return max(ERROR_S_MIN, min(ERROR_S_MAX, ERROR_PART * interval_s))


def lead_s(flows: Sequence[FlowSample], *, destinations: Iterable[str], excess_s: float) -> float:
    """How long before a burst storage has to move: a round trip, and what stands in a queue elsewhere.

    Args:
        flows: as measured; those of storage count, and those to where training sends.
        destinations: of the bursts.
        excess_s: how long a packet waits in queues that are not ours; drained at the rate at which it was filled.
    """
    towards = set(destinations)
    trips = [
        flow.rtt_s_min or flow.rtt_s or 0.0
        for flow in flows
        if flow.age_s < FLOW_FRESH_S and (flow.traffic_class == "storage" or flow.peer in towards)
    ]
    return min(LEAD_S_MAX, max(trips, default=0.0) + excess_s or ROUND_TRIP_S)


def due(jobs: Iterable[JobState], *, lead_s: float, now_s: float) -> tuple[ExpectedBurst, ...]:
    """The bursts for which storage has to move now."""
    found = []
    for job in jobs:
        if not is_followed(job, now_s=now_s) or job.expected_s is None:
            continue
        in_s = job.expected_s - now_s
        if in_s <= lead_s:
            size = CREDIT_FACTOR * max(job.burst_bytes)
            until_s = in_s + tolerance_s(job.interval_s)
            found.append(ExpectedBurst(job.job, job.step + 1, in_s, until_s, size, job.error_s))
    return tuple(found)


def again_s(jobs: Iterable[JobState], *, lead_s: float, now_s: float) -> float | None:
    """How long until a hold has to begin, or an expected burst is given up; None where nothing is near."""
    times = []
    for job in jobs:
        if is_followed(job, now_s=now_s) and job.expected_s is not None:
            begin_s, end_s = job.expected_s - lead_s, job.expected_s + tolerance_s(job.interval_s)
            times.append((begin_s if begin_s > now_s else end_s) - now_s)
    near = [time_s for time_s in times if 0 <= time_s < AGAIN_S_MAX]
    return min(near) if near else None


def is_followed(job: JobState, *, now_s: float) -> bool:
    """Whether a job's forecasts have been good, and its bursts used."""
    return job.foretold >= GOOD_IN_A_ROW and not is_barred(job, now_s=now_s) and max(job.burst_bytes, default=0) > 0
