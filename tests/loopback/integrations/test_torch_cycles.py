"""Process groups that are made and destroyed leave no descriptor, no thread and no object of ours behind."""

from __future__ import annotations

import pytest
from torch_ranks import RankResult, RunRanks

from transport.collectives.membership import CLOSED_MAX

pytestmark = [pytest.mark.long, pytest.mark.timeout(300)]
"""The first test starts all ranks of all scenarios, which takes tens of seconds where others want the cores as well."""
CLOSING = 3
"""Of a kind: the transport's thread may yet close the last group, which has a plan for each of three algorithms."""
Results = dict[str, list[RankResult]]


@pytest.fixture(scope="module")
def results(run_ranks: RunRanks) -> Results:
    return run_ranks("cycles.py", {"worlds": 2, "subgroups": 2})


@pytest.mark.parametrize("scenario", ["worlds", "subgroups"])
def test_what_is_there_is_the_same_after_many_cycles(results: Results, scenario: str) -> None:
    for result in results[scenario]:
        assert result.exit_code == 0, result.output[-3000:]
        (found,) = result.reports
        grown = {name: (found["first"].get(name, 0), count) for name, count in found["last"].items()}
        grown = {name: (before, now) for name, (before, now) in grown.items() if now > before + CLOSING}
        assert not grown


def test_messages_of_groups_that_are_closed_are_forgotten(results: Results) -> None:
    for result in results["subgroups"]:
        (found,) = result.reports
        kept = {name: count for name, count in found.items() if isinstance(count, int)}
        assert kept["numbers"] <= CLOSED_MAX + 1, kept
        assert all(count <= 2 * CLOSED_MAX + 2 for count in kept.values()), kept
