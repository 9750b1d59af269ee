"""A run's directory is gone when the run is, however it ended."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from tools.measure.surroundings import work_directory

RUN = """
import sys, time
from tools.measure.surroundings import terminated_like_interrupted, work_directory
with terminated_like_interrupted(), work_directory(sys.argv[1]) as path:
    print(path, flush=True)
    time.sleep(60)
"""


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP, signal.SIGKILL])
def test_whatever_ends_a_run_its_directory_goes_with_it_or_when_the_next_one_begins(number: int) -> None:
    prefix = f"hq-test-{os.getpid()}-{number}-"
    run = subprocess.Popen(
        [sys.executable, "-c", RUN, prefix], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True
    )
    try:
        assert run.stdout is not None
        path = Path(run.stdout.readline().strip())
        with work_directory(prefix) as own:
            assert path.is_dir(), "a run that goes on keeps its own"
            assert own != path
        run.send_signal(number)
        run.wait(30)
        assert path.exists() == (number == signal.SIGKILL)
        with work_directory(prefix):
            assert not path.exists()
    finally:
        run.kill()
        run.communicate()


def test_a_directory_of_that_name_that_is_no_runs_stays() -> None:
    prefix = f"hq-test-{os.getpid()}-{time.monotonic_ns()}-"
    with work_directory(prefix) as path:
        other = path.with_name(f"{prefix}other")
        other.mkdir()
    with work_directory(prefix):
        assert other.is_dir()
    other.rmdir()
