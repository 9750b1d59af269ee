"""What a decision makes ready for a burst that begins before the next one: what that one asks for, and for nobody
else."""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence

import pytest
from inflow_link import Inflow, Storage
from msgspec.structs import replace

from broker.law.bursts.inbound import NEW_S, UNUSED_MAX
from broker.law.decide import decide
from broker.law.decision import Decision
from broker.law.holds.prepared import JOBS_PER_USER_MAX, bytes_min
from broker.law.recording import header_line, replay, tick_line
from broker.law.state import State
from broker.model.leases import Hold
from broker.model.values import Burst, ClassSample, InterfaceSample, Measurements, SenderSample
from broker.policy.toml import load
from broker.policy.types import CLASS_NAMES

LINK = 100_000_000
POLICY = load('version = 1\n[[interface]]\nname = "a"\ningress = "100 Mbit/s"\n')
SIZE_BYTES = 4_000_000


def asked(holds: Sequence[Hold]) -> Mapping[str, int]:
    return {hold.address: hold.rate_bits_per_s for hold in holds}


@pytest.mark.parametrize("wants_bits_per_s", [1e9, 10e6])
def test_what_is_ready_is_what_the_decision_about_the_burst_asks_for(wants_bits_per_s: float) -> None:
    senders = [Storage("10.0.0.3", wants_bits_per_s), Storage("10.0.0.4")]
    decisions = Inflow(POLICY, senders).run(15).decisions
    begins = [
        (before, after)
        for before, after in itertools.pairwise(decisions)
        if not before.state.ingress[0].bursts and after.state.ingress[0].bursts and before.ready
    ]
    assert len(begins) >= 15, "nearly every burst of 30, the first two aside"
    for before, after in begins:
        (ready,) = before.ready
        assert (ready.interface, ready.job) == ("a", after.state.ingress[0].bursts[0].job)
        wanted = asked(after.holds)
        assert asked(ready.holds) == {address: pytest.approx(rate, rel=0.1) for address, rate in wanted.items()}
        assert {hold.reason.code for hold in ready.holds} == {"burst-begins"}


class Host:
    """A host to which one sender brings storage, tick by tick."""

    def __init__(self) -> None:
        self.tick, self.state, self.sent_bytes, self.came_bytes = 0, State(), 0, 0
        self.lines = [header_line(policy=POLICY, state=self.state)]

    def step(self, bursts: Sequence[Burst] = ()) -> Decision:
        self.tick += 1
        sample = InterfaceSample(
            "a", None, 0.0,
            tuple(ClassSample(name, self.sent_bytes if name == "compute" else 0) for name in CLASS_NAMES),
            received_bytes=self.tick * 2 * 10**6 + self.came_bytes, bursts=tuple(bursts),
            senders=(SenderSample("10.0.0.3", "storage", self.tick * 10**6, 0.0, 0.01, "yes", None, False),),
        )  # fmt: skip
        now_s, measurements = 0.5 * self.tick, Measurements((sample,))
        decision = decide(now_s=now_s, state=self.state, measurements=measurements, policy=POLICY)
        self.lines.append(tick_line(now_s=now_s, measurements=measurements, decision=decision))
        self.state = decision.state
        return decision

    def burst(
        self, number: int, *, job: str = "job", uid: int = 1000, sends: bool = True, comes: bool = True,
        age_s: float = 0.0, remaining_s: float = 0.2,
    ) -> Decision:  # fmt: skip
        """One burst and the decision after its end. `comes`: whether as much comes in meanwhile."""
        self.step((Burst(job, number, SIZE_BYTES, age_s, remaining_s, uid=uid),))
        self.sent_bytes += SIZE_BYTES * sends
        self.came_bytes += SIZE_BYTES * (sends and comes)
        return self.step()


def test_a_job_is_ready_once_a_burst_of_it_was_measured_and_none_is_under_way() -> None:
    host = Host()
    assert host.step().ready == ()
    (ready,) = host.burst(1).ready
    assert (ready.interface, ready.uid, ready.job, ready.bytes_min) == ("a", 1000, "job", bytes_min(95_000_000))
    assert host.step((Burst("job", 2, SIZE_BYTES, 0.0, 0.2, uid=1000),)).ready == ()


def test_a_job_that_has_lost_its_privilege_is_not_ready() -> None:
    host = Host()
    assert host.burst(0).ready
    for number in range(1, 4):
        decision = host.burst(number, sends=False)
    assert "announcements-unused" in {alarm.code for alarm in decision.alarms}
    assert decision.ready == ()


@pytest.mark.parametrize("remaining_s", [0.5, 0.0, -0.004])
def test_a_job_whose_bursts_bring_nothing_is_not_ready_for_long_whatever_their_deadline(remaining_s: float) -> None:
    """Others are asked before the decision, which may come when a deadline of 0 s is over."""
    host = Host()
    assert host.burst(0).ready
    for number in range(1, UNUSED_MAX + 1):
        decision = host.burst(number, comes=False, age_s=0.005, remaining_s=remaining_s)
        (job,) = decision.state.ingress[0].jobs
        assert job.unused == number
    assert decision.ready == ()
    assert host.burst(9, age_s=0.005, remaining_s=remaining_s).ready, "one that brings something is believed again"


def test_an_old_burst_whose_deadline_was_over_before_it_was_seen_is_not_followed() -> None:
    host = Host()
    host.burst(0)
    decision = host.step((Burst("job", 1, SIZE_BYTES, NEW_S, -0.004, uid=1000),))
    assert decision.state.ingress[0].bursts == ()


def test_a_job_of_small_bursts_is_not_ready() -> None:
    host = Host()
    host.burst(1)
    few = tuple(replace(job, burst_bytes=(bytes_min(LINK) // 3,)) for job in host.state.interfaces[0].jobs)
    host.state = replace(host.state, interfaces=(replace(host.state.interfaces[0], jobs=few),))
    assert host.step().ready == ()


def test_one_user_s_jobs_leave_room_for_another_s() -> None:
    host = Host()
    host.burst(1, job="other", uid=1001)
    for number in range(2 * JOBS_PER_USER_MAX):
        decision = host.burst(number, job=f"job-{number}")
    users = [ready.uid for ready in decision.ready]
    assert users.count(1000) == JOBS_PER_USER_MAX
    assert users.count(1001) == 1


def test_what_was_ready_is_recorded_and_replayed_to_the_byte() -> None:
    host = Host()
    for number in range(5):
        assert host.burst(number).ready
    assert replay(host.lines).first_difference is None
    last = host.lines[-1]
    assert '"ready":[{' in last
    tampered = [*host.lines[:-1], last.replace('"bytes_min":', '"bytes_min":1')]
    assert replay(tampered).first_difference == len(host.lines)
