"""Members of a volatile group are killed at each point of the protocol, stopped, sent away and let in."""

from __future__ import annotations

import datetime
import json
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest
from broker_support import CONFIGURATION, Running
from patience import wait_until

from transport.volatile.record.replay import replay

PROGRAM = Path(__file__).parents[1] / "volatile_member.py"
LIMIT_S = 60.0
STALL_S = 1.0
"""What a busy machine may add to a time (`patience`); six other processes on two cores added 2 ms."""


class Members:
    """Processes by name, and what each has written so far."""

    def __init__(self, folder: Path) -> None:
        self._folder, self._tapes = folder, folder / "tapes"
        self._tapes.mkdir()
        self.processes: dict[str, subprocess.Popen[bytes]] = {}
        self._read: dict[str, tuple[int, list[dict[str, Any]]]] = {}
        self._start("register", [])
        wait_until(lambda: self.lines("register"), what=self.said, limit_s=LIMIT_S)

    def start(self, name: str, **wishes: Any) -> None:
        self._start(name, [json.dumps({"name": name, "tape": str(self._tapes), **wishes})])

    def _start(self, name: str, arguments: Sequence[str]) -> None:
        command = [sys.executable, str(PROGRAM), str(self._folder / "socket"), *arguments]
        with self._log(name).open("wb") as output, self._log(f"{name}.errors").open("wb") as errors:
            self.processes[name] = subprocess.Popen(command, stdout=output, stderr=errors)

    def lines(self, name: str) -> list[dict[str, Any]]:
        place, found = self._read.get(name, (0, []))
        with self._log(name).open("rb") as log:
            log.seek(place)
            whole, _, _ = log.read().rpartition(b"\n")
        if whole:
            found += map(json.loads, whole.splitlines())
            self._read[name] = place + len(whole) + 1, found
        return found

    def steps(self, name: str) -> list[dict[str, Any]]:
        return [one for one in self.lines(name) if "step" in one]

    def meet_as(self, names: str) -> None:
        """Wait until the result of a step has exactly the parts of those."""
        members, first = list(names), self.processes[names[0]]

        def met() -> bool:
            assert first.poll() is None, self.said()
            return any(one["members"] == members for one in self.steps(names[0])[-50:])

        wait_until(met, what=self.said, limit_s=LIMIT_S)

    def kill_at_its_point(self, name: str, *, signal_it: bool = True) -> None:
        if signal_it:
            self.processes[name].send_signal(signal.SIGUSR1)
        wait_until(lambda: any("at" in one for one in self.lines(name)), what=self.said, limit_s=LIMIT_S)
        self.processes[name].kill()

    def end_of(self, name: str) -> dict[str, Any]:
        """The last thing that a member says, when it has ended."""
        wait_until(lambda: self.processes[name].poll() is not None, what=self.said, limit_s=LIMIT_S)
        return self.lines(name)[-1]

    def said(self) -> str:
        told = {name: self.lines(name)[-2:] for name in self.processes}
        return str(told) + "".join(self._log(f"{name}.errors").read_text()[-2500:] for name in self.processes)

    def check(self) -> None:
        """All that anybody has committed is one history: the same weights after each step, none left out or twice."""
        weights: dict[int, set[str]] = {}
        for name in self.processes:
            last: int | None = None
            for one in self.lines(name):
                if "state" in one:  # it goes on from there
                    last = None
                elif "step" in one:
                    assert last is None or one["step"] == last + 1, self.said()
                    last = one["step"]
            for one in self.steps(name):
                weights.setdefault(one["step"], set()).add(one["digest"])
        assert {step for step, found in weights.items() if len(found) > 1} == set(), self.said()
        document = replay(sorted(self._tapes.iterdir()))
        assert document["violations"] == [], self.said()
        commits = [one["steps"] for run in document["runs"] for one in run["events"] if one["kind"] == "commits"]
        assert all(any(first <= step <= last for first, last in commits) for step in weights), (commits, self.said())

    def end(self) -> None:
        for process in self.processes.values():
            process.kill()
            process.wait()

    def _log(self, name: str) -> Path:
        return self._folder / name


@pytest.fixture
def members(tmp_path: Path) -> Iterator[Members]:
    found = Members(tmp_path)
    yield found
    found.end()


def test_members_that_are_killed_at_each_point_of_a_step_or_sent_away_take_nothing_with_them(members: Members) -> None:
    for name, point in zip("cdef", ["reducing", "reduced", "prepared", "committed"], strict=True):
        members.start(name, stop=point)
    for name in "ab":
        members.start(name)
    members.meet_as("abcdef")
    for place, name in enumerate("cdef"):
        members.kill_at_its_point(name)
        members.meet_as("ab" + "cdef"[place + 1 :])
    members.processes["a"].send_signal(signal.SIGTERM)  # in the middle of anything
    wait_until(lambda: members.processes["a"].poll() is not None, what=members.said, limit_s=LIMIT_S)
    assert members.processes["a"].returncode == 0, members.said()
    members.meet_as("b")
    members.check()


@pytest.mark.long
def test_members_that_are_killed_while_the_parts_of_a_step_are_chosen_take_nothing_with_them(members: Members) -> None:
    for name, point in zip("abcd", ["choosing", "chosen", "arriving", "arrived"], strict=True):
        members.start(name, stop=point, quorum=2)
    for name in "ef":
        members.start(name, quorum=2)
    members.meet_as("abcdef")
    for place, name in enumerate("abcd"):  # the first of those who are left chooses
        members.kill_at_its_point(name)
        members.meet_as("bcdef"[place:])
    members.check()


