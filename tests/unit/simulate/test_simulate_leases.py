"""What brokers ask of each other takes its time on the way, ends by itself, and keeps a receiver's link free."""

from __future__ import annotations

import statistics
from dataclasses import replace
from pathlib import Path

import pytest

from broker.law.recording import replay
from broker.model.leases import Hold, HoldOutcome
from broker.model.reasons import Reason
from broker.policy.toml import load as load_policy
from tools.simulate import world
from tools.simulate.__main__ import NO_POLICY
from tools.simulate.leases import Leases
from tools.simulate.scenario import Scenario, load
from tools.simulate.world import Outcome, simulate

WAY_S = 0.02
WHY = Reason("test", "as a test wants it")
RECEIVER = Path(world.__file__).with_name("receiver.toml")


def hold(rate_bits_per_s: int, *, to: str = "s") -> Hold:
    return Hold(to, "storage", rate_bits_per_s, 10_000_000, 0.9, WHY)


@pytest.fixture
def leases() -> Leases:
    """Of a receiver, number 0, and a sender, number 1."""
    return Leases(["r", "s"], lambda source, to: WAY_S)


def rates(leases: Leases, now_s: float) -> list[int]:
    return [lease.rate_bits_per_s for lease in leases.of(1, now_s=now_s)]


def test_a_hold_is_a_lease_one_way_later_and_its_host_is_told(leases: Leases) -> None:
    leases.ask(0, [hold(1_000_000)], now_s=1.0)
    assert (leases.deliver(1.01), rates(leases, 1.01)) == (set(), [])
    assert (leases.deliver(1.02), rates(leases, 1.02)) == ({1}, [1_000_000])
    (lease,) = leases.of(1, now_s=1.1)
    assert (lease.address, lease.age_s, lease.remaining_s) == ("r", pytest.approx(0.08), pytest.approx(0.82))


def test_the_same_said_again_only_lasts_longer(leases: Leases) -> None:
    for now_s in (1.0, 1.5):
        leases.ask(0, [hold(1_000_000)], now_s=now_s)
        assert leases.deliver(now_s + WAY_S) == ({1} if now_s == 1.0 else set())
    assert rates(leases, 2.4) == [1_000_000]
    leases.ask(0, [hold(2_000_000)], now_s=2.4)
    assert (leases.deliver(2.42), rates(leases, 2.42)) == ({1}, [2_000_000])


def test_a_lease_ends_when_nobody_asks_any_more_and_by_itself(leases: Leases) -> None:
    leases.ask(0, [hold(1_000_000)], now_s=1.0)
    leases.deliver(1.02)
    leases.ask(0, [], now_s=1.1)
    assert rates(leases, 1.11) == [1_000_000]
    assert (leases.deliver(1.12), rates(leases, 1.12)) == ({1}, [])
    leases.ask(0, [hold(1_000_000)], now_s=2.0)
    leases.deliver(2.02)
    assert (rates(leases, 2.9), rates(leases, 2.93)) == ([1_000_000], [])


def test_a_verdict_comes_back_as_late_and_counts_while_something_is_asked(leases: Leases) -> None:
    leases.ask(0, [hold(1_000_000)], now_s=1.0)
    leases.answer(1, [HoldOutcome("r", "r", 1, True, 1_500_000, WHY)], now_s=1.02)
    leases.deliver(1.03)
    assert leases.verdict(0, "s") is None
    leases.deliver(1.04)
    found = leases.verdict(0, "s")
    assert found is not None
    assert found.rate_bits_per_s == 1_500_000
    leases.ask(0, [], now_s=1.1)
    assert leases.verdict(0, "s") is None


def short() -> Scenario:
    return replace(load(RECEIVER), seconds=15.0)


def run(control: str, record: Path | None = None) -> Outcome:
    return simulate(short(), control, policy=load_policy(NO_POLICY), record=record)


def step_s(outcome: Outcome) -> float:
    return statistics.median(lasted_s for at_s, lasted_s in outcome.steps["J"] if at_s > 5)


def test_a_receivers_training_is_kept_by_its_senders_brokers_and_storage_has_the_rest(tmp_path: Path) -> None:
    idle, alone, leased = run("idle"), run("brokered"), run("leased", tmp_path)
    assert step_s(alone) > 1.5 * step_s(idle)
    assert step_s(leased) < 1.1 * step_s(idle)
    trained = leased.delivered_bits["compute"] / 3  # of three hosts one is the receiver
    assert leased.delivered_bits["storage"] > 0.8 * (0.95 * 100e6 * 10 - trained)
    recordings = sorted(tmp_path.iterdir())
    assert len(recordings) == 5
    for path in recordings:
        with path.open() as lines:
            assert replay(lines).first_difference is None


def test_rounds_so_far_apart_that_each_meets_a_full_queue_are_not_slowed_by_their_own_brokers() -> None:
    """After 10 s without training nobody is held, and a queue of 0.1 s stands at the receiver when the next burst
    begins. To take it for its own way out's took each sender to a fifth: 0.9 s instead of 0.2."""
    scenario = short()
    rare = replace(scenario, seconds=30.0, jobs=tuple(replace(job, think_s=12.0) for job in scenario.jobs))
    outcome = simulate(rare, "leased", policy=load_policy(NO_POLICY))
    bursts_s = [lasted_s - 12.0 for at_s, lasted_s in outcome.steps["J"] if at_s > 12]
    assert bursts_s
    assert max(bursts_s) < 0.4
