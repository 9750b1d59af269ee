"""What jobs get of their class and connections of their job: by weight, promise, ceiling and what they want."""

from __future__ import annotations

import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

from broker.law.decide import decide
from broker.law.decision import Decision
from broker.law.recording import header_line, replay, tick_line
from broker.law.sharing.available_rate import offered_bits_per_s
from broker.law.sharing.jobs import JOBS_MAX, LEAVES_PART, NEW_S, PROMISED_PART, policy_of
from broker.law.state import State
from broker.model.values import (
    Burst,
    ClassSample,
    FlowSample,
    InterfaceSample,
    JobAllocation,
    JobSample,
    Measurements,
)
from broker.policy.toml import load
from broker.policy.types import CLASS_NAMES, JobPolicy, Policy, Share

CAPACITY = 97_000_000
UID = 1000
TEXT = 'version = 1\n[[interface]]\nname = "a"\negress = "100 Mbit/s"\n'


class Host:
    """Counters of compute's jobs that grow at given rates, and the decisions on them."""

    def __init__(self, policy: str = "", *, leaves: bool = True) -> None:
        self.policy: Policy = load(TEXT + policy)
        self.state = State()
        self.tick = 0
        self.sent: dict[str, int] = {}
        self.leaves = leaves

    def run(
        self, rates: dict[str, int], *, for_s: float = 1.0, waiting: tuple[str, ...] = (), idle: tuple[str, ...] = (),
        bursts: tuple[Burst, ...] = (), traffic_class: str = "compute",
    ) -> Decision:  # fmt: skip
        """Args: `waiting`: jobs with a backlog in their leaf; `idle`: jobs that are there and send nothing."""
        for _ in range(round(for_s * 10)):
            self.tick += 1
            for job, rate in rates.items():
                self.sent[job] = self.sent.get(job, 0) + rate // 80
            samples = tuple(
                JobSample(
                    job, traffic_class, self.sent.get(job, 0), 1, rates.get(job, 0) > 0,
                    self.sent.get(job, 0) if self.leaves else None,
                    (100_000 if job in waiting else 0) if self.leaves else None, UID,
                )
                for job in (*rates, *idle)
            )  # fmt: skip
            decision = self.decide(samples, bursts, any(waiting), traffic_class)
        return decision

    def decide(
        self, jobs: tuple[JobSample, ...], bursts: tuple[Burst, ...], waiting: bool, traffic_class: str
    ) -> Decision:  # fmt: skip
        total = sum(self.sent.values())
        classes = tuple(
            ClassSample(name, *((total, 100_000 * waiting) if name == traffic_class else (0, 0)))
            for name in CLASS_NAMES
        )
        sample = InterfaceSample("a", None, 0.0, classes, (), bursts, jobs=jobs)
        decision = decide(
            now_s=self.tick / 10, state=self.state, measurements=Measurements((sample,)), policy=self.policy
        )
        self.state = decision.state
        return decision


def jobs_of(decision: Decision) -> dict[str, JobAllocation]:
    return {entry.job: entry for entry in decision.allocation.interfaces[0].jobs}


def shares(decision: Decision) -> dict[str, int]:
    return {job: entry.share_bits_per_s for job, entry in jobs_of(decision).items()}


def codes(decision: Decision) -> dict[str, str]:
    return {job: entry.reason.code for job, entry in jobs_of(decision).items()}


def test_greedy_jobs_divide_their_class_equally_and_two_to_one_by_weight() -> None:
    decision = Host().run({"a": 48_500_000, "b": 48_500_000}, waiting=("a", "b"))
    found = shares(decision)
    offered = offered_bits_per_s(decision.allocation.interfaces[0], "compute")
    assert found["a"] == found["b"] == offered // 2
    assert codes(decision) == {"a": "shares-its-class", "b": "shares-its-class"}
    weighted = Host("[job.a]\nweight = 2\n").run({"a": 48_500_000, "b": 48_500_000}, waiting=("a", "b"))
    found = shares(weighted)
    assert found["a"] == pytest.approx(2 * found["b"], abs=3)
    leaf = jobs_of(weighted)
    assert (leaf["a"].weight, leaf["b"].weight) == (2.0, 1.0)
    assert leaf["a"].rate_bits_per_s == pytest.approx(2 * leaf["b"].rate_bits_per_s, abs=3)


def test_what_a_job_does_not_want_goes_to_the_others_once_that_is_known() -> None:
    host = Host()
    decision = host.run({"a": 80_000_000, "b": 1_000_000}, waiting=("a",), for_s=1)
    assert shares(decision)["b"] == shares(decision)["a"], "b is new: it may want all"
    decision = host.run({"a": 80_000_000, "b": 1_000_000}, waiting=("a",), for_s=NEW_S)
    found = shares(decision)
    assert found["b"] == pytest.approx(1_100_000, rel=0.02)
    assert found["a"] > 90_000_000
    assert codes(decision) == {"a": "shares-its-class", "b": "gets-what-it-wants"}