@pytest.mark.parametrize("point", ["deciding", "decided"])
def test_another_decides_when_the_one_that_decides_is_killed(members: Members, point: str) -> None:
    members.start("a", stop=point)
    for name in "bcd":
        members.start(name)
    members.meet_as("abcd")
    members.processes["a"].send_signal(signal.SIGUSR1)
    members.processes["b"].kill()
    members.kill_at_its_point("a")
    members.meet_as("cd")
    members.check()


def test_a_member_that_stood_still_joins_again_by_itself_and_holds_the_same_weights(members: Members) -> None:
    for name in "abc":
        members.start(name)
    members.meet_as("abc")
    members.processes["c"].send_signal(signal.SIGSTOP)
    wait_until(lambda: members.steps("a")[-1]["members"] == ["a", "b"], what=members.said, limit_s=LIMIT_S)
    before = len(members.lines("c"))
    members.processes["c"].send_signal(signal.SIGCONT)

    def works_again() -> bool:
        said = members.lines("c")[before:]
        return any("state" in one for one in said) and said[-1].get("members") == ["a", "b", "c"]

    wait_until(works_again, what=members.said, limit_s=LIMIT_S)
    members.check()


@pytest.mark.parametrize(("point", "contributed"), [("reducing", False), ("reduced", True)])
def test_who_is_left_out_in_a_step_hears_whether_the_others_have_its_part(
    members: Members, point: str, contributed: bool
) -> None:
    for name in "ab":
        members.start(name)
    members.start("c", stop=point)
    members.meet_as("abc")
    stands = members.processes["c"]
    stands.send_signal(signal.SIGUSR1)
    wait_until(lambda: any("at" in one for one in members.lines("c")), what=members.said, limit_s=LIMIT_S)
    step = members.steps("c")[-1]["step"] + 1
    time.sleep(0.2)  # what it has sent arrives
    stands.send_signal(signal.SIGSTOP)
    wait_until(lambda: members.steps("a")[-1]["members"] == ["a", "b"], what=members.said, limit_s=LIMIT_S)
    stands.send_signal(signal.SIGCONT)
    time.sleep(1.0)  # it finds that the others went on, before it could hear their digests and commit the step itself
    stands.send_signal(signal.SIGUSR2)
    wait_until(lambda: any("left_out_after" in one for one in members.lines("c")), what=members.said, limit_s=LIMIT_S)
    said = [
        one for one in members.lines("c") if "left_out_after" in one or (one.get("step") == step and one["members"])
    ]
    assert said[0]["contributed"] == contributed, members.said()
    assert [("c" in one["members"]) for one in members.steps("a") if one["step"] == step] == [contributed]


def test_learners_that_are_killed_or_lose_their_sources_stop_nobody(members: Members) -> None:
    of_all = {"parameters": 1_000_000, "pause_s": 0.2}  # four pieces of a mebibyte
    for name in "abc":
        members.start(name, **of_all)
    members.meet_as("abc")
    members.start("x", **of_all, stop="fetching", armed=True)
    members.kill_at_its_point("x", signal_it=False)
    members.start("y", **of_all, stop="ready", armed=True)
    members.kill_at_its_point("y", signal_it=False)
    members.start("z", **of_all)
    members.processes["a"].kill()  # the first of its sources, and who lets it in
    members.meet_as("bcz")
    members.check()


def test_a_member_that_is_sent_away_is_gone_although_no_other_listens(members: Members) -> None:
    for name in "abc":
        members.start(name)
    members.meet_as("abc")
    for name in "ab":
        members.processes[name].send_signal(signal.SIGSTOP)
    members.processes["c"].send_signal(signal.SIGTERM)
    took_s = members.end_of("c")["left_in_s"]
    assert members.processes["c"].returncode == 0, members.said()
    assert took_s <= 1.05 + STALL_S


def test_a_member_leaves_at_its_time_and_the_other_goes_on(members: Members) -> None:
    members.start("a")
    members.meet_as("a")
    members.start("z", leave_in_s=4.0)
    members.meet_as("az")
    members.end_of("z")
    assert members.processes["z"].returncode == 0, members.said()
    members.meet_as("a")
    members.check()


def test_a_member_stays_while_the_broker_is_away_and_leaves_when_it_says_that_a_schedule_holds(
    members: Members, running: Running
) -> None:
    members.start("a")
    members.meet_as("a")
    running.stop()
    now = datetime.datetime.now(datetime.UTC)
    times = [f"{now + datetime.timedelta(hours=one):%H:%M}" for one in (11, 13)]
    hours = f'[[schedule]]\nname = "office hours"\nfrom = "{times[0]}"\nto = "{times[1]}"\ntimezone = "UTC"\n'
    storage = '[schedule.class.storage]\nceiling = "20 %"\n'
    running.write(CONFIGURATION + hours + storage)
    running.start()
    members.start("x", broker=running.sessions, schedule="offise hours")
    members.end_of("x")
    assert "no schedule 'offise hours': it has 'office hours'" in members.said()
    members.start("z", broker=running.sessions, schedule="office hours")
    members.meet_as("az")
    running.stop()
    wait_until(lambda: "stays until the broker answers" in members.said(), what=members.said, limit_s=LIMIT_S)
    hours = '[[schedule]]\nname = "office hours"\nfrom = "00:00"\nto = "24:00"\ntimezone = "UTC"\n'
    running.write(CONFIGURATION + hours + storage)
    assert members.processes["z"].poll() is None, members.said()
    running.start()
    members.end_of("z")
    assert members.processes["z"].returncode == 0, members.said()
    members.meet_as("a")
    members.check()
