"""The report of a run from its file to tables, and what the command refuses."""

from __future__ import annotations

import io
import json
from pathlib import Path

import pytest
from collectivesbench_records import HEAD, record, trained, urgent
from rich.console import Console
from typer.testing import CliRunner

from tools.collectivesbench import networks, report, table
from tools.collectivesbench.__main__ import app
from tools.collectivesbench.settings import MIB
from tools.measure import tables
from tools.measure.records import Writer, read


@pytest.fixture
def directory(tmp_path: Path) -> Path:
    writer = Writer(tmp_path)
    writer.write(HEAD)
    for contender in ("hive", "gloo cubic"):
        for size in (MIB, 16 * MIB):
            writer.write(record(contender, size / 80e6, size=size))
        writer.write(record(contender, 0.5, scenario="host", network=networks.one_host(2)))
        writer.write(urgent(contender, 0.02, [0.03], covered=[True]))
        writer.write(trained(contender, [0.5] * 30))
        writer.write(trained(contender, [0.5] * 30, fell_s=103.2))
    writer.write({"kind": "failure", "scenario": "lan", "contender": "gloo bbr", "error": "[bench] it broke"})
    writer.close()
    return tmp_path


def test_a_report_is_strict_json_and_every_scenario_has_a_table(directory: Path) -> None:
    found = report.compute(*read(directory))
    json.loads(json.dumps(found), parse_constant=pytest.fail)
    titles = [title for title, _, _ in table.sections(found)]
    assert titles == [
        "In short",
        *(table.TITLES[name] for name in ("lan", "urgent", "falling", "training", "host")),
        "Goals",
    ]


def test_each_row_of_a_table_has_all_its_columns(directory: Path) -> None:
    found = report.compute(*read(directory))
    for _, heads, rows in table.sections(found):
        assert {len(row) for row in rows} == {len(heads)}
    lines = tables.markdown(table.sections(found), found).splitlines()
    assert any(line.startswith("| 1 Gbit/s, 2 ranks | all_reduce 16 MiB | hive | 1 |") for line in lines)
    assert "| 1 Gbit/s, 2 ranks | 16 MiB | 1 | 210 ms | 210 ms | 1.00 | 1.49 | 2.10 |" in lines
    assert any("2 ranks, all_reduce of 16 to 64 MiB" in line and line.endswith("| one turn |") for line in lines)


def test_what_failed_is_printed(directory: Path) -> None:
    out = io.StringIO()
    found = report.compute(*read(directory))
    tables.print_report(Console(file=out, width=250), table.sections(found), found)
    assert "Failed: lan: gloo bbr: [bench] it broke" in out.getvalue()
    assert "- Failed: lan: gloo bbr: [bench] it broke" in tables.markdown(table.sections(found), found).splitlines()


def test_an_unknown_scenario_and_a_folder_without_records_are_refused(tmp_path: Path) -> None:
    refused = CliRunner().invoke(app, ["wan"])
    assert refused.exit_code == 2
    assert "no scenario wan; there are lan, uneven" in refused.output
    refused = CliRunner().invoke(app, ["--report-only", "--output", str(tmp_path)])
    assert refused.exit_code == 2
    assert "records.jsonl" in refused.output