def test_a_job_that_starts_again_after_a_pause_counts_as_new() -> None:
    host = Host()
    host.run({"a": 80_000_000, "b": 1_000_000}, waiting=("a",), for_s=NEW_S + 1)
    silent = host.run({"a": 90_000_000}, waiting=("a",), idle=("b",), for_s=2 * NEW_S)
    assert codes(silent)["b"] == "idle"
    assert shares(silent)["b"] < 10_000
    again = host.run({"a": 80_000_000, "b": 1_000_000}, waiting=("a",), for_s=0.3)
    assert shares(again)["b"] == shares(again)["a"]


def test_a_guarantee_counts_before_weight_and_is_the_least_rate_of_the_leaf() -> None:
    policy = '[job.small]\nguarantee = "20 %"\n[job.big]\nweight = 9\n'
    decision = Host(policy).run({"small": 10_000_000, "big": 80_000_000}, waiting=("small", "big"))
    small, big = jobs_of(decision)["small"], jobs_of(decision)["big"]
    assert small.share_bits_per_s == small.guarantee_bits_per_s == CAPACITY // 5
    assert small.rate_bits_per_s == CAPACITY // 5
    assert (small.reason.code, big.reason.code) == ("job-guaranteed", "shares-its-class")
    compute = next(one for one in decision.allocation.interfaces[0].classes if one.name == "compute")
    assert small.rate_bits_per_s + big.rate_bits_per_s <= LEAVES_PART * compute.rate_bits_per_s


def test_a_ceiling_holds_and_leaves_the_rest_to_the_others() -> None:
    decision = Host('[job.a]\nceiling = "10 Mbit/s"\n').run({"a": 9_000_000, "b": 80_000_000}, waiting=("a", "b"))
    a, b = jobs_of(decision)["a"], jobs_of(decision)["b"]
    assert (a.ceil_bits_per_s, a.share_bits_per_s, a.reason.code) == (10_000_000, 10_000_000, "held-by-ceiling")
    assert b.share_bits_per_s > 80_000_000


def test_jobs_promised_more_than_their_class_raise_an_alarm_and_are_scaled() -> None:
    host = Host('[job."*"]\nguarantee = "40 %"\n')
    assert not host.run({"a": 10_000_000}, waiting=("a",)).alarms
    decision = host.run({"a": 10_000_000, "b": 10_000_000}, waiting=("a", "b"))
    assert [(alarm.code, alarm.subject) for alarm in decision.alarms] == [("job-guarantees-scaled", "a/compute")]
    compute = next(one for one in decision.allocation.interfaces[0].classes if one.name == "compute")
    rates = [entry.rate_bits_per_s for entry in decision.allocation.interfaces[0].jobs]
    assert sum(rates) <= PROMISED_PART * compute.rate_bits_per_s
    assert rates[0] == pytest.approx(rates[1], abs=2)


def test_an_announced_burst_is_wanted_before_it_is_sent() -> None:
    host = Host()
    host.run({"a": 80_000_000, "b": 100_000}, waiting=("a",), for_s=NEW_S + 1)
    burst = Burst("b", 1, 10_000_000, 0.0, 0.5, uid=UID)
    decision = host.run({"a": 80_000_000, "b": 100_000}, waiting=("a",), bursts=(burst,), for_s=0.2)
    assert shares(decision)["b"] == pytest.approx(shares(decision)["a"], rel=0.1)


def test_a_job_without_a_leaf_counts_by_what_it_reports_and_gaining_one_is_no_traffic() -> None:
    host = Host(leaves=False)
    decision = host.run({"a": 8_000_000}, for_s=NEW_S + 1)
    assert jobs_of(decision)["a"].throughput_bits_per_s == pytest.approx(8_000_000, rel=0.01)
    assert jobs_of(decision)["a"].backlog_bytes is None
    host.leaves, host.sent["a"] = True, 10**12
    decision = host.run({"a": 8_000_000}, for_s=0.3)
    assert jobs_of(decision)["a"].throughput_bits_per_s == pytest.approx(8_000_000, rel=0.01)


def test_storages_jobs_have_shares_by_weight_too() -> None:
    decision = Host("[job.a]\nweight = 3\n").run(
        {"a": 40_000_000, "b": 40_000_000}, waiting=("a", "b"), traffic_class="storage"
    )
    assert shares(decision)["a"] == pytest.approx(3 * shares(decision)["b"], abs=4)


