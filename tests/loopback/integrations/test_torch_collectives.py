"""Every collective over hive on three ranks; see programs/*_checks.py for what each check claims."""

from __future__ import annotations

import re

import pytest
import torch.distributed as dist
from torch_ranks import PROGRAMS, RankResult, RunRanks

CHECKS = [
    name
    for source in ("collective_checks.py", "group_checks.py")
    for name in re.findall(r"@check\ndef (\w+)", (PROGRAMS / source).read_text())
]
SHORT = re.findall(r'"(\w+)"', (PROGRAMS / "collectives.py").read_text().split("SHORT = (")[1].split(")")[0])
NEWER = hasattr(dist.ProcessGroup, "reconfigure")
ADAPTERS = ("run", "run_without_backend", *(("run_in_a_mixed_group",) if NEWER else ()))
"""Before torch 2.15 a backend of Python's cannot be one of several in a group."""

pytestmark = pytest.mark.timeout(300)
"""The first test starts all ranks of all scenarios, which takes tens of seconds where others want the cores as well."""
Results = dict[str, list[RankResult]]


@pytest.fixture(scope="module")
def results(run_ranks: RunRanks) -> Results:
    return run_ranks("collectives.py", dict.fromkeys(ADAPTERS, 3))


@pytest.mark.parametrize(
    ("adapter", "check"),
    [*(("run", check) for check in CHECKS), *((adapter, check) for adapter in ADAPTERS[1:] for check in SHORT)],
)
def test_torch(results: Results, adapter: str, check: str) -> None:
    for result in results[adapter]:
        reports = [report for report in result.reports if report["check"] == check]
        assert len(reports) == 1, (
            f"rank {result.rank} did not get there (exit {result.exit_code}):\n{result.output[-3000:]}"
        )
        assert not reports[0]["problem"], f"rank {result.rank}: {reports[0]['problem']}"


@pytest.mark.parametrize("adapter", ADAPTERS)
def test_all_ranks_end_well_and_say_little(results: Results, adapter: str) -> None:
    for result in results[adapter]:
        assert result.exit_code == 0, result.output[-3000:]
        words = [line for line in result.output.splitlines() if not line.startswith("REPORT")]
        assert len(words) <= 1, result.output
