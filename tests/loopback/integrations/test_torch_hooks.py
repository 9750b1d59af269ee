"""torch's hooks see hive's calls as they see Gloo's: pre- and post-hooks, flight recorder, NaN check."""

from __future__ import annotations

import pytest
import torch.distributed as dist
from torch_ranks import RankResult, RunRanks

pytestmark = [
    pytest.mark.timeout(300),
    pytest.mark.skipif(not hasattr(dist.ProcessGroup, "register_pre_hook"), reason="torch 2.15 has hooks first"),
]
Results = dict[str, list[RankResult]]


@pytest.fixture(scope="module")
def results(run_ranks: RunRanks) -> Results:
    return run_ranks("hooks.py", dict.fromkeys(("seen", "recorded", "with_nan"), 2))


def test_hooks_of_a_hive_group_see_what_those_of_a_gloo_group_see(results: Results) -> None:
    for result in results["seen"]:
        assert result.exit_code == 0, result.output
        (report,) = result.reports
        assert report["hive"] == report["gloo"]
        assert len(report["hive"]) >= 13


def test_the_flight_recorder_has_hives_calls_and_groups(results: Results) -> None:
    for result in results["recorded"]:
        assert result.exit_code == 0, result.output
        (report,) = result.reports
        calls = [[name, sizes] for name, sizes, _ in report["calls"]]
        assert report["shown"] == [name for name, _ in calls]
        assert calls == [["hive:all_reduce", [[4]]], ["hive:all_to_all_single", [[2]]], ["hive:broadcast", [[5]]]]


def test_a_nan_is_told_to_every_rank_and_the_group_goes_on(results: Results) -> None:
    for result in results["with_nan"]:
        assert result.exit_code == 0, result.output
        (report,) = result.reports
        assert "nan" in report["text"].lower()
        assert result.rank == 1 or "rank 1 gave up" in report["text"]
        assert report["total"] == 2