def test_only_so_many_jobs_are_told_apart_and_those_that_send_come_first() -> None:
    host = Host()
    idle = tuple(f"a{number:03}" for number in range(2 * JOBS_MAX))
    decision = host.run({"z": 10_000_000}, idle=idle)
    assert len(decision.allocation.interfaces[0].jobs) == JOBS_MAX
    assert len(host.state.interfaces[0].job_uses) == JOBS_MAX
    assert "z" in jobs_of(decision)


def test_no_number_of_other_names_takes_a_jobs_leaf_away() -> None:
    host = Host('[job.mine]\nguarantee = "10 %"\n')
    host.run({"mine": 10_000_000})
    own = JobSample("mine", "compute", 0, 1, False, host.sent["mine"], 0, UID)
    others = tuple(JobSample(f"!{number:03}", "compute", 10**9, 1, True) for number in range(2 * JOBS_MAX))
    decision = host.decide((*others, own), (), False, "compute")
    assert len(decision.allocation.interfaces[0].jobs) == JOBS_MAX
    assert jobs_of(decision)["mine"].rate_bits_per_s >= CAPACITY // 10


@pytest.mark.parametrize(
    ("name", "found"), [("nightly-7", "nightly-*"), ("nightly-big", "nightly-big"), ("b", "?"), ("bb", "bb")]
)
def test_a_jobs_own_name_comes_before_patterns_and_the_first_pattern_before_others(name: str, found: str) -> None:
    entries = tuple(JobPolicy(one) for one in ("nightly-*", "?", "nightly-big", "[b]"))
    assert policy_of(entries, name, 1000).name == found


def test_an_entry_with_a_user_is_for_his_jobs_alone() -> None:
    his, pattern = JobPolicy("big", 2.0, uid=1000), JobPolicy("b*", 3.0)
    assert policy_of((pattern, his), "big", 1000) == his
    assert policy_of((pattern, his), "big", 1001) == pattern
    assert policy_of((his,), "big", 1001) == JobPolicy("big")


def of_two_users(policy: str, *, sends: tuple[bool, bool]) -> tuple[JobAllocation, JobAllocation]:
    """What jobs of one name get: of user 1000, and of 1001, who took the name too; beside another one that waits."""
    host = Host(policy)
    for host.tick in range(1, round(10 * NEW_S) + 20):
        counters = [host.tick * 300_000 * sending for sending in sends]
        samples = (
            JobSample("j", "compute", counters[0], 1, sends[0], counters[0], 50_000 * sends[0], uid=1000),
            JobSample("j", "compute", counters[1], 1, sends[1], counters[1], 50_000 * sends[1], uid=1001),
            JobSample("k", "compute", host.tick * 900_000, 1, True, host.tick * 900_000, 50_000, uid=1000),
        )
        host.sent["all"] = sum(counters) + host.tick * 900_000
        decision = host.decide(samples, (), True, "compute")
    assert not decision.alarms
    found = {entry.key: entry for entry in decision.allocation.interfaces[0].jobs}
    return found[1000, "j"], found[1001, "j"]


def test_who_takes_the_name_gets_nothing_of_what_is_promised_to_a_users_job() -> None:
    owner, other = of_two_users('[job.j]\nguarantee = "50 %"\nuid = 1000\n', sends=(True, True))
    assert owner.guarantee_bits_per_s == CAPACITY // 2
    assert min(owner.rate_bits_per_s, owner.share_bits_per_s) >= owner.guarantee_bits_per_s
    assert other.guarantee_bits_per_s == 0
    assert other.share_bits_per_s <= owner.share_bits_per_s
    assert other.rate_bits_per_s < owner.rate_bits_per_s


