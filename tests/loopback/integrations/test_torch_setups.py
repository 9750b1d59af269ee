"""Ways to start and to end a script: one rank, a secret, no broker, a file as the store, Gloo beside, no destroying."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch.distributed as dist
from torch_ranks import RankResult, RunRanks

pytestmark = pytest.mark.timeout(300)
"""The first test starts all ranks of all scenarios, which takes tens of seconds where others want the cores as well."""
SCENARIOS = {
    "alone": 1,
    "with_a_secret_and_no_broker": 2,
    "in_debug_detail": 2,
    "without_destroying": 2,
    "in_a_file": 2,
    "beside_gloo": 3,
    "with_a_wrong_variable": 1,
    "as_one_member": 2,
    "profiled": 2,
}
SCENARIOS_OF_2_15 = {"with_a_device_id": 3, "with_a_device_id_and_no_backend": 2}
"""Before, torch takes GPUs alone as a device_id."""
SCENARIOS_BEFORE_2_15 = {"split_beside_a_gpu": 3}
NEWER = hasattr(dist.ProcessGroup, "reconfigure")
of_2_15 = pytest.mark.skipif(not NEWER, reason="torch 2.15 has this first")
Results = dict[str, list[RankResult]]


@pytest.fixture(scope="module")
def results(run_ranks: RunRanks, tmp_path_factory: pytest.TempPathFactory) -> Results:
    scratch: Path = tmp_path_factory.mktemp("scratch")
    return run_ranks(
        "setups.py", {**SCENARIOS, **(SCENARIOS_OF_2_15 if NEWER else SCENARIOS_BEFORE_2_15)}, SCRATCH=str(scratch)
    )


@pytest.mark.parametrize(
    "scenario", ["alone", "with_a_secret_and_no_broker", "in_debug_detail", "without_destroying", "in_a_file"]
)
def test_a_script_works(results: Results, scenario: str) -> None:
    for result in results[scenario]:
        assert result.exit_code == 0, result.output
        assert result.reports == [{"total": float(SCENARIOS[scenario]), "gradient": 16.0}], result.output


def test_the_profiler_shows_each_operation_for_as_long_as_it_takes(results: Results) -> None:
    for result in results["profiled"]:
        assert result.exit_code == 0, result.output
        message = ("hive:recv", "hive:send")[result.rank == 0]
        shown = ["hive:all_reduce", "hive:barrier", message]
        assert result.reports == [{"shown": shown, "waited": True}], result.output


def test_without_a_broker_and_with_a_secret_a_run_says_at_most_one_line(results: Results) -> None:
    for result in results["with_a_secret_and_no_broker"]:
        lines = [line for line in result.output.splitlines() if not line.startswith("REPORT")]
        assert len(lines) <= 1, lines


def test_hive_works_beside_gloo_and_connections_outlive_the_group_that_made_them(results: Results) -> None:
    totals = []
    for result in results["beside_gloo"]:
        assert result.exit_code == 0, result.output
        totals.append(result.reports[0]["total"])
    assert totals == [12.0, 12.0, 3.0]


def test_a_wrong_variable_is_named(results: Results) -> None:
    (result,) = results["with_a_wrong_variable"]
    assert "HIVE_ENGINE" in result.reports[0]["text"]
    assert result.reports[0]["text"].startswith("[configuration]")


@of_2_15
def test_groups_form_where_a_device_id_is_given_also_without_this_rank(results: Results) -> None:
    for result in results["with_a_device_id"]:
        assert result.exit_code == 0, result.output
        total = 2.0 if result.rank < 2 else 1.0
        assert result.reports == [
            {"device": "cpu:0", "mixed": False, "total": total},
            {"device": "cpu:0", "mixed": True, "total": total},
        ]
    for result in results["with_a_device_id_and_no_backend"]:
        assert result.exit_code == 0, result.output


@pytest.mark.skipif(NEWER, reason="since torch 2.15 groups are split without a GPU; see group_checks")
def test_groups_are_split_beside_a_gpu_on_torch_2_13(results: Results) -> None:
    for result in results["split_beside_a_gpu"]:
        assert result.exit_code == 0, result.output
        assert result.reports == [{"total": 2.0 if result.rank == 2 else 3.0, "device": "cuda:0"}]


def test_ranks_of_a_site_are_one_member_and_end_with_the_others_model(results: Results) -> None:
    told = []
    for result in results["as_one_member"]:
        assert result.exit_code == 0, result.output
        leads, ended = result.reports
        assert leads["leads"] == (result.rank == 0)
        told.append(ended)
    assert told[0]["parameters"] == told[0]["others"] == told[1]["parameters"]
    assert told[0]["parameters"] != told[0]["at_first"]
