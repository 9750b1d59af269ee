"""`hive-qos report` from a file: times as people write them, and a table within 80 columns."""

from __future__ import annotations

import json
import time
from pathlib import Path

import pytest
from typer.testing import CliRunner

from broker.accounting import database
from broker.cli.app import app
from broker.model.usage import Usage, UsageKey

RUN = CliRunner()


@pytest.fixture
def kept(tmp_path: Path) -> Path:
    hour_s = int(time.time()) // 3600 * 3600
    counted = {
        UsageKey(hour_s=hour_s - hours * 3600, interface="eth0", traffic_class="compute", job=job, uid=uid): Usage(
            carried_bytes=10**12, borrowed_bytes=10**9
        )
        for hours, job, uid in ((0, "llm", 0), (30, "\x1b[31m" + "x" * 300, 4_000_000_000), (0, "=1+1", 1))
    }
    database.add(tmp_path / database.NAME, counted, now_s=time.time())
    return tmp_path


def shown(kept: Path, *options: str) -> str:
    result = RUN.invoke(app, ["report", "--state-dir", str(kept), *options])
    assert result.exit_code == 0, result.output
    return result.output


def test_a_table_fits_into_80_columns_whatever_a_job_is_called(kept: Path) -> None:
    text = shown(kept, "--since", "7d", "--by", "class,job")
    assert max(map(len, text.splitlines())) <= 80
    assert "\x1b" not in text
    assert "4000000000" in text
    assert text.splitlines()[-1].split()[:3] == ["sum", "2.728", "TiB"]


def test_where_nothing_was_carried_it_says_when_that_is_written(kept: Path) -> None:
    assert "nothing is recorded; the broker writes once a minute" in shown(kept, "--since", "20d", "--until", "19d")


def test_40_columns_show_the_first_figures_and_no_line_is_broken(kept: Path) -> None:
    result = RUN.invoke(app, ["report", "--state-dir", str(kept), "--by", "class,user"], env={"COLUMNS": "40"})
    lines = result.output.splitlines()
    table = lines[-4:]
    assert [line.split()[0] for line in table] == ["class", "compute", "compute", "sum"]
    assert table[0].split() == ["class", "user", "carried", "lent"]
    assert max(map(len, lines)) <= 40


@pytest.mark.parametrize(("since", "carried"), [("24h", 2), ("90min", 2), ("2d", 3), ("1w", 3), ("2020-01-01", 3)])
def test_a_time_may_be_how_long_ago_or_a_date(kept: Path, since: str, carried: int) -> None:
    (row,) = json.loads(shown(kept, "--since", since, "--by", "class", "--json"))["rows"]
    assert row["carried_bytes"] == carried * 10**12


@pytest.mark.parametrize(
    ("options", "reason"),
    [
        (["--since", "soon"], "write a time such as"),
        (["--since", "999999999w"], "write a time such as"),
        (["--since", "1h", "--until", "2d"], "ends before it begins"),
        (["--by", "class,colour"], "'colour': one or more of hour, day"),
    ],
)
def test_what_cannot_be_is_named(kept: Path, options: list[str], reason: str) -> None:
    result = RUN.invoke(app, ["report", "--state-dir", str(kept), *options])
    assert result.exit_code == 2
    assert reason in result.output


def test_csv_has_whole_bytes_and_utc(kept: Path) -> None:
    lines = shown(kept, "--by", "day,user", "--csv").splitlines()
    assert lines[0] == "day,uid,carried_bytes,lent_bytes,borrowed_bytes,repaid_bytes"
    assert lines[1].endswith("T00:00:00+00:00,0,1000000000000,0,1000000000,0")
