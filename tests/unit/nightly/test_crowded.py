"""Tests that run in copies side by side: all of them count, and Python changes threads often in each."""

from __future__ import annotations

from pathlib import Path

import pytest

from tools.crowded import REPORTS, main

TESTS = """
import sys
from pathlib import Path

def test_often():
    assert sys.getswitchinterval() < 1e-5

def test_once():
    Path("here").mkdir()
"""


def test_threads_change_often_in_each_copy_and_one_that_fails_fails_the_run_and_is_shown(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("PYTHONPATH", str(Path(__file__).parents[3]))
    monkeypatch.setenv("PYTEST_DISABLE_PLUGIN_AUTOLOAD", "1")
    monkeypatch.chdir(tmp_path)
    Path("test_both.py").write_text(TESTS)
    assert main(["--copies", "2", "test_both.py"]) == 1
    said = capsys.readouterr().out
    assert (said.count(": passed"), said.count(": FAILED")) == (1, 1)
    assert ("FileExistsError" in said, said.count("1 passed"), said.count("2 passed")) == (True, 1, 1)
    assert len(list(REPORTS.iterdir())) == 2
