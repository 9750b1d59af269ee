"""From jobs' allocations to leaves: whatever the class has, the kernel can be given it."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

from broker.enforce.shapes import RATE_BITS_PER_S_MIN, shape_of
from broker.law.decide import decide
from broker.law.state import State
from broker.model.values import ClassSample, InterfaceAllocation, InterfaceSample, JobKey, JobSample, Measurements
from broker.policy.toml import load
from broker.policy.types import CLASS_NAMES
from shaping.model.names import JOB_MINOR
from shaping.model.observations import Capabilities
from shaping.plan.desired_tree import desired_tree
from shaping.plan.leaves import RATE_BITS_PER_S_MIN as LEAF_BITS_PER_S_MIN

UID = 1000
POLICY = load('version = 1\n[[interface]]\nname = "eth0"\n[job.b]\nweight = 3\n[job.c]\nguarantee = "50 %"\n')


def allocated(capacity_bits_per_s: int, *jobs: str, waiting: bool = True) -> InterfaceAllocation:
    """What is decided on a link of that capacity for jobs that wait for more."""
    state = State()
    for tick in (1, 2):
        classes = tuple(ClassSample(name, 0, 10**6 * (waiting and name == "compute")) for name in CLASS_NAMES)
        samples = tuple(JobSample(job, "compute", 0, 1, waiting, 0, 10**6 * waiting, UID) for job in jobs)
        sample = InterfaceSample("eth0", capacity_bits_per_s, 0.0, classes, jobs=samples)
        decision = decide(now_s=tick / 10, state=state, measurements=Measurements((sample,)), policy=POLICY)
        state = decision.state
    return decision.allocation.interfaces[0]


@settings(max_examples=150, deadline=None)
@given(
    st.integers(64_000, 10**11),
    st.lists(st.sampled_from("abcdefghij"), unique=True, max_size=8),
    st.booleans(),
    st.permutations(range(len(JOB_MINOR))),
)
def test_every_allocation_with_jobs_becomes_a_tree(
    capacity_bits_per_s: int, jobs: list[str], waiting: bool, order: list[int]
) -> None:
    allocation = allocated(capacity_bits_per_s, *jobs, waiting=waiting)
    slots: dict[JobKey, int] = dict(zip([(UID, job) for job in jobs], order, strict=False))
    shape = shape_of(allocation, rules=(), slots=slots)
    desired_tree(shape, Capabilities())
    assert [job.slot for job in shape.jobs] == sorted(slots.values())
    compute = next(entry for entry in shape.classes if entry.name == "compute")
    assert all(LEAF_BITS_PER_S_MIN <= job.rate_bits_per_s <= job.ceil_bits_per_s for job in shape.jobs)
    assert all(job.ceil_bits_per_s <= compute.ceil_bits_per_s for job in shape.jobs)
    assert compute.rate_bits_per_s >= RATE_BITS_PER_S_MIN
    assert shape == shape_of(allocation, rules=(), slots=slots)


def test_leaves_have_the_jobs_rates_and_weights_and_jobs_without_a_slot_have_none() -> None:
    allocation = allocated(100_000_000, "a", "b", "c")
    by_name = {one.job: one for one in allocation.jobs}
    shape = shape_of(allocation, rules=(), slots={(UID, "b"): 1, (UID, "c"): 0, (UID, "gone"): 2, (UID + 1, "a"): 3})
    assert [job.slot for job in shape.jobs] == [0, 1]
    assert shape.jobs[1].weight == pytest.approx(3 * shape.jobs[0].weight)
    assert sum(one.class_weight for one in allocation.jobs) == pytest.approx(3.0), "one user, as his heaviest job"
    for job, name in zip(shape.jobs, "cb", strict=True):
        assert abs(job.rate_bits_per_s - by_name[name].rate_bits_per_s) <= LEAF_BITS_PER_S_MIN


def test_jobs_that_come_and_go_and_change_their_weight_are_written() -> None:
    allocation = allocated(100_000_000, "a", "b")
    one = shape_of(allocation, rules=(), slots={(UID, "a"): 0})
    assert one != shape_of(allocation, rules=(), slots={(UID, "a"): 0, (UID, "b"): 1})
    assert one != shape_of(allocation, rules=(), slots={(UID, "a"): 3})
    heavier = replace(allocation, jobs=tuple(replace(job, class_weight=2.0) for job in allocation.jobs))
    assert one != shape_of(heavier, rules=(), slots={(UID, "a"): 0})
