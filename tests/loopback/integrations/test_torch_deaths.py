"""A rank dies: the others raise long before their timeouts of a minute, name it, and nobody crashes or hangs.

It takes 5 s of silence and 2 s of dialling until a rank counts as dead, plus what a busy machine adds.
"""

from __future__ import annotations

import re
import signal

import pytest
import torch.distributed as dist
from torch_ranks import RankResult, RunRanks

pytestmark = pytest.mark.timeout(300)
"""The first test starts all ranks of all scenarios, which takes tens of seconds where others want the cores as well."""
SHRINKS = hasattr(dist, "shrink_group") and hasattr(dist.ProcessGroup, "reconfigure")
"""Since torch 2.15, where hive is a backend."""
SCENARIOS = (
    *("before", "within", "after", "backward", "subgroup", "message", "stopped"),
    *("aborted", "destroyed", "missing", "never"),
    *(("shrunk",) if SHRINKS else ()),
)
KNOWN_S_MAX = 20
"""Until a death is known: a third of the timeout, after which everybody would raise anyhow."""
Results = dict[str, list[RankResult]]


@pytest.fixture(scope="module")
def results(run_ranks: RunRanks) -> Results:
    return run_ranks("deaths.py", dict.fromkeys(SCENARIOS, 3))


def code_of(text: str) -> str | None:
    """The code in a message that may have been wrapped: "Got ...: [connection-lost] lost rank 1" gives that code."""
    match = re.search(r"\[([a-z][a-z-]*)\] ", text)
    return match.group(1) if match else None


def survivors(results: Results, scenario: str) -> list[RankResult]:
    found = [result for result in results[scenario] if result.rank != 1]
    for result in found:
        assert result.exit_code == 0, f"rank {result.rank}:\n{result.output}"
    return found


@pytest.mark.parametrize("scenario", ["before", "within", "after", "stopped"])
def test_survivors_raise_long_before_their_timeouts_and_name_the_rank(results: Results, scenario: str) -> None:
    for result in survivors(results, scenario):
        assert result.reports, result.output
        for report in result.reports[:3]:  # of direct and functional collectives; a future keeps only the text
            assert {"ConnectionLostError", "RuntimeError"} <= set(report["classes"]), report
            assert code_of(report["text"]) == "connection-lost"
            assert "rank 1" in report["text"]
            assert report["rank"] == 1
            assert report["seconds"] < KNOWN_S_MAX


def test_once_a_rank_is_known_to_be_lost_the_next_collective_fails_too(results: Results) -> None:
    for result in survivors(results, "before"):
        assert len(result.reports) > 1, result.output
        for report in result.reports[1:]:
            assert report["seconds"] < KNOWN_S_MAX
            assert code_of(report["text"]) == "connection-lost"


@pytest.mark.skipif(not SHRINKS, reason="torch 2.13 has no backend of Python's that could shrink")
def test_survivors_shrink_the_default_group_and_go_on_without_the_dead(results: Results) -> None:
    lost, *found = zip(*(result.reports for result in survivors(results, "shrunk")), strict=True)
    assert all("rank 1" in report["text"] for report in lost)
    assert found == [
        tuple({"place": place, "size": 2, "totals": [2.0, 2.0, 1.0, 1.0]} for place in range(2))  # DDP's mean is last
    ]


def test_a_death_during_ddps_backward_is_an_error_with_a_code_and_no_crash(results: Results) -> None:
    assert results["backward"][1].exit_code == -signal.SIGKILL
    for result in survivors(results, "backward"):  # an exit code of 139 would be the crash
        (report,) = result.reports
        assert "RuntimeError" in report["classes"]
        assert code_of(report["text"]) == "connection-lost"
        assert "rank 1" in report["text"]
        assert report["seconds"] < KNOWN_S_MAX


def test_the_first_use_of_a_subgroup_with_a_dead_member_fails_and_one_without_works(results: Results) -> None:
    first, last = survivors(results, "subgroup")
    lost, rest = first.reports
    assert code_of(lost["text"]) == "connection-lost"
    assert "rank 1" in lost["text"]
    assert lost["seconds"] < KNOWN_S_MAX
    assert rest == {"rest": 2.0}
    for report in last.reports[:2]:  # a collective and a message; ranks are those of the group, names those of the job
        assert "lost rank 0 (rank-1)" in report["text"]
        assert report["rank"] == 0
    assert last.reports[2] == {"rest": 2.0}


def test_a_receive_from_the_dead_fails_and_one_from_anybody_is_served_by_the_living(results: Results) -> None:
    for result in survivors(results, "message"):
        assert code_of(result.reports[0]["text"]) == "connection-lost"
        assert result.reports[0]["seconds"] < KNOWN_S_MAX
    assert results["message"][0].reports[1] == {"anysource": True}


def test_an_abort_on_one_rank_cancels_on_all(results: Results) -> None:
    for result in survivors(results, "aborted"):
        assert result.reports[0]["classes"], result.output
        assert code_of(result.reports[0]["text"]) in ("cancelled", "connection-lost")
        assert result.reports[0]["seconds"] < KNOWN_S_MAX
    assert results["aborted"][1].exit_code == 0, results["aborted"][1].output


def test_destroying_a_group_cancels_what_is_under_way_and_is_told_from_a_death(results: Results) -> None:
    (report,) = results["destroyed"][1].reports
    assert code_of(report["text"]) == "cancelled", report
    for result in survivors(results, "destroyed"):
        (report,) = result.reports
        assert code_of(report["text"]) == "connection-lost"
        assert report["seconds"] < KNOWN_S_MAX


def test_a_monitored_barrier_names_who_did_not_come(results: Results) -> None:
    first, last = survivors(results, "missing")
    assert "Rank 1 failed to pass monitoredBarrier" in first.reports[0]["text"]
    assert code_of(first.reports[0]["text"]) == "timed-out"
    assert "rank 0" in last.reports[0]["text"]


def test_a_rank_that_never_connects_is_named_in_time(results: Results) -> None:
    for result in survivors(results, "never"):
        (report,) = result.reports
        assert code_of(report["text"]) == "timed-out"
        assert "nothing from rank 1" in report["text"]
        assert report["seconds"] < 50  # its timeout is 10 s, that of everything else a minute or more
