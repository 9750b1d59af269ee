"""Which failed tests are asked again: a few, and nothing else."""

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
LAB, UNIT = "tests/lab/test_a.py::test_a", "tests/unit/test_b.py::test_b[native]"


def test_a_few_tests_are_asked_again() -> None:
    assert worth_asking_again([LAB, UNIT]) == [LAB, UNIT]
    few = [f"{LAB}[{number}]" for number in range(SECOND_RUNS_MAX)]
    assert worth_asking_again(few) == few


@pytest.mark.parametrize(
    "failed",
    [
        [],
        [f"{LAB}[{number}]" for number in range(SECOND_RUNS_MAX + 1)],
        ["tests/lab/test_a.py"],
    ],
)
def test_many_or_a_file_that_cannot_be_read_are_not(failed: list[str]) -> None:
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


@pytest.mark.parametrize("broken", ["", "check", "integrations"])
def test_everything_runs_and_whatever_fails_fails_the_run(tmp_path: Path, broken: str) -> None:
    folders = {name: tmp_path / "tests" / name for name in ("lab", "loopback", "unit")}
    folders |= {"daemon": folders["lab"] / "daemon"}
    folders |= {name: folders["loopback"] / name for name in ("groups", "integrations")}
    for name, folder in folders.items():
        folder.mkdir(parents=True)
        (folder / f"test_{name}.py").write_text(f"def test_it():\n    assert {name != broken}\n")
    (tmp_path / "pytest.ini").write_text("[pytest]\n")
    targets = {name: f"@echo {name} done; {'false' if name == broken else 'true'}" for name in ("check", "crate")}
    (tmp_path / "Makefile").write_text("".join(f"{name}:\n\t{recipe}\n" for name, recipe in targets.items()))
    done = suite(tmp_path)
    assert (done.returncode == 0) == (broken == ""), done.stdout + done.stderr
    passing = [f"test_{name}.py ." for name in folders if name != broken]
    assert [word for word in ("check done", "crate done", *passing) if word not in done.stdout] == []
    twice = ""
    if broken in folders:
        twice = f"FAILED TWICE: {folders[broken].relative_to(tmp_path)}/test_{broken}.py::test_it"
    assert twice in done.stdout
    assert ("FAILED TWICE" in done.stdout) == (twice != "")
    assert ("FAILED: checks" in done.stdout) == (broken == "check")


@pytest.mark.parametrize("checks", ["true", "false"])
def test_a_unit_test_that_passes_in_its_second_run_hides_no_failed_check(tmp_path: Path, checks: str) -> None:
    for name in ("lab/daemon", "lab", "loopback/groups", "loopback/integrations", "loopback", "unit"):
        (tmp_path / "tests" / name).mkdir(parents=True, exist_ok=True)
        (tmp_path / "tests" / name / f"test_{Path(name).name}.py").write_text("def test_it():\n    pass\n")
    body = "flag = Path('once'); first = not flag.exists(); flag.touch(); assert not first"
    (tmp_path / "tests/unit/test_unit.py").write_text(f"from pathlib import Path\n\ndef test_it():\n    {body}\n")
    (tmp_path / "pytest.ini").write_text("[pytest]\n")
    (tmp_path / "Makefile").write_text(f"check crate:\n\t@{checks}\n")
    done = suite(tmp_path)
    assert "UNSTABLE, passed in its second run: tests/unit/test_unit.py::test_it" in done.stdout
    assert (done.returncode == 0) == (checks == "true"), done.stdout + done.stderr
    record = json.loads((tmp_path / "state/unstable.jsonl").read_text())
    assert (record["again"], record["failed_twice"]) == (["tests/unit/test_unit.py::test_it"], [])


def test_commands_run_at_once_and_each_is_told_whole(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    for name in ("first", "second"):
        os.mkfifo(tmp_path / name)
    commands = {  # neither pipe is opened before its other end is
        "one": ["sh", "-c", "echo from one > first && cat second"],
        "two": ["sh", "-c", "cat first && echo from two > second && kill -9 $$"],
        "three": ["test", "!", "-p", "no"],
    }
    monkeypatch.chdir(tmp_path)
    assert side_by_side(commands) == {"one": 0, "two": 137, "three": 0}
    said = capsys.readouterr().out
    assert re.search(r"one: exit code 0 after \d+ s\nfrom two\n", said)
    assert re.search(r"two: exit code 137 after \d+ s\nfrom one\n", said)


def suite(folder: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "tools.suite", *arguments],
        cwd=folder,
        env={
            **os.environ,
            "PYTHONPATH": str(ROOT),
            "HIVE_TEST_STATE": str(folder / "state"),
            "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1",  # nothing here needs any, and there are many starts
        },
        capture_output=True,
        text=True,
        timeout=100,
        check=False,
    )
