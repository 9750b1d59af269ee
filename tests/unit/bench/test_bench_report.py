"""The report from raw records: cells, ratios, goals, what is missing; and iperf3's own report made into a record."""

from __future__ import annotations

import io
import json
from pathlib import Path
from typing import Any

import bench_records as records
import pytest
from rich.console import Console
from typer.testing import CliRunner

from tools.bench import iperf, report, table
from tools.bench.__main__ import app
from tools.bench.settings import QUICK, SCENARIOS, Settings
from tools.bench.side import BenchError
from tools.measure import tables
from tools.measure.records import Writer, read


def goal(found: dict[str, Any], name: str) -> dict[str, Any]:
    return next(entry for entry in found["goals"] if entry["name"] == name)


def cell(found: dict[str, Any], contender: str, case: str) -> dict[str, Any]:
    return next(entry for entry in found["cells"] if (entry["contender"], entry["case"]) == (contender, case))


def document(found: dict[str, Any]) -> list[str]:
    return tables.markdown(table.sections(found), found).splitlines()


def a_run() -> list[dict[str, Any]]:
    rows = []
    for repetition, speed in enumerate((1.0, 0.5, 0.9)):
        rows.append(records.flow("native", bytes_per_s=117e6 * speed, cpu_s_per_s=0.1, repetition=repetition))
        rows.append(
            records.flow("native", bytes_per_s=117e6, cpu_s_per_s=0.1, repetition=repetition, case="1 Gbit/s, offload")
        )
        rows.append(records.flow("iperf3", bytes_per_s=119e6 * speed, repetition=repetition))
        for name, bytes_per_s in (("native", 100e6 * speed), ("iperf3", 118e6 * speed)):
            rows.append(
                records.flow(
                    name,
                    bytes_per_s=bytes_per_s,
                    cpu_s_per_s=0.2,
                    repetition=repetition,
                    case="1 Gbit/s, 1 ms, offload",
                )
            )
        rows.append(records.latency("native", [0.001] * 10, loaded=False, repetition=repetition))
        rows.append(records.latency("native", [0.003] * 10, loaded=True, repetition=repetition))
    return rows


def test_cells_are_medians_and_ratios_are_paired() -> None:
    found = report.compute(records.HEAD, a_run())
    native = cell(found, "native", "1 Gbit/s")
    assert native["figures"]["goodput_bits_per_s"]["median"] == pytest.approx(8 * 117e6 * 0.9)
    assert native["ratios"]["iperf3"]["median"] == pytest.approx(117 / 119)
    assert native["ratios"]["iperf3"]["low"] == pytest.approx(native["ratios"]["iperf3"]["high"])
    assert "iperf3" not in cell(found, "iperf3", "1 Gbit/s")["ratios"]


def test_goals_are_judged_and_what_was_not_measured_is_neither() -> None:
    found = report.compute(records.HEAD, a_run())
    assert goal(found, "1 Gbit/s: of iperf3 TCP")["passed"] is True
    assert goal(found, "1 Gbit/s, offload: sender's CPU s/GB")["passed"] is True
    assert goal(found, "1 Gbit/s, 1 ms, offload: of iperf3 TCP")["passed"] is False  # 0.85
    assert goal(found, "1 Gbit/s, 1 ms, offload: receiver's CPU s/GB")["passed"] is False  # 0.2 / 0.09
    assert goal(found, "1 Gbit/s: 1 kB beside bulk, of idle")["passed"] is False  # three times
    assert goal(found, "loopback: of Gloo, ordinary packets")["passed"] is None


def test_a_scenario_that_was_to_be_measured_and_failed_keeps_its_goals() -> None:
    found = report.compute(records.HEAD, [row for row in a_run() if row["kind"] != "latency"])
    lacking = [entry["passed"] for entry in found["goals"] if "beside bulk" in entry["name"]]
    assert lacking == [None] * 12


