"""Tests that run in copies side by side: all of them count, and Python changes threads often in each."""

from __future__ import annotations

from pathlib import Path

import pytest

from tools.crowded import REPORTS, main

OFTEN = "import sys\n\n\ndef test_often():\n    assert sys.getswitchinterval() < 1e-5\n"
ONCE = "from pathlib import Path\n\n\ndef test_once():\n    Path('here').mkdir()\n"


@pytest.fixture(autouse=True)
def _in_a_folder_of_its_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYTHONPATH", str(Path(__file__).parents[3]))
    monkeypatch.chdir(tmp_path)


def test_threads_change_often_in_each_copy(capsys: pytest.CaptureFixture[str]) -> None:
    Path("test_often.py").write_text(OFTEN)
    assert main(["--copies", "2", "test_often.py"]) == 0
    assert capsys.readouterr().out.count("passed\n  1 passed") == 2


def test_one_copy_that_fails_fails_the_run_and_is_shown(capsys: pytest.CaptureFixture[str]) -> None:
    Path("test_once.py").write_text(ONCE)
    assert main(["--copies", "3", "test_once.py"]) == 1
    said = capsys.readouterr().out
    assert (said.count(": passed"), said.count(": FAILED")) == (1, 2)
    assert "FileExistsError" in said
    assert len(list(REPORTS.iterdir())) == 3
