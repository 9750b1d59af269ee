"""The broker's benchmark: its report from raw records."""

from __future__ import annotations

import io
import json
from pathlib import Path
from typing import Any

import brokerbench_records as records
import pytest
from rich.console import Console
from typer.testing import CliRunner

from tools.brokerbench import report, table
from tools.brokerbench.__main__ import app
from tools.measure import tables
from tools.measure.records import Writer, read


def written(directory: Path, *, rows: list[dict[str, Any]]) -> None:
    writer = Writer(directory)
    for row in [records.HEAD, *rows]:
        writer.write(row)
    writer.close()


def reported(directory: Path) -> dict[str, Any]:
    assert CliRunner().invoke(app, ["--report-only", "--output", str(directory)]).exit_code == 0
    found: dict[str, Any] = json.loads((directory / "report.json").read_text())
    return found


def document(found: dict[str, Any]) -> list[str]:
    return tables.markdown(table.sections(found), found).splitlines()


def goal(found: dict[str, Any], name: str) -> dict[str, Any]:
    return next(entry for entry in found["goals"] if entry["name"] == name)


def test_goals_are_judged_by_our_own_variant(tmp_path: Path) -> None:
    rows = [
        records.block("idle", 0.4),
        records.block("none", 0.8, storage_bytes_per_s=7.2e6),
        records.block("brokered", 0.41, storage_bytes_per_s=6e6),
    ]
    written(tmp_path, rows=rows)
    found = reported(tmp_path)
    assert goal(found, "sender: step of idle, median")["value"] == pytest.approx(1.025)
    assert goal(found, "sender: step of idle, median")["passed"] is True
    assert goal(found, "sender: storage of what is left")["passed"] is False
    assert not [entry for entry in found["goals"] if entry["name"].startswith("remote")]


def test_what_was_not_measured_is_not_passed(tmp_path: Path) -> None:
    written(tmp_path, rows=[records.block("idle", 0.4)])
    found = reported(tmp_path)
    assert goal(found, "sender: step of idle, median")["passed"] is None


def test_a_run_of_too_few_steps_says_so_of_each_condition_also_of_one_that_was_never_begun() -> None:
    head = {**records.HEAD, "scenarios": ["sender", "receiver", "flows"], "settings": {"variants": ["none", "quiet"]}}
    rows = [records.block("idle", 0.4, steps=202, settling=2), records.block("none", 0.8, steps=201, settling=2)]
    counted = {
        entry["name"]: (entry["value"], entry["at_least"], entry["passed"])
        for entry in report.compute(head, rows)["goals"]
        if "steps counted" in entry["name"]
    }
    assert counted == {
        "sender: steps counted, idle": (200, 200, True),
        "sender: steps counted, none": (199, 200, False),
        "sender: steps counted, quiet": (0, 200, False),
        **{f"receiver: steps counted, {name}": (0, 200, False) for name in ("idle", "none", "quiet")},
    }


def test_a_fault_that_was_not_brought_about_or_broke_down_is_a_goal_that_is_missed() -> None:
    untried = [
        {"kind": "not-tried", "scenario": "faults", "condition": "ingress device deleted", "why": "there is none"},
        {"kind": "failure", "scenario": "faults", "what": "disk full", "error": "no room"},
        {"kind": "failure", "scenario": "faults", "what": "link down and up, no broker", "error": "none"},
        {"kind": "failure", "scenario": "sender", "what": "quiet", "error": "no time was left"},
        {"kind": "failure", "scenario": "faults", "what": "all at the sender", "error": "no stage"},
        {"kind": "failure", "scenario": "faults", "what": "all", "error": "no namespaces"},
    ]
    found = report.compute({**records.HEAD, "scenarios": []}, untried)
    tried = [entry for entry in found["goals"] if entry["name"].endswith("tried")]
    assert [(entry["name"], entry["passed"]) for entry in tried] == [
        ("ingress device deleted: tried", False),
        ("disk full: tried", False),
    ]
    assert "- Not tried: ingress device deleted: there is none" in document(found)


def test_what_failed_passes_no_goal_and_has_one_all_the_same() -> None:
    head = {**records.HEAD, "scenarios": ["capacity", "jobs", "flows", "faults"]}
    flows = {"kind": "block", "scenario": "flows", "condition": "4 flows", "flows": 4}
    rows: list[dict[str, Any]] = [
        {"kind": "failure", "scenario": "capacity", "what": "all", "error": "no namespaces"},
        flows | {"daemon": [[0.0, 0.0, 10**6], [10.0, 0.1, 10**6]]},
        {"kind": "failure", "scenario": "flows", "what": "200 flows", "error": "the daemon\ndoes not answer"},
    ]
    found = report.compute(head, rows)
    lacking = [entry["name"] for entry in found["goals"] if entry["passed"] is None]
    assert lacking == ["capacity: all of it", "jobs: all of it", "faults: all of it", "flows: 200 flows, all of it"]
    lines = document(found)
    assert "- Failed: flows: 200 flows: the daemon does not answer" in lines
    assert "| capacity: all of it | - | ≥ 1 | not measured |" in lines


def test_a_line_that_was_cut_off_does_not_count(tmp_path: Path) -> None:
    written(tmp_path, rows=[records.block("idle", 0.4), records.block("idle", 0.4, round_number=1)])
    with (tmp_path / "records.jsonl").open("a") as file:
        file.write('{"kind": "blo')
    assert reported(tmp_path)["scenarios"]["sender"]["idle"]["rounds"] == 2


def test_records_of_something_else_are_refused(tmp_path: Path) -> None:
    (tmp_path / "records.jsonl").write_text('{"kind": "flow"}\n')
    with pytest.raises(ValueError, match="does not begin"):
        read(tmp_path)


def test_tables_show_every_condition_and_what_failed(tmp_path: Path) -> None:
    rows = [records.block(name, 0.4, storage_bytes_per_s=6e6) for name in ("idle", "none", "brokered")]
    rows.append({"kind": "failure", "scenario": "sender", "what": "quiet", "error": "no [time] was left"})
    written(tmp_path, rows=rows)
    found = reported(tmp_path)
    out = io.StringIO()
    tables.print_report(Console(file=out, width=170), table.sections(found), found)
    for text in ("idle", "none", "brokered", "no [time] was left", "of left"):
        assert text in out.getvalue()
    assert any(line.startswith("| brokered |") for line in document(found))