def test_failures_are_in_no_figure() -> None:
    rows = [*a_run(), {"kind": "failure", "scenario": "lan", "contender": "aioquic", "error": "no time was left"}]
    found = report.compute(records.HEAD, rows)
    assert [failure["contender"] for failure in found["failures"]] == ["aioquic"]


def test_a_report_is_computed_again_from_its_records_alone(tmp_path: Path) -> None:
    writer = Writer(tmp_path)
    for row in (records.HEAD, *a_run()):
        writer.write(row)
    writer.close()
    assert CliRunner().invoke(app, ["--report-only", "--output", str(tmp_path)]).exit_code == 0
    found = report.compute(*read(tmp_path))
    assert json.loads((tmp_path / "report.json").read_text()) == json.loads(json.dumps(found))


def test_records_without_a_head_are_refused(tmp_path: Path) -> None:
    writer = Writer(tmp_path)
    writer.write(records.flow("native", bytes_per_s=1.0))
    writer.close()
    with pytest.raises(ValueError, match="does not begin"):
        read(tmp_path)


def test_the_table_says_who_was_missing_and_who_failed() -> None:
    head = {**records.HEAD, "missing": {"native": "not built here"}}
    rows = [*a_run(), {"kind": "failure", "scenario": "lan", "contender": "aioquic", "error": "it hung"}]
    console = Console(width=160, file=io.StringIO())
    found = report.compute(head, rows)
    tables.print_report(console, table.sections(found), found)
    assert isinstance(console.file, io.StringIO)
    text = console.file.getvalue()
    assert "native: not built here" in text
    assert "aioquic: it hung" in text
    assert "0.98" in text  # 117 of 119


def test_the_document_has_the_tables_cells() -> None:
    lines = document(report.compute(records.HEAD, a_run()))
    native = next(line for line in lines if line.startswith("| 1 Gbit/s | native |"))
    assert native.endswith("| 0.98 |")  # of iperf3
    assert "842 Mbit/s (468 Mbit/s … 936 Mbit/s)" in native


def test_the_document_says_who_was_missing_and_who_failed() -> None:
    rows = [*a_run(), {"kind": "failure", "scenario": "lan", "contender": "aioquic", "error": "it\nhung"}]
    lines = document(report.compute({**records.HEAD, "missing": {"iperf3": "not here"}}, rows))
    assert lines[-2:] == ["- Not measured: iperf3: not here", "- Failed: lan: aioquic: it hung"]


def test_every_scenario_has_a_title() -> None:
    assert set(SCENARIOS) <= set(table.TITLES)


def test_a_quick_run_is_smaller_in_every_respect() -> None:
    whole = Settings()
    for name in ("repetitions", "loopback_s", "lan_s", "loss_s", "latency_s", "memory_bytes", "run_seconds_max"):
        assert getattr(QUICK, name) < getattr(whole, name)


def iperf_report(*, host_total: float) -> dict[str, Any]:
    intervals = [{"sum": {"end": 0.5 * (n + 1), "bytes": 10_000_000 * (n + 1)}} for n in range(4)]
    end = {"cpu_utilization_percent": {"host_total": host_total}, "streams": [{"sender": {"retransmits": 3}}]}
    return {"intervals": intervals, "end": end}


def test_iperf3s_percentage_becomes_cpu_seconds_spread_over_the_bytes() -> None:
    found = iperf.side_record(iperf_report(host_total=50.0), sending=True)
    rows = found["samples"]
    assert [row[1] for row in rows] == [0, 10_000_000, 30_000_000, 60_000_000, 100_000_000]
    assert rows[-1][2] == pytest.approx(1.0)  # half of a core for 2 s
    assert rows[2][2] == pytest.approx(0.3)
    assert rows[-1][0] - rows[0][0] == pytest.approx(2.0)
    assert found["statistics"]["retransmits"] == 3


def test_iperf3s_own_words_are_the_error() -> None:
    with pytest.raises(BenchError, match="unable to connect"):
        iperf.side_record({"error": "unable to connect to server"}, sending=False)
