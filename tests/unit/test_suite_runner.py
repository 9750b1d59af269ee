"""Which failed tests are asked again: a few that depend on real time, and nothing else."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tools.suite import SECOND_RUNS_MAX, worth_asking_again

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
    done = subprocess.run(
        [sys.executable, "-m", "tools.suite", "tests"],
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        timeout=100,
        check=False,
    )
    assert done.returncode == code, done.stdout + done.stderr
    assert said in done.stdout
