"""Members of a volatile group are killed, stopped, joined and sent away: those that go on hold the same weights."""

from __future__ import annotations

import contextlib
import itertools
import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from patience import wait_until
from torch._C._distributed_c10d import TCPStore

from transport.volatile.record.replay import replay

PROGRAM = Path(__file__).parent / "programs" / "volatile_rank.py"


class Members:
    """Processes by name, and what each has written so far."""

    def __init__(self, folder: Path, port: int) -> None:
        self._folder, self._port = folder, port
        self.processes: dict[str, subprocess.Popen[bytes]] = {}
        self.tapes = folder / "tapes"
        self.tapes.mkdir()

    def start(self, name: str) -> None:
        command = [sys.executable, str(PROGRAM), name, str(self._port)]
        with self._log(name).open("wb") as output, self._log(f"{name}.errors").open("wb") as errors:
            environment = {**os.environ, "HIVE_TAPE": str(self.tapes)}
            self.processes[name] = subprocess.Popen(command, stdout=output, stderr=errors, env=environment)

    def lines(self, name: str) -> list[dict[str, Any]]:
        text = self._log(name).read_text(encoding="utf-8")
        return [json.loads(line) for line in text.splitlines(keepends=True) if line.endswith("\n")]

    def steps(self, name: str) -> list[dict[str, Any]]:
        return [one for one in self.lines(name) if "step" in one]

    def meet_as(self, names: list[str]) -> None:
        """Wait until exactly those meet."""
        wait_until(
            lambda: any(one["members"] == names for one in self.steps(names[0])[-1:]), what=self.said, limit_s=60.0
        )

    def said(self) -> str:
        told = {name: self.lines(name)[-2:] for name in self.processes}
        return str(told) + "".join(self._log(f"{name}.errors").read_text()[-1500:] for name in self.processes)

    def end(self) -> None:
        for process in self.processes.values():
            process.kill()
            process.wait()

    def _log(self, name: str) -> Path:
        return self._folder / name


@pytest.fixture
def members(tmp_path: Path) -> Iterator[Members]:
    store = TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
    found = Members(tmp_path, store.port)
    with contextlib.closing(contextlib.ExitStack()) as stack:
        stack.callback(found.end)
        yield found


@pytest.mark.long
def test_members_are_killed_stand_still_join_and_leave_and_hold_the_same_weights(members: Members) -> None:
    for name in "abc":
        members.start(name)
    members.meet_as(["a", "b", "c"])
    members.processes["b"].kill()
    members.meet_as(["a", "c"])
    members.start("d")
    members.meet_as(["a", "c", "d"])
    members.processes["c"].send_signal(signal.SIGSTOP)
    members.meet_as(["a", "d"])
    members.processes["c"].send_signal(signal.SIGCONT)
    members.meet_as(["a", "c", "d"])  # it joined again by itself
    members.processes["c"].send_signal(signal.SIGTERM)
    assert members.processes["c"].wait(60.0) == 0, members.said()
    members.meet_as(["a", "d"])
    members.processes["a"].send_signal(signal.SIGTERM)
    assert members.processes["a"].wait(60.0) == 0, members.said()
    members.meet_as(["d"])

    members.end()
    meetings: dict[int, set[tuple[str, ...]]] = {}
    for name in "abcd":
        for one in members.steps(name):
            meetings.setdefault(one["step"], set()).add((one["digest"], *one["members"]))
    assert {step: found for step, found in meetings.items() if len(found) > 1} == {}
    for name in "abcd":  # one after the other, none twice
        steps = [one["step"] for one in members.steps(name)]
        left_out = [after for before, after in itertools.pairwise(steps) if after != before + 1]
        assert len(left_out) == (name == "c")
        assert steps == sorted(set(steps))

    tapes = sorted(members.tapes.iterdir())
    assert {one.name[0] for one in tapes} == {*"abcd"}
    document = replay(tapes)
    assert document["violations"] == []
    (run,) = document["runs"]
    views = [one for one in run["events"] if one["kind"] == "view"]
    assert {*"abc"} <= {name for one in views for name in one["went"]}  # on a busy host also who lives
    assert {name for one in views for name in one["came"]} == {*"abcd"}
    taped = {
        step: one["contributors"]
        for one in run["events"]
        if one["kind"] == "commits"
        for step in range(one["steps"][0], one["steps"][1] + 1)
    }
    printed = {one["step"]: len(one["members"]) for name in "abcd" for one in members.steps(name)}
    assert {step: taped[step] for step in printed} == {step: [count, count] for step, count in printed.items()}
