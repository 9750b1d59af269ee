"""torch 2.15's fault tolerance: a group is formed from handles, goes on without a dead process, and takes a new one."""

from __future__ import annotations

import signal

import pytest
import torch.distributed as dist
from torch_ranks import RankResult, RunRanks

pytestmark = [
    pytest.mark.timeout(300),
    pytest.mark.skipif(not hasattr(dist.ProcessGroup, "reconfigure"), reason="torch 2.15 has this first"),
]
"""The first test starts all ranks of all scenarios, which takes tens of seconds where others want the cores as well."""
SCENARIOS = {"killed_and_replaced": 4, "wrong_handles": 2, "stale_and_absent": 3, "changes_of_mind": 2}
Results = dict[str, list[RankResult]]


@pytest.fixture(scope="module")
def results(run_ranks: RunRanks) -> Results:
    return run_ranks("reconfigured.py", SCENARIOS)


def reports(results: Results, scenario: str, rank: int) -> list[dict[str, object]]:
    result = results[scenario][rank]
    assert result.exit_code == 0, result.output
    return result.reports


def test_a_group_goes_on_without_a_killed_process_and_takes_a_new_one(results: Results) -> None:
    assert results["killed_and_replaced"][1].exit_code == -signal.SIGKILL
    for number in (0, 2):
        before, three, mean, lost, two, mean_of_two, again, *_ = reports(results, "killed_and_replaced", number)
        assert before["supported"] is True
        assert str(before["before"]).startswith("[misuse] the process group is not connected")
        assert three == {"place": number, "size": 3, "total": 111.0}
        assert mean == {"gradient": 2.0, "compressed": 2.0}
        assert str(lost["lost"]).startswith("[connection-lost]")
        assert "rank 1" in str(lost["lost"])
        assert two == {"place": 1 - number // 2, "size": 2, "total": 101.0}
        assert mean_of_two == {"gradient": 1.5, "compressed": 1.5}
        assert again["total"] == 1101.0
    for number, place in ((0, 0), (2, 1), (3, 2)):
        *_, all_there, pair = [*reports(results, "killed_and_replaced", number), *([{}] if number == 3 else [])]
        assert all_there == {
            "place": place,
            "size": 3,
            "total": 1101.0,
            "objects": [0, 2, 3],
            "received": float(number == 3),
        }
        assert pair == ({} if number == 3 else {"pair": 2.0})


def test_wrong_handles_are_refused_and_the_group_goes_on(results: Results) -> None:
    for rank in range(2):
        first, refused, kept, mixed = reports(results, "wrong_handles", rank)
        assert "none of the 1 handles is this process' own" in str(first["none"])
        assert "has given no handle since its last attempt" in str(refused["ungiven"])
        assert refused["own"] is True
        assert "none of the 2 handles is this process' own" in str(refused["stale"])
        assert "handles 0 and 1 are the same" in str(refused["doubled"])
        assert "rank 1: its handle is malformed" in str(refused["malformed"])
        assert "none of the 0 handles" in str(refused["empty"])
        assert "uuid 1 was already used" in str(refused["uuid"])
        assert "no hints" in str(refused["hints"])
        assert refused["total"] == 11.0
        assert "enable_reconfigure=True" in str(kept["kept"])
        assert kept["supported"] is False
        assert "groups of one backend alone" in str(mixed["mixed"])


def test_who_does_not_answer_is_named_and_a_stale_handle_too(results: Results) -> None:
    for rank in range(3):
        found = reports(results, "stale_and_absent", rank)
        if rank != 2:
            absent = found.pop(0)
            assert str(absent["absent"]).startswith("[timed-out] connecting: nothing from rank 2")
            assert "within the timeout of 1.5 s" in str(absent["absent"])
            assert "its last reconfigure failed ([timed-out]" in str(absent["after"])
        if rank == 0:
            stale = found.pop(1)
            assert str(stale["stale"]).startswith("[peer] peer rank-1")
            assert "is the handle its newest" in str(stale["stale"])
        assert found == [{"total": 111.0}] * 2


def test_operations_and_attempts_end_with_an_error_when_something_else_is_wanted(results: Results) -> None:
    for rank in range(2):
        found = reports(results, "changes_of_mind", rank)
        if rank == 0:
            pending = str(found.pop(0)["pending"])
            assert pending.startswith(("[connection-lost]", "[cancelled]")), pending
        total, pair, during, overtaken, aborted, again, after, third, destroyed = found
        assert total == again == third == {"total": 11.0}
        assert pair == {"pair": 2.0}  # made of the former ranks, and over their connections
        assert "is being reconfigured" in str(during["during"])
        assert str(overtaken["overtaken"]).startswith("[cancelled] connecting: a later reconfigure has begun")
        assert overtaken["alone"] == 10.0**rank
        assert str(aborted["aborted"]).startswith("[cancelled] connecting: the process group was aborted")
        assert "the process group was aborted" in str(aborted["after"])
        assert "aborted" in str(after["after"])
        assert str(destroyed["destroyed"]).startswith("[cancelled] connecting: the process group was destroyed")
        assert str(destroyed["handle"]).startswith("[misuse] the process group has been destroyed")
