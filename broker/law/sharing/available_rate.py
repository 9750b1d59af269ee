"""What one class could send now if it wanted all that it may have: the rate that its sessions are told.

Its share by water-filling would be the wrong figure: that is made of what it wants, and who sends at a rate that he was
told wants no more than that. So what others take is subtracted from the capacity, by the kernel's rule: who goes first
takes what it wants up to its ceiling, who comes after only what it is promised. A class without a backlog takes 1.1
times what it sends now: nothing is kept for the silent, who have their own rate in the kernel when they begin.
"""

from __future__ import annotations

from collections.abc import Collection

from broker.law.sharing.demand import BACKLOG_BYTES_MIN, USAGE_HEADROOM
from broker.law.sharing.water_filling import Claim, allocate_by_user
from broker.model.values import ClassAllocation, InterfaceAllocation, JobAllocation, JobKey


def offered_bits_per_s(interface: InterfaceAllocation, name: str) -> int:
    """What a class could send through an interface, on the wire: from its rate in the kernel to its ceiling there."""
    own = next(entry for entry in interface.classes if entry.name == name)
    taken = sum(_takes(entry, own) for entry in interface.classes if entry.name != name)
    return max(own.rate_bits_per_s, min(own.ceil_bits_per_s, interface.capacity_bits_per_s - taken))


def offered_to_job_bits_per_s(
    interface: InterfaceAllocation, name: str, job: JobKey, *, sending: Collection[JobKey]
) -> int:  # fmt: skip
    """What one job could send of its class' offer if it wanted all: by user, then by weight, against what the others
    want.

    Args:
        name: the class.
        job: `NO_JOB` is the programs that name none; together they count as one user, of weight 1.
        sending: the jobs whose programs report that they send.
    """
    offered = offered_bits_per_s(interface, name)
    known = {entry.key: entry for entry in interface.jobs if entry.traffic_class == name}
    others = sorted({*sending, *known} - {job}, key=lambda one: (one[1], one[0] or 0))
    every = (job, *others)
    claims = [_claim(known.get(one), offered, greedy=one == job) for one in every]
    return allocate_by_user(claims, users=[user for user, _ in every], capacity_bits_per_s=offered)[0]


def _claim(job: JobAllocation | None, offered_bits_per_s: int, *, greedy: bool) -> Claim:
    if job is None:
        return Claim(1.0, 0, 0, offered_bits_per_s, offered_bits_per_s)
    demand = offered_bits_per_s if greedy else job.demand_bits_per_s
    return Claim(job.weight, 0, job.guarantee_bits_per_s, job.ceil_bits_per_s, demand)


def _takes(other: ClassAllocation, own: ClassAllocation) -> int:
    wants = other.demand_bits_per_s
    if other.throughput_bits_per_s is not None and (other.backlog_bytes or 0) < BACKLOG_BYTES_MIN:
        wants = min(wants, int(USAGE_HEADROOM * other.throughput_bits_per_s))
    if other.priority < own.priority:
        return min(wants, other.ceil_bits_per_s)
    if other.priority == own.priority:
        return min(wants, max(other.rate_bits_per_s, other.share_bits_per_s))
    return min(wants, other.rate_bits_per_s)
