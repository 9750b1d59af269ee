"""Every way to call a process group's methods, next to Gloo: the same results, and the same kinds of errors."""

from __future__ import annotations

import re
from typing import Any

import pytest
from signatures import Signature, signatures
from torch_ranks import PROGRAMS, RankResult, RunRanks

pytestmark = pytest.mark.timeout(300)
"""The first test starts all ranks of all scenarios, which takes tens of seconds where others want the cores as well."""
SIGNATURES = signatures()
SIZE = 3
WRONG, RIGHT = (
    re.findall(r'^    "(\w+)":', calls, re.MULTILINE)
    for calls in (PROGRAMS / "overloads.py").read_text().split("\nWRONG_CALLS")[1].split("\nRIGHT_CALLS")
)
KNOWN_S_MAX = 20
"""Until the others know of a mistake: a third of their timeout, after which they would raise anyhow."""
Results = dict[str, list[RankResult]]


@pytest.fixture(scope="module")
def results(run_ranks: RunRanks) -> Results:
    return run_ranks("overloads.py", dict.fromkeys(("forms", "mistakes_of_all", "mistakes_of_one"), SIZE))


def reports(results: Results, scenario: str, check: str) -> list[dict[str, Any]]:
    """What every rank reports of a check."""
    found = []
    for result in results[scenario]:
        of_check = [report for report in result.reports if report["check"] == check]
        assert len(of_check) == 1, f"rank {result.rank} (exit {result.exit_code}):\n{result.output[-3000:]}"
        found += of_check
    return found


def test_the_forms_are_found_in_torch() -> None:
    names = {signature.method for signature in SIGNATURES}
    assert {"allreduce", "allgather", "reduce_scatter", "all_gather_single", "barrier", "recv_anysource"} <= names
    assert len(SIGNATURES) >= 36  # torch 2.13 has so many, and newer ones more


@pytest.mark.parametrize("how", ["short", "full"])
@pytest.mark.parametrize("signature", SIGNATURES, ids=str)
def test_a_form_does_what_it_does_with_gloo(results: Results, signature: Signature, how: str) -> None:
    for report in reports(results, "forms", f"{signature}.{how}"):
        assert not report["problem"], report["problem"]


@pytest.mark.parametrize("mistake", WRONG)
def test_a_mistake_of_all_is_an_error_of_the_kind_that_gloo_raises_and_the_group_goes_on(
    results: Results, mistake: str
) -> None:
    for report in reports(results, "mistakes_of_all", mistake):
        ours, theirs = report["kinds"]["hive"], report["kinds"]["gloo"]
        assert "MisuseError" in ours
        assert next(kind for kind in ("TypeError", "ValueError", "RuntimeError") if kind in theirs) in ours, report
        assert report["total"] == SIZE


@pytest.mark.parametrize("mistake", RIGHT)
def test_a_mistake_of_one_rank_is_told_to_the_others_and_the_group_goes_on(results: Results, mistake: str) -> None:
    for rank, report in enumerate(reports(results, "mistakes_of_one", mistake)):
        assert "MisuseError" in report["kinds"] if rank == 1 else "CancelledError" in report["kinds"], report
        assert rank == 1 or "rank 1 gave up" in report["text"]
        assert "[misuse]" in report["text"]
        assert report["seconds"] < KNOWN_S_MAX
        assert report["total"] == SIZE
