"""The command before a run begins: an option that cannot work is named, and an old run is not shown as this one's."""

from __future__ import annotations

import io
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from rich.console import Console

from tools.demo import report as reports
from tools.demo.records import Recorder, read
from tools.demo.report import compute
from tools.demo.table import print_report

ROOT = Path(__file__).parents[3]
RUN = Path(__file__).with_name("recorded-run")


def demo(output: Path, option: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "tools.demo", "run", "--output", str(output), option]
    return subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=60)


@pytest.mark.parametrize(
    ("option", "words"),
    [
        ("--rate=foo", "rate = 'foo': not a rate"),
        ("--width=81", "width = 81: has to be a multiple of heads"),
        ("--half=0 s", "half_s = 0.0: has to be above 0"),
        ("--warm-up=soon", "warm-up = 'soon': not a duration"),
        ("--batch=-1", "batch = -1: cannot be below 0"),
        ("--engine=quiche", "engine = 'quiche': there are auto, native, aioquic"),
        ("--minutes-max=0", "run_seconds_max = 0.0: the watchdog has to be above 0"),
    ],
)
def test_a_bad_option_is_named_and_the_old_run_in_its_place_is_neither_shown_nor_touched(
    tmp_path: Path, option: str, words: str
) -> None:
    output = tmp_path / "run"
    shutil.copytree(RUN, output)
    before = {path.name: path.read_bytes() for path in output.iterdir()}
    done = demo(output, option)
    assert done.returncode == 2
    assert " ".join((done.stdout + done.stderr).split()).startswith(f"[configuration] {words}")
    assert "of idle" not in done.stdout
    assert {path.name: path.read_bytes() for path in output.iterdir()} == before


def test_a_run_that_fails_before_its_first_record_has_nothing_of_an_earlier_one(tmp_path: Path) -> None:
    output = tmp_path / "run"
    shutil.copytree(RUN, output)
    reports.write(output)
    reports.clear(output)
    assert list(output.iterdir()) == []
    with Recorder(output):
        pass
    with pytest.raises(ValueError, match="no run"):
        reports.write(output)


def test_the_table_says_why_storage_can_have_more_than_all_that_was_left() -> None:
    console = Console(record=True, width=200, file=io.StringIO())
    print_report(console, compute(read(RUN)))
    text = console.export_text()
    assert "of left: storage's share of what training left of 97 % of the link" in text
