"""The steps of a night: none hides another, and one that left something out did not pass."""

from __future__ import annotations

from pathlib import Path

import pytest

from tools.nightly.__main__ import LOGS, STEPS, main

GOOD, BAD, HALF = (
    ("echo", "all is well"),
    ("sh", "-c", "echo broken; exit 3"),
    ("echo", "engine: fuzzing left out: no C++"),
)


@pytest.fixture(autouse=True)
def _in_a_folder_of_its_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def test_a_step_that_fails_does_not_hide_those_after_it(capfd: pytest.CaptureFixture[str]) -> None:
    assert main([], steps={"first": BAD, "second": GOOD}) == 1
    said = capfd.readouterr().out
    assert "nightly: first      FAILED (3)" in said
    assert "nightly: second     passed" in said
    assert Path(LOGS, "first.log").read_text() == "broken\n"


def test_a_step_that_left_something_out_is_incomplete_and_says_what(capfd: pytest.CaptureFixture[str]) -> None:
    assert main([], steps={"fuzz": HALF}) == 1
    said = capfd.readouterr().out
    assert "nightly: fuzz       INCOMPLETE" in said
    assert "nightly:   engine: fuzzing left out: no C++" in said


def test_only_the_named_steps_run_in_their_own_order(capfd: pytest.CaptureFixture[str]) -> None:
    assert main(["last", "first"], steps={"first": GOOD, "middle": BAD, "last": GOOD}) == 0
    ran = [line.split()[1] for line in capfd.readouterr().out.splitlines() if line.endswith(" s")]
    assert ran == ["first", "last"]


def test_an_unknown_step_is_refused_before_anything_runs(capfd: pytest.CaptureFixture[str]) -> None:
    assert main(["fuzzz"]) == 2
    assert ", ".join(STEPS) in capfd.readouterr().err
