"""Reports of two runs side by side: what counts as worse, and what is kept for the next night."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tools.measure import compare
from tools.nightly.bench import compare_and_keep


def report(
    median: float, *, spread: float = 0.02, n: int = 5, scenario: str = "lan", who: str = "native", commit: str = "a"
) -> Any:
    ratio = {"median": median, "low": median - spread, "high": median + spread, "n": n}
    cell = {"scenario": scenario, "case": "1 Gbit/s", "contender": who, "ratios": {"iperf3": ratio}}
    return {"run": {"versions": {"commit": commit}}, "cells": [cell], "goals": []}


NAME = "lan, 1 Gbit/s: native of iperf3"


@pytest.mark.parametrize(
    ("first", "last", "found"),
    [
        (report(1.0), report(0.9), [NAME]),
        (report(1.0), report(1.1), []),
        (report(1.0, spread=0.1), report(0.9), []),  # within the spread
        (report(1.0, spread=0.01), report(0.96, spread=0.01), []),  # beyond the spread, within the margin
        (report(1.0, n=4), report(0.5), []),  # too few repetitions to tell
        (report(1.0, who="gloo"), report(0.5, who="gloo"), []),  # not ours
        (report(1.0, scenario="latency"), report(0.9, scenario="latency"), []),
        (report(1.0, scenario="latency"), report(1.1, scenario="latency"), [NAME.replace("lan", "latency")]),
    ],
)
def test_worse_is_beyond_both_spreads_and_the_margin(first: Any, last: Any, found: list[str]) -> None:
    assert compare.regressions(first, last) == found


def test_collectives_are_compared_by_operation_and_size_beside_gloo() -> None:
    def collectives(median: float) -> Any:
        times = {"gloo cubic": {"median": median, "low": median - 0.02, "high": median + 0.02, "n": 5}}
        cell = {"scenario": "lan", "case": "1 Gbit/s, 2 ranks", "operation": "all_reduce", "contender": "hive"}
        cells = [{**cell, "bytes": size, "times": times} for size in (2**14, 2**20)]
        return {"run": {"versions": {"commit": "a"}}, "cells": cells, "goals": []}

    found = [f"lan, 1 Gbit/s, 2 ranks: all_reduce {size} bytes: hive of gloo cubic" for size in (2**14, 2**20)]
    assert compare.regressions(collectives(1.0), collectives(0.9)) == found


def test_what_is_not_measured_any_more_is_worse() -> None:
    assert compare.regressions(report(1.0), {**report(1.0), "cells": []}) == [NAME]


def test_goals_of_every_report_are_compared_and_not_judged() -> None:
    goals = [{"name": "step", "value": 1.0, "at_most": 1.1, "passed": True}]
    first = {"versions": {"commit": "a"}, "goals": goals}
    last = {"versions": {"commit": "b"}, "goals": [{**goals[0], "value": 2.0}]}
    assert [compare.figures(each)["goal: step"].median for each in (first, last)] == [1.0, 2.0]
    assert compare.regressions(first, last) == []


def test_a_worse_night_fails_until_it_is_accepted_and_the_last_good_one_stays(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    measured, kept = tmp_path / "measured", tmp_path / "state" / "bench"
    measured.mkdir()

    def night(commit: str, *medians: float) -> int:
        left = list(medians)

        def measure() -> None:
            (measured / "report.json").write_text(json.dumps(report(left.pop(0), commit=commit)))

        return compare_and_keep(measure, measured, kept)

    def last_good() -> Any:
        return json.loads((kept / "report.json").read_text())["run"]["versions"]["commit"]

    assert night("first", 1.0) == 0
    assert night("second", 1.01) == 0
    assert night("a moment of trouble", 0.8, 1.0) == 0
    assert last_good() == "a moment of trouble"
    assert [night("third", 0.8, 0.8), night("fourth", 0.8, 0.8)] == [1, 1]
    assert last_good() == "a moment of trouble"
    assert f"WORSE than the last good run, twice: {NAME}" in capsys.readouterr().out
