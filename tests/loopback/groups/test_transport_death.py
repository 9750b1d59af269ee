"""Ranks as processes that are killed, that crash, that are interrupted: the others learn it and name them."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

PROGRAM = Path(__file__).parents[1] / "transport_programs.py"


class Program:
    """One rank."""

    def __init__(self, what: str, rank: int, size: int, directory: Path) -> None:
        environment = os.environ | {
            "HIVE_LISTEN": "127.0.0.1",
            "HIVE_BROKER": "off",
            "HIVE_ENGINE": os.environ["HIVE_ENGINE"],
            "HIVE_JOB_SECRET": "secret of the test",
            "PYTHONFAULTHANDLER": "1",
        }
        self.process = subprocess.Popen(
            [sys.executable, str(PROGRAM), what, str(rank), str(size), str(directory)],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            env=environment,
        )

    def line(self) -> dict[str, Any]:
        """The next thing that it says."""
        assert self.process.stdout is not None
        text = self.process.stdout.readline()
        if not text:
            assert self.process.stderr is not None
            raise AssertionError(f"it ended: {self.process.stderr.read()}")
        said: dict[str, Any] = json.loads(text)
        return said

    def end(self) -> tuple[int, str]:
        """Its exit status and what it wrote to standard error."""
        try:
            _, errors = self.process.communicate(timeout=60)
        except subprocess.TimeoutExpired:
            self.process.send_signal(signal.SIGABRT)  # the fault handler then writes where every thread stands
            raise AssertionError(f"it does not end: {self.process.communicate()[1]}") from None
        return self.process.returncode, errors


@pytest.fixture
def programs(tmp_path: Path) -> Iterator[Any]:
    started: list[Program] = []

    def start(what: str, size: int) -> list[Program]:
        started.extend(Program(what, rank, size, tmp_path / "meet") for rank in range(size))
        for one in started:
            assert one.line()["connected"]
        return started

    yield start
    for one in started:
        one.process.kill()
        one.process.communicate()


def test_a_killed_rank_is_named_by_all_others_long_before_their_timeouts(programs):
    first, second, third = programs("steps", 3)
    for one in (first, second, third):
        assert one.line()["value"] == 6.0
    killed_s = time.monotonic()
    third.process.send_signal(signal.SIGKILL)
    for one in (first, second):
        said = one.line()
        while "error" not in said:
            said = one.line()
        assert (said["error"], said["rank"]) == ("ConnectionLostError", 2), said
        assert said["at_s"] - killed_s < 30.0  # 5 s of silence and 2 s of dialling; their own timeouts are 60 s
        assert one.line()["closed"]
        assert one.end()[0] == 0


def test_a_rank_that_crashes_says_goodbye_and_is_named_by_it(programs):
    first, second = programs("crash", 2)
    status, errors = first.end()
    assert status == 1
    assert "a bug in the training script" in errors
    said = second.line()
    assert (said["error"], said["rank"]) == ("ConnectionLostError", 0), said
    assert "has left the group" in said["text"]  # and was not waited for until it counted as dead


def test_ctrl_c_ends_a_waiting_rank_and_tells_the_other(programs):
    first, second = programs("idle", 2)
    first.process.send_signal(signal.SIGINT)
    status, errors = first.end()
    assert status == -signal.SIGINT or "KeyboardInterrupt" in errors
    said = second.line()
    assert said["rank"] == 0
    assert "has left the group" in said["text"]


def test_a_stopped_rank_that_comes_back_in_time_is_not_lost(programs):
    first, second = programs("steps", 2)
    assert first.line()["value"] == 3.0
    second.process.send_signal(signal.SIGSTOP)
    time.sleep(1.5)  # a garbage collection, a swapped page, a laptop's lid: well under the 5 s that count as death
    second.process.send_signal(signal.SIGCONT)
    assert first.line()["step"] == 5
