"""A simulated group commits what its core lets it commit, and takes churn and mass losses as the protocol says."""

from __future__ import annotations

import json
import random
import statistics

import pytest
from typer.testing import CliRunner

from tools.simulate import members, volatile_group
from tools.simulate.members import churn, mass_loss
from tools.simulate.volatile_group import Churn, Network, SimulatedGroup
from transport.volatile.membership.succession import SIDE_S
from transport.volatile.protocol import commit
from transport.volatile.protocol.commit import State
from transport.volatile.protocol.view import DIGEST_BYTES

NEAR = Network()


def group(count: int, network: Network = NEAR) -> SimulatedGroup:
    return SimulatedGroup(range(count), network=network, step_s=1.0, chance=random.Random(0))


def test_undisturbed_all_commits_are_made_and_each_member_tells_each_other_one() -> None:
    found = churn(
        5, network=NEAR, step_s=1.0, model=Churn(1e9, 1.0), seconds=100.0, chance=random.Random(1)
    )  # fmt: skip
    assert (found.commits, found.changes, found.members_mean) == (99, [], pytest.approx(5.0))
    assert found.prepared_bytes == 99 * 4 * (DIGEST_BYTES + volatile_group.MESSAGE_BYTES)


def test_the_latency_between_sites_is_in_each_commit() -> None:
    far = Network(sites=2, far_s=0.5)
    found = churn(4, network=far, step_s=1.0, model=Churn(1e9, 1.0), seconds=151.0, chance=random.Random(1))
    assert found.commits == 100


@pytest.mark.parametrize(("into_s", "committed"), [(0.5, False), (1.00005, True)])
def test_the_step_that_was_under_way_is_committed_where_all_had_reduced_it(into_s: float, committed: bool) -> None:
    one = group(8)
    one.run(3.0)
    before = one.commits
    change = one.lose([0, 3], into_s=into_s)
    assert change.committed is committed
    assert one.commits == before + committed == one.state.committed
    assert one.numbers == [1, 2, 4, 5, 6, 7]
    assert volatile_group.NOTICED_S - volatile_group.KEEP_ALIVE_S < change.agreed_s < volatile_group.NOTICED_S + 0.1
    one.run(10.0)
    assert one.commits > before + 5


def test_who_asks_works_after_two_changes_that_wait_for_nothing_to_be_noticed() -> None:
    one = group(3)
    change = one.admit([7, 9])
    assert one.numbers == [0, 1, 2, 7, 9]
    assert not one.state.view.joining
    assert change.agreed_s < 0.01


def test_a_mass_loss_is_agreed_on_as_soon_as_all_of_it_is_noticed() -> None:
    found = mass_loss(16, share=0.5, tries=20, network=NEAR, step_s=1.0, chance=random.Random(3))
    assert all(one.lost == 8 for one in found)
    assert max(one.agreed_s for one in found) < volatile_group.NOTICED_S + 0.1


def test_who_misses_most_of_the_others_lets_them_go_first() -> None:
    most, few = (
        mass_loss(16, share=share, tries=5, network=NEAR, step_s=1.0, chance=random.Random(4)) for share in (0.75, 0.25)
    )
    assert min(one.agreed_s for one in most) - max(one.agreed_s for one in few) > SIDE_S - volatile_group.KEEP_ALIVE_S


def test_each_message_takes_its_time_so_a_large_group_takes_longer() -> None:
    small, large = (
        statistics.median(
            one.agreed_s
            for one in mass_loss(size, share=0.5, tries=3, network=NEAR, step_s=1.0, chance=random.Random(6))
        )
        for size in (64, 512)
    )
    assert large > small + 512 * volatile_group.MAIL_S


def test_with_churn_steps_are_lost_and_members_come_back() -> None:
    model = Churn(session_s=60.0, pause_s=20.0)
    found = churn(6, network=NEAR, step_s=1.0, model=model, seconds=2000.0, chance=random.Random(5))
    assert len(found.changes) > 50
    assert 0.2 * found.ideal < found.commits < 0.95 * found.ideal
    assert 3.0 < found.members_mean < 6.0
    assert sum(one.joined for one in found.changes) > 20


def test_sessions_have_the_mean_and_the_shape_that_are_asked_for() -> None:
    chance = random.Random(7)
    found = [Churn(100.0, 1.0, 0.7).session(chance) for _ in range(20_000)]
    assert statistics.mean(found) == pytest.approx(100.0, rel=0.05)
    # Weibull of shape k: the median is ln(2) ** (1 / k) of the scale, which is 79 here.
    assert statistics.median(found) == pytest.approx(79.0 * 0.6931 ** (1 / 0.7), rel=0.05)


def test_a_core_that_does_not_commit_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    def deaf(state: State, sender: object, message: object) -> tuple[State, list[object]]:
        return state, []

    monkeypatch.setattr(commit, "received", deaf)
    with pytest.raises(RuntimeError, match="not committed by all"):
        group(3).run(2.0)


def test_the_report_is_the_same_for_a_seed_and_a_table_for_people() -> None:
    few = ["3", "5", "--seconds", "300", "--session-s", "60", "--pause-s", "30", "--tries", "2", "--seed"]
    once, again, other = (CliRunner().invoke(members.app, [*few, seed, "--json"]) for seed in "112")
    assert once.exit_code == 0
    assert once.output == again.output != other.output
    report = json.loads(once.output)
    assert [one["members"] for one in report["sizes"]] == [3, 5]
    assert [loss["share"] for loss in report["sizes"][0]["mass_loss"]] == [0.1, 0.5]
    assert "commits/s" in CliRunner().invoke(members.app, [*few, "1"]).output
