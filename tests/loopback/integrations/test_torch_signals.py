"""A signal's handler may start a collective and wait for it, wherever it interrupts the main thread."""

from __future__ import annotations

import pytest
from torch_ranks import RankResult, RunRanks

pytestmark = [pytest.mark.long, pytest.mark.timeout(300)]
"""The first test starts all ranks of all scenarios, which takes tens of seconds where others want the cores as well."""
Results = dict[str, list[RankResult]]


@pytest.fixture(scope="module")
def results(run_ranks: RunRanks) -> Results:
    return run_ranks("signals.py", {"at_every_line": 1, "storm": 2, "raising": 2})


def test_a_handler_may_call_a_collective_at_every_line_of_anothers_call_and_wait(results: Results) -> None:
    (result,) = results["at_every_line"]
    assert result.exit_code == 0, result.output[-6000:]
    assert result.reports[0]["lines"] > 100, "there are so many"


def test_collectives_in_a_storm_of_handlers_that_call_collectives_give_what_they_must(results: Results) -> None:
    for result in results["storm"]:
        assert result.exit_code == 0, result.output[-6000:]
        assert result.reports[0]["handled"] == 300


def test_what_follows_a_call_in_which_a_handler_raised_at_any_line_gives_what_it_must(results: Results) -> None:
    for result in results["raising"]:
        assert result.exit_code == 0, result.output[-6000:]
    assert results["raising"][0].reports[0]["interrupted"] > 60
