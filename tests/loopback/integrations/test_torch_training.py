"""torch's ways to train give over hive what they give over Gloo; see programs/trainings/ for each."""

from __future__ import annotations

import re

import pytest
import torch.distributed as dist
from torch_ranks import PROGRAMS, RankResult, RunRanks

TRAININGS = {
    name: {"2": "two", "4": "four"}[ranks]
    for source in sorted((PROGRAMS / "trainings").glob("*.py"))
    for ranks, name in re.findall(r"^@training\(ranks=(\d).*\)\ndef (\w+)", source.read_text(), re.MULTILINE)
    if "quantized" not in name or hasattr(dist.ProcessGroup, "reconfigure")  # torch's own are broken before 2.15
}

pytestmark = pytest.mark.timeout(300)
"""The first test starts all ranks of all scenarios, which takes tens of seconds where others want the cores as well."""
Results = dict[str, list[RankResult]]


@pytest.fixture(scope="module")
def results(run_ranks: RunRanks, tmp_path_factory: pytest.TempPathFactory) -> Results:
    return run_ranks("training.py", {"two": 2, "four": 4}, SCRATCH=str(tmp_path_factory.mktemp("checkpoints")))


@pytest.mark.parametrize("name", TRAININGS)
def test_a_training_over_hive_learns_what_it_learns_over_gloo(results: Results, name: str) -> None:
    for result in results[TRAININGS[name]]:
        reports = [report for report in result.reports if report["check"] == name]
        assert len(reports) == 1, f"rank {result.rank} (exit {result.exit_code}):\n{result.output[-3000:]}"
        assert not reports[0]["problem"], f"rank {result.rank}: {reports[0]['problem']}"
