"""Which failed tests are asked again: a few that depend on real time, and nothing else."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from tools.suite import SECOND_RUNS_MAX, side_by_side, worth_asking_again

ROOT = Path(__file__).parents[2]
LAB, LOOPBACK = "tests/lab/test_a.py::test_a", "tests/loopback/test_b.py::test_b[native]"


def test_a_few_tests_of_real_time_are_asked_again() -> None:
    assert worth_asking_again([LAB, LOOPBACK]) == [LAB, LOOPBACK]


@pytest.mark.parametrize(
    "failed",
    [
        [],
        [f"{LAB}[{number}]" for number in range(SECOND_RUNS_MAX + 1)],
        [LAB, "tests/unit/test_c.py::test_c"],
        ["tests/lab/test_a.py"],
    ],
)
def test_many_or_others_or_a_file_that_cannot_be_read_are_not(failed: list[str]) -> None:
    assert worth_asking_again(failed) == []


@pytest.mark.parametrize(
    ("body", "code", "said"),
    [
        ("flag = Path('once'); first = not flag.exists(); flag.touch(); assert not first", 0, "UNSTABLE"),
        ("assert False", 1, "FAILED TWICE"),
        ("pass", 0, "1 passed"),
    ],
)
def test_the_second_run_decides_and_is_reported(tmp_path: Path, body: str, code: int, said: str) -> None:
    folder = tmp_path / "tests" / "lab"
    folder.mkdir(parents=True)
    (folder / "test_it.py").write_text(f"from pathlib import Path\n\ndef test_it():\n    {body}\n")
    (tmp_path / "pytest.ini").write_text("[pytest]\n")
    done = suite(tmp_path, "tests")
    assert done.returncode == code, done.stdout + done.stderr
    assert said in done.stdout
    kept = tmp_path / "state/unstable.jsonl"
    assert kept.exists() == (said != "1 passed")
    if kept.exists():
        record = json.loads(kept.read_text())
        assert record["again"] == ["tests/lab/test_it.py::test_it"]
        assert record["failed_twice"] == (record["again"] if code else [])


@pytest.mark.parametrize("broken", ["", "check", "unit", "lab"])
def test_everything_runs_and_whatever_fails_fails_the_run(tmp_path: Path, broken: str) -> None:
    for name in ("lab", "loopback"):
        (tmp_path / "tests" / name).mkdir(parents=True)
        (tmp_path / "tests" / name / f"test_{name}.py").write_text(f"def test_it():\n    assert {name != broken}\n")
    (tmp_path / "pytest.ini").write_text("[pytest]\n")
    targets = {
        name: f"@echo {name} done; {'false' if name == broken else 'true'}" for name in ("check", "crate", "unit")
    }
    (tmp_path / "Makefile").write_text("".join(f"{name}:\n\t{recipe}\n" for name, recipe in targets.items()))
    done = suite(tmp_path)
    assert (done.returncode == 0) == (broken == ""), done.stdout + done.stderr
    assert [
        word for word in ("check done", "crate done", "unit done", "test_loopback.py .") if word not in done.stdout
    ] == []
    assert ("FAILED TWICE: tests/lab/test_lab.py::test_it" in done.stdout) == (broken == "lab")
    assert ("FAILED: checks and unit tests" in done.stdout) == (broken in ("check", "unit"))


def test_commands_run_at_once_and_each_is_told_whole(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    for name in ("first", "second"):
        os.mkfifo(tmp_path / name)
    commands = {  # neither pipe is opened before its other end is
        "one": ["sh", "-c", "echo from one > first && cat second"],
        "two": ["sh", "-c", "cat first && echo from two > second && kill -9 $$"],
    }
    monkeypatch.chdir(tmp_path)
    assert side_by_side(commands) == {"one": 0, "two": 137}
    said = capsys.readouterr().out
    assert re.search(r"one: exit code 0 after \d+ s\nfrom two\n", said)
    assert re.search(r"two: exit code 137 after \d+ s\nfrom one\n", said)


def suite(folder: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "tools.suite", *arguments],
        cwd=folder,
        env={**os.environ, "PYTHONPATH": str(ROOT), "HIVE_TEST_STATE": str(folder / "state")},
        capture_output=True,
        text=True,
        timeout=100,
        check=False,
    )
