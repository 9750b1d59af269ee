"""The record of tests that had to run twice: kept over all runs, and a name that comes back is named."""

from __future__ import annotations

from pathlib import Path

import pytest

from tools.nightly import unstable
from tools.nightly.state import state_directory

A, B = "tests/lab/test_a.py::test_a", "tests/loopback/test_b.py::test_b"


@pytest.fixture(autouse=True)
def _state(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HIVE_TEST_STATE", str(tmp_path / "state"))


def test_a_name_that_comes_back_fails_and_says_in_which_runs(capsys: pytest.CaptureFixture[str]) -> None:
    for again in ([A, B], [A]):
        unstable.keep(again=again, failed_twice=[])
    assert unstable.main() == 1
    said = capsys.readouterr().out
    assert f"{A}: needed a second run 2 times" in said
    assert B not in said


def test_one_second_run_of_each_test_is_no_defect() -> None:
    unstable.keep(again=[A], failed_twice=[])
    unstable.keep(again=[B], failed_twice=[])
    assert unstable.main() == 0


def test_a_test_that_failed_twice_was_broken_and_not_unstable() -> None:
    runs = [{"again": [A, B], "failed_twice": [A]}, {"again": [A, B], "failed_twice": []}]
    assert unstable.came_back(runs) == {B: 2}


def test_without_a_record_nothing_came_back() -> None:
    assert unstable.main() == 0


@pytest.mark.parametrize(
    ("named", "base", "directory"),
    [
        ("/kept", "/state", "/kept"),
        ("", "/state", "/state/hive-qos-tests"),
        ("", "", "/home/a/.local/state/hive-qos-tests"),
    ],
)
def test_the_record_outlasts_the_checkout(
    monkeypatch: pytest.MonkeyPatch, named: str, base: str, directory: str
) -> None:
    for name, value in (("HIVE_TEST_STATE", named), ("XDG_STATE_HOME", base), ("HOME", "/home/a")):
        monkeypatch.setenv(name, value)
    assert state_directory() == Path(directory)
