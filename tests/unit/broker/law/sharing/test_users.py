"""A class is divided among users first: no number of job names makes a user's part more."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from broker.enforce.shapes import shape_of
from broker.law.decide import decide
from broker.law.sharing.jobs import IDLE_PART, JOBS_MAX, NEW_S
from broker.law.sharing.water_filling import Claim, allocate, allocate_by_user
from broker.law.state import State
from broker.model.values import (
    ClassSample,
    InterfaceAllocation,
    InterfaceSample,
    JobAllocation,
    JobSample,
    Measurements,
)
from broker.policy.toml import load
from broker.policy.types import CLASS_NAMES
from shaping.model.names import JOB_MINOR
from shaping.model.observations import Capabilities
from shaping.plan.desired_tree import desired_tree

TEXT = 'version = 1\n[[interface]]\nname = "a"\negress = "100 Mbit/s"\n'
MANY, ONE = 1001, 2000
Jobs = dict[tuple[int, str], int]
"""What each job, by user and name, sends a second; more than 1 Mbit/s waits for more."""


def allocated(jobs: Jobs, policy: str = "") -> InterfaceAllocation:
    """What is decided once what the jobs want is known."""
    state, used = State(), load(TEXT + policy)
    for tick in range(1, round(10 * NEW_S) + 20):
        samples = tuple(
            JobSample(name, "compute", 0, 1, rate > 0, tick * rate // 80, 50_000 * (rate > 10**6), uid)
            for (uid, name), rate in jobs.items()
        )
        total = tick * sum(jobs.values()) // 80
        classes = tuple(ClassSample(name, *((total, 10**6) if name == "compute" else (0, 0))) for name in CLASS_NAMES)
        sample = InterfaceSample("a", None, 0.0, classes, jobs=samples)
        decision = decide(now_s=tick / 10, state=state, measurements=Measurements((sample,)), policy=used)
        state = decision.state
    return decision.allocation.interfaces[0]


def of_user(interface: InterfaceAllocation, uid: int) -> list[JobAllocation]:
    return [one for one in interface.jobs if one.uid == uid]


def total(entries: list[JobAllocation], figure: str) -> float:
    return float(sum(getattr(one, figure) for one in entries))


SIX_AND_ONE: Jobs = {**{(MANY, f"j{number}"): 15_000_000 for number in range(6)}, (ONE, "train"): 15_000_000}


def test_six_names_of_one_user_have_together_what_one_of_another_has() -> None:
    interface = allocated(SIX_AND_ONE)
    mine, his = of_user(interface, ONE), of_user(interface, MANY)
    for figure in ("rate_bits_per_s", "share_bits_per_s", "class_weight"):
        assert total(mine, figure) == pytest.approx(total(his, figure), rel=1e-4)
    assert [one.share_bits_per_s for one in his] == pytest.approx([mine[0].share_bits_per_s / 6] * 6, rel=1e-4)


def test_the_kernel_s_leaves_are_given_rates_and_turns_by_user() -> None:
    interface = allocated(SIX_AND_ONE)
    slots: dict[tuple[int | None, str], int] = {key: slot for slot, key in enumerate(SIX_AND_ONE)}
    tree = desired_tree(shape_of(interface, rules=(), slots=slots), Capabilities(fq_codel=True))
    leaf = {spec.minor: spec for spec in tree.classes}
    his = [leaf[JOB_MINOR[slots[key]]] for key in SIX_AND_ONE if key[0] == MANY]
    mine = leaf[JOB_MINOR[slots[ONE, "train"]]]
    assert sum(spec.rate_bits_per_s for spec in his) == pytest.approx(mine.rate_bits_per_s, rel=1e-3)
    assert mine.quantum_bytes == pytest.approx(6 * his[0].quantum_bytes, rel=0.01)


def test_weights_divide_a_user_s_part_and_he_counts_as_the_heaviest_job_that_wants_something() -> None:
    policy = "[job.heavy]\nweight = 3\n"
    jobs: Jobs = {(MANY, "heavy"): 30_000_000, (MANY, "light"): 30_000_000, (ONE, "train"): 30_000_000}
    heavy, light, train = (one.share_bits_per_s for one in allocated(jobs, policy).jobs)
    assert heavy == pytest.approx(3 * light, rel=1e-4)
    assert heavy + light == pytest.approx(3 * train, rel=1e-4)
    interface = allocated({**jobs, (MANY, "heavy"): 0}, policy)
    assert total(of_user(interface, MANY), "class_weight") == pytest.approx(1.0)
    assert total(of_user(interface, ONE), "class_weight") == 1.0


def test_what_one_job_of_a_user_does_not_want_his_others_have_before_other_users() -> None:
    interface = allocated({(MANY, "big"): 80_000_000, (MANY, "small"): 1_000_000, (ONE, "train"): 80_000_000})
    his, mine = of_user(interface, MANY), of_user(interface, ONE)
    assert total(his, "share_bits_per_s") == pytest.approx(mine[0].share_bits_per_s, rel=1e-3)
    assert his[0].share_bits_per_s > 40_000_000


def test_an_idle_name_costs_its_user_s_others_a_tenth_of_a_job() -> None:
    jobs: Jobs = {(MANY, "busy"): 50_000_000, (MANY, "idle"): 0, (ONE, "train"): 50_000_000}
    found = {one.key: one for one in allocated(jobs).jobs}
    busy, idle, train = (found[key] for key in jobs)
    assert busy.rate_bits_per_s + idle.rate_bits_per_s == pytest.approx(train.rate_bits_per_s, rel=1e-4)
    assert idle.rate_bits_per_s == pytest.approx(IDLE_PART * busy.rate_bits_per_s, rel=1e-3)
    assert busy.share_bits_per_s == pytest.approx(train.share_bits_per_s, rel=1e-3)


def test_a_promise_to_a_job_is_kept_though_it_is_more_than_its_user_s_part() -> None:
    jobs: Jobs = {
        (MANY, "release"): 30_000_000, (MANY, "other"): 30_000_000, (ONE, "a"): 30_000_000, (ONE + 1, "a"): 30_000_000
    }  # fmt: skip
    interface = allocated(jobs, f'[job.release]\nguarantee = "50 %"\nuid = {MANY}\n')
    found = {one.key: one for one in interface.jobs}
    promised = interface.capacity_bits_per_s // 2
    assert min(found[MANY, "release"].rate_bits_per_s, found[MANY, "release"].share_bits_per_s) >= promised - 1
    mine, another = found[ONE, "a"].share_bits_per_s, found[ONE + 1, "a"].share_bits_per_s
    assert mine == another > 20_000_000


def test_no_number_of_storage_jobs_keeps_another_user_s_from_being_told_apart() -> None:
    crowd = [JobSample(f"a{number:03}", "storage", 0, 1, True, uid=MANY) for number in range(3 * JOBS_MAX)]
    mine = JobSample("z", "storage", 0, 1, False, uid=ONE)
    sample = InterfaceSample("a", None, 0.0, tuple(ClassSample(name, 0) for name in CLASS_NAMES), jobs=(*crowd, mine))
    decision = decide(now_s=0.1, state=State(), measurements=Measurements((sample,)), policy=load(TEXT))
    (interface,) = decision.allocation.interfaces
    assert len(interface.jobs) == JOBS_MAX
    assert of_user(interface, ONE)


CLAIM = st.builds(
    lambda weight, bounds, demand: Claim(weight, 0, min(bounds), max(bounds), demand),
    st.floats(0.01, 100),
    st.tuples(st.integers(0, 10**9), st.integers(0, 10**9)),
    st.integers(0, 10**9),
)


@settings(max_examples=200)
@given(st.lists(st.tuples(st.sampled_from("abc"), CLAIM), min_size=1, max_size=8), st.integers(0, 10**10))
def test_by_user_keeps_what_water_filling_promises(made: list[tuple[str, Claim]], capacity: int) -> None:
    users, claims = [user for user, _ in made], [claim for _, claim in made]
    rates = allocate_by_user(claims, users=users, capacity_bits_per_s=capacity)
    wants = [min(claim.demand_bits_per_s, claim.ceiling_bits_per_s) for claim in claims]
    lows = [min(claim.guarantee_bits_per_s, want) for claim, want in zip(claims, wants, strict=True)]
    assert sum(rates) <= capacity
    assert all(rate <= want for rate, want in zip(rates, wants, strict=True))
    if sum(lows) <= capacity:
        assert sum(rates) >= min(capacity, sum(wants)) - 2 * len(claims)
        assert all(rate >= low for rate, low in zip(rates, lows, strict=True))
    if len(set(users)) in (1, len(users)):
        alone = allocate(claims, capacity_bits_per_s=capacity)
        assert rates == pytest.approx(alone, abs=2 * len(claims))
