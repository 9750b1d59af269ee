"""The report against a second, deliberately naive computation from the same recorded run."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tools.demo.records import Records, read
from tools.demo.report import compute, passed

RUN = Path(__file__).with_name("recorded-run")


def naive_cell(condition: str, half: str) -> dict[str, float]:
    """One cell of the table, from the files, with nothing of ours."""
    steps = [json.loads(line) for line in (RUN / "steps.jsonl").read_text().splitlines()]
    samples = [json.loads(line) for line in (RUN / "counters.jsonl").read_text().splitlines()]
    events = [json.loads(line) for line in (RUN / "events.jsonl").read_text().splitlines()]
    where = next(event["counters"] for event in events if event["event"] == "topology")
    rate = next(event["settings"]["rate_bits_per_s"] for event in events if event["event"] == "settings")
    if half == "half":
        rate //= 2

    def counter(name: str, at_s: float) -> float:
        host, interface, column = where[name]
        rows = [(s["t_s"], s["interfaces"][interface][column]) for s in samples if s["host"] == host]
        return float(np.interp(at_s, [t for t, _ in rows], [v for _, v in rows]))

    mine = [
        s
        for s in steps
        if s["rank"] == 0 and s["kind"] == "phase" and s["condition"] == condition and s["half"] == half
    ]
    storage = compute_bytes = seconds = 0.0
    for block in sorted({s["block"] for s in mine}):
        begin = min(s["start_s"] for s in mine if s["block"] == block)
        end = max(s["end_s"] for s in mine if s["block"] == block)
        storage += counter("storage", end) - counter("storage", begin)
        compute_bytes += counter("compute", end) - counter("compute", begin)
        seconds += end - begin
    times = [s["step_s"] for s in mine]
    return {
        "median": float(np.median(times)),
        "p95": float(np.percentile(times, 95)),
        "steps": len(times),
        "storage_bits_per_s": storage * 8 / seconds,
        "share": storage / (0.97 * rate * seconds / 8 - compute_bytes),
    }


@pytest.fixture(scope="module")
def report() -> dict[str, Any]:
    return compute(read(RUN))


@pytest.mark.parametrize("half", ["full", "half"])
@pytest.mark.parametrize("condition", ["idle", "flooded", "brokered"])
def test_every_cell_agrees_with_the_naive_computation(report: dict[str, Any], condition: str, half: str) -> None:
    cell, naive = report["phases"][condition][half], naive_cell(condition, half)
    assert cell["steps"] == naive["steps"] > 0
    assert cell["step_s"]["median"] == pytest.approx(naive["median"], rel=1e-9)
    assert cell["step_s"]["p95"] == pytest.approx(naive["p95"], rel=1e-9)
    assert cell["storage_bits_per_s"] == pytest.approx(naive["storage_bits_per_s"], rel=1e-6, abs=1)
    assert cell["storage_share_of_leftover"] == pytest.approx(naive["share"], rel=1e-6, abs=1e-9)
    assert 0 < cell["cpu_share"] <= 1


def test_report_has_the_promised_shape(report: dict[str, Any]) -> None:
    assert set(report["phases"]) == {"idle", "flooded", "brokered"}  # this recording had no static phase
    assert all(set(halves) == {"full", "half"} for halves in report["phases"].values())
    assert report["loss"]["first"] > report["loss"]["last"]
    assert report["weights_identical"] is True
    assert {check["name"] for check in report["checks"]} == {
        "weights identical on both hosts",
        "flooded step, of idle",
    }
    json.dumps(report, allow_nan=False)


def test_ratio_to_idle_is_at_the_same_rate(report: dict[str, Any]) -> None:
    phases = report["phases"]
    expected = phases["flooded"]["half"]["step_s"]["median"] / phases["idle"]["half"]["step_s"]["median"]
    assert phases["flooded"]["half"]["step_median_of_idle"] == pytest.approx(expected)


def test_steps_right_after_a_change_of_conditions_are_counted() -> None:
    records = read(RUN)
    phase = [s for s in records.steps if s["kind"] == "phase" and s["condition"] == "idle" and s["rank"] == 0]
    cells = compute(records)["phases"]["idle"]
    assert cells["full"]["steps"] + cells["half"]["steps"] == len(phase)


def test_different_weights_are_reported() -> None:
    records = read(RUN)
    events = [dict(event) for event in records.events]
    next(event for event in events if event["event"] == "weights")["weights_sha256"] = "0" * 64
    changed = Records(records.steps, records.counters, events, records.status)
    report = compute(changed)
    assert report["weights_identical"] is False
    assert [check["passed"] for check in report["checks"] if check["name"].startswith("weights")] == [False]
    assert not passed(report, strict=False)


def test_figures_are_judged_by_strict_alone() -> None:
    report = compute(read(RUN))
    assert report["complete"]
    assert passed(report, strict=False)
    missed = {
        **report,
        "goals": [*report["goals"], {"name": "a figure", "value": 2.0, "at_most": 1.0, "passed": False}],
    }
    assert passed(missed, strict=False)
    assert not passed(missed, strict=True)


def test_settings_name_the_batch_that_was_chosen() -> None:
    records = read(RUN)
    assert compute(records)["settings"]["batch"] == 20  # as it was given
    events = [{**event, "batch": 12} if event["event"] == "ready" else event for event in records.events]
    report = compute(Records(records.steps, records.counters, events, records.status))
    assert report["settings"]["batch"] == report["training"]["batch"] == 12


def test_a_run_that_was_interrupted_is_reported_as_incomplete() -> None:
    records = read(RUN)
    events = [event for event in records.events if event["event"] not in ("end", "weights")]
    report = compute(Records(records.steps, records.counters, events, records.status))
    assert report["complete"] is False
    assert report["weights_identical"] is False
    assert report["phases"]["idle"]["full"]["steps"] > 0


def test_a_line_cut_off_at_the_end_is_left_out(tmp_path: Path) -> None:
    for name in ("steps", "counters", "events", "status"):
        (tmp_path / f"{name}.jsonl").write_text('{"event": "settings"}\n{"event": "top')
    assert read(tmp_path).events == [{"event": "settings"}]


def test_records_without_a_run_are_refused() -> None:
    with pytest.raises(ValueError, match="no run"):
        compute(Records([], [], [], []))