def test_a_promise_without_a_user_is_made_once_and_divided_among_those_who_want_it() -> None:
    policy = '[job.j]\nguarantee = "30 %"\n'
    whole = 3 * CAPACITY // 10
    assert [one.guarantee_bits_per_s for one in of_two_users(policy, sends=(True, True))] == [whole // 2] * 2
    assert [one.guarantee_bits_per_s for one in of_two_users(policy, sends=(True, False))] == [whole, 0]
    assert [one.guarantee_bits_per_s for one in of_two_users(policy, sends=(False, False))] == [whole // 2] * 2


def test_another_users_burst_of_the_same_name_is_not_wanted_by_this_ones_job() -> None:
    host = Host()
    for host.tick in range(1, round(10 * NEW_S) + 20):
        host.sent["all"] = host.tick * 1_000_000
        waiting = JobSample("k", "compute", 0, 1, True, host.sent["all"], 50_000, uid=1000)
        silent = tuple(JobSample("j", "compute", 0, 1, False, 0, 0, uid=uid) for uid in (1000, 1001))
        burst = Burst("j", 1, 10_000_000, 0.0, 0.5, uid=1001)
        decision = host.decide((waiting, *silent), (burst,) * (host.tick > 10 * NEW_S + 15), True, "compute")
    found = {entry.key: entry for entry in decision.allocation.interfaces[0].jobs}
    assert found[1001, "j"].share_bits_per_s > 1_000_000
    assert found[1000, "j"].share_bits_per_s < 10_000


def test_the_order_of_jobs_means_nothing_and_a_recording_replays() -> None:
    host = Host('[job.a]\nweight = 2\nguarantee = "10 %"\n')
    lines = [header_line(policy=host.policy, state=host.state)]
    chance = random.Random(7)
    shuffled, state = State(), State()
    for tick in range(1, 80):
        jobs = [
            JobSample(job, "compute", tick * rate, 1, True, tick * rate if job != "c" else None, 0)
            for job, rate in (("a", 90_000), ("b", 200_000), ("c", 70_000))
        ]
        flows = [
            FlowSample(f"s-{job}/{peer}:1", peer, "compute", "report", 0.0, 0.01, delivered_bytes=tick * 9_000, job=job)
            for job in "abc"
            for peer in ("10.0.0.2", "10.0.0.3")
        ]
        classes = tuple(ClassSample(name, tick * 360_000 * (name == "compute")) for name in CLASS_NAMES)
        measured = InterfaceSample("a", None, 0.0, classes, tuple(flows), jobs=tuple(jobs))
        decision = decide(now_s=tick / 10, state=state, measurements=Measurements((measured,)), policy=host.policy)
        lines.append(tick_line(now_s=tick / 10, measurements=Measurements((measured,)), decision=decision))
        state = decision.state
        chance.shuffle(jobs)
        chance.shuffle(flows)
        other = replace(measured, jobs=tuple(jobs), flows=tuple(flows))
        again = decide(now_s=tick / 10, state=shuffled, measurements=Measurements((other,)), policy=host.policy)
        shuffled = again.state
        assert again == decision
    assert replay(lines).first_difference is None


@settings(max_examples=100, deadline=None)
@given(
    st.dictionaries(
        st.sampled_from(["a", "b", "c", "*"]),
        st.tuples(st.floats(0.01, 1000), st.integers(0, 60), st.integers(1, 100)),
    ),
    st.lists(
        st.builds(
            JobSample,
            job=st.sampled_from(["a", "b", "c", "d", ""]),
            traffic_class=st.sampled_from([*CLASS_NAMES, "unknown"]),
            delivered_bytes=st.integers(0, 10**15),
            sends=st.booleans(),
            leaf_sent_bytes=st.none() | st.integers(0, 10**15),
            leaf_backlog_bytes=st.none() | st.integers(0, 10**8),
            uid=st.sampled_from([0, 1000, 1001]),
        ),
        max_size=8,
        unique_by=lambda entry: (entry.key, entry.traffic_class),
    ),
    st.integers(0, 10**8),
)
def test_whatever_jobs_do_their_rates_fit_into_their_class_and_their_shares_into_its_offer(
    policies: dict[str, tuple[float, int, int]], jobs: list[JobSample], backlog: int
) -> None:
    policy = load(TEXT)
    policy = replace(
        policy,
        jobs=tuple(
            JobPolicy(name, weight, Share(min(low, high) / 100), Share(high / 100))
            for name, (weight, low, high) in policies.items()
        ),
    )
    state = State()
    for tick in range(1, 4):
        classes = tuple(ClassSample(name, tick * 10**5, backlog) for name in CLASS_NAMES)
        sample = InterfaceSample("a", None, 0.0, classes, jobs=tuple(jobs))
        decision = decide(now_s=tick / 10, state=state, measurements=Measurements((sample,)), policy=policy)
        state = decision.state
        (interface,) = decision.allocation.interfaces
        for entry in interface.classes:
            mine = [one for one in interface.jobs if one.traffic_class == entry.name]
            assert sum(one.rate_bits_per_s for one in mine) <= entry.rate_bits_per_s
            for name in {one.job for one in mine}:
                promise = policy_of(policy.jobs, name, 0).guarantee.of(interface.capacity_bits_per_s)
                assert sum(one.guarantee_bits_per_s for one in mine if one.job == name) <= promise
            assert sum(one.share_bits_per_s for one in mine) <= offered_bits_per_s(interface, entry.name)
            assert all(one.rate_bits_per_s <= one.ceil_bits_per_s <= entry.ceil_bits_per_s for one in mine)
