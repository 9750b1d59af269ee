"""Members write tapes whatever happens, and their replay finds every contradiction, with file and line."""

from __future__ import annotations

import errno
import json
import logging
import os
import re
from collections.abc import Callable, Iterator
from io import FileIO
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from broker.cli.app import app
from broker.cli.exits import ExitCode
from hive_qos.errors import ConfigurationError
from transport.settings import Settings
from transport.volatile.group import VolatileGroup
from transport.volatile.protocol import commit
from transport.volatile.protocol.commit import Prepared, Send, State
from transport.volatile.protocol.view import DIGEST_BYTES, Member, View
from transport.volatile.record import tape
from transport.volatile.record.replay import replay
from transport.volatile.record.tape import Tape
from transport.volatile.register.register import MemoryStore, Register

A, B, C, D = (Member(name, number) for number, name in enumerate("abcd", 1))
RUN = CliRunner()
OPEN: list[Job] = []
Line = dict[str, Any]


class Job:
    """Members that do everything at the same time, each with a tape."""

    def __init__(self, folder: Path, *members: Member, run: int = 7) -> None:
        view = View(1, members, 0, bytes(DIGEST_BYTES), run=run)
        self.folder = folder
        OPEN.append(self)
        self.states = {one: commit.begin(one, view) for one in members}
        self.tapes = {one: Tape(str(folder), job="llm", state=state) for one, state in self.states.items()}

    def steps(self, count: int, *, attempt: int = 1) -> None:
        """All workers reduce the next steps, and hear of each other that they did; who joins fetches the results."""
        for _ in range(count):
            said: dict[Member, Prepared] = {}
            for one, state in self.states.items():
                if one not in state.view.joining:
                    after, actions = commit.reduced(state, state.committed + 1, b"r" * DIGEST_BYTES)
                    (said[one],) = (
                        two.message for two in actions if isinstance(two, Send) and isinstance(two.message, Prepared)
                    )
                else:
                    after, _ = commit.followed(state, state.committed + 1, b"r" * DIGEST_BYTES)
                self._saw(one, after, attempt)
            for one in said:
                for sender, message in said.items():
                    if sender != one:
                        self._saw(one, commit.received(self.states[one], sender, message)[0], attempt)

    def go_on_as(self, *members: Member, joining: tuple[Member, ...] = ()) -> None:
        """The next view: who is not in it has said nothing more, who is new has the state."""
        before = next(one for one in self.states.values() if one.me in members)
        view = View(before.view.epoch + 1, members, before.committed, before.digest, joining, run=before.view.run)
        self.states = {one: state for one, state in self.states.items() if one in members}
        for one, state in self.states.items():
            self._saw(one, commit.entered(state, view)[0], 1)
        for one in set(members) - set(self.states):
            state = commit.begin_behind(one, view)
            self.states[one], self.tapes[one] = state, Tape(str(self.folder), job="llm", state=state)
            self._saw(one, commit.learned(state, view.base_step, view.digest)[0], 0)

    def _saw(self, one: Member, state: State, attempt: int) -> None:
        before, self.states[one] = self.states[one], state
        self.tapes[one].saw(before, state, attempt=attempt)


@pytest.fixture(autouse=True)
def closed() -> Iterator[None]:
    yield
    while OPEN:
        for one in OPEN.pop().tapes.values():
            one.close()


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Tapes of a job that loses b after two steps, and which d joins after three. Nobody has closed them."""
    folder = tmp_path / "tapes"
    folder.mkdir()
    job = Job(folder, A, B, C)
    job.steps(2)
    job.go_on_as(A, C)
    job.steps(1, attempt=2)
    job.go_on_as(A, C, D, joining=(D,))
    job.steps(2)
    job.go_on_as(A, C, D)
    job.steps(3)
    return folder


def files(folder: Path) -> list[Path]:
    return sorted(folder.iterdir())


def of(folder: Path, name: str) -> Path:
    (path,) = folder.glob(f"{name}.*.jsonl")
    return path


def events(folder: Path, *, backwards: bool = False) -> list[tuple[Any, ...]]:
    document = replay(files(folder)[:: -1 if backwards else 1])
    assert document["violations"] == []
    told: list[tuple[Any, ...]] = []
    for one in (one for run in document["runs"] for one in run["events"]):
        if one["kind"] == "view":
            told.append((one["epoch"], *("".join(one[key]) for key in ("members", "joining", "went", "came"))))
        else:
            told.append((*one["steps"], one["contributors"], one["done_again"]))
    return told


@pytest.mark.parametrize("backwards", [False, True])
def test_tapes_in_any_order_tell_who_came_and_went_and_which_steps_were_committed_in_between(
    folder: Path, backwards: bool
) -> None:
    assert events(folder, backwards=backwards) == [
        (1, "abc", "", "", "abc"),
        (1, 2, [3, 3], 0),
        (2, "ac", "", "b", ""),
        (3, 3, [2, 2], 1),
        (3, "acd", "d", "", "d"),
        (4, 5, [2, 2], 0),
        (4, "acd", "", "", ""),
        (6, 8, [3, 3], 0),
    ]


def test_a_step_that_the_next_view_has_committed_is_of_those_who_prepared_it(tmp_path: Path) -> None:
    job = Job(tmp_path, A, B)
    prepared, actions = commit.reduced(job.states[A], 1, b"r" * DIGEST_BYTES)
    (said,) = (one.message for one in actions if isinstance(one, Send))
    assert isinstance(said, Prepared)
    job._saw(A, prepared, 1)
    view = View(2, (A,), 1, said.digest, run=7)
    job._saw(A, commit.entered(job.states[A], view)[0], 1)
    job.states.pop(B)
    job.steps(1)
    assert events(tmp_path)[1:] == [(1, 1, [2, 2], 0), (2, "a", "", "b", ""), (2, 2, [1, 1], 0)]


def test_a_learner_that_nobody_else_has_a_tape_of_does_not_know_whose_parts_a_step_has(folder: Path) -> None:
    for name in "abc":
        of(folder, name).unlink()
    assert events(folder)[1] == (4, 5, None, 0)
    assert "steps 4 to 5" in RUN.invoke(app, ["job", "--tape", str(of(folder, "d"))]).output
    assert "contributors unknown" in RUN.invoke(app, ["job", "--tape", str(of(folder, "d"))]).output


def test_a_run_that_began_anew_contradicts_nothing(folder: Path) -> None:
    Job(folder, Member("a", 11), Member("b", 12), run=8).steps(1)
    assert events(folder)[-2:] == [(1, "ab", "", "", "ab"), (1, 1, [2, 2], 0)]


def test_a_long_tape_goes_on_in_a_new_file_beside_the_one_before(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tape, "SIZE_BYTES_MAX", 1000)
    job = Job(tmp_path, A)
    job.steps(50)
    assert [one.name for one in files(tmp_path)] == [f"a.{1:016x}.jsonl", f"a.{1:016x}.jsonl.1"]
    assert all(one.stat().st_size < 1300 for one in files(tmp_path))
    (view, steps) = events(tmp_path)
    assert view[0] == 1
    assert 40 < steps[0] < steps[1] == 50


# What contradicts itself: a tape is forged, and the finding names the line.


def forge(path: Path, change: Callable[[list[Line]], object]) -> None:
    lines = [json.loads(line) for line in path.read_text().splitlines()]
    change(lines)
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))


def line_of(lines: list[Line], **wanted: Any) -> Line:
    return next(one for one in lines if wanted.items() <= one.items())


FORGED: dict[str, tuple[str, Callable[[list[Line]], object], str]] = {
    "an epoch that falls": (
        "a",
        lambda lines: lines.append(dict(line_of(lines, kind="view", epoch=2))),
        r"/a\.\w+\.jsonl:14: epoch 2 comes after epoch 4$",
    ),
    "an epoch that comes twice": (
        "a",
        lambda lines: lines.append(dict(lines[-4])),
        r"/a\.\w+\.jsonl:14: epoch 4 comes after epoch 4$",
    ),
    "another member in a view": (
        "c",
        lambda lines: line_of(lines, epoch=2)["members"].append(["x", 9]),
        r"/c\.\w+\.jsonl:5: epoch 2 has a\.1, c\.3, x\.9; at \S*/a\.\w+\.jsonl:5 a\.1, c\.3$",
    ),
    "another incarnation in a view": (
        "c",
        lambda lines: line_of(lines, epoch=2).update(members=[["a", 99], ["c", 3]]),
        r"/c\.\w+\.jsonl:5: epoch 2 has a\.63, c\.3; at \S*/a\.\w+\.jsonl:5 a\.1, c\.3$",
    ),
    "somebody else who learns": (
        "c",
        lambda lines: line_of(lines, epoch=3, kind="view").update(joining=[]),
        r"/c\.\w+\.jsonl:7: epoch 3 has a\.1, c\.3, d\.4; at \S*/a\.\w+\.jsonl:7 a\.1, c\.3, d\.4, of whom d\.4 learn$",
    ),
    "another digest": (
        "b",
        lambda lines: line_of(lines, step=2)["digest"] and line_of(lines, step=2).update(digest="ab" * 16),
        r"/b\.\w+\.jsonl:4: step 2 has digest abababababababab; at \S*/a\.\w+\.jsonl:4 \w{16}$",
    ),
    "another digest of who has fetched it": (
        "d",
        lambda lines: line_of(lines, step=4).update(digest="ab" * 16),
        r"/d\.\w+\.jsonl:3: step 4 has digest abababababababab; at \S*/a\.\w+\.jsonl:8 \w{16}$",
    ),
    "other contributors": (
        "b",
        lambda lines: line_of(lines, step=2).update(contributors=[["a", 1], ["b", 2]]),
        r"/b\.\w+\.jsonl:4: step 2 is of a\.1, b\.2; at \S*/a\.\w+\.jsonl:4 of a\.1, b\.2, c\.3$",
    ),
    "a commit of another epoch": (
        "a",
        lambda lines: line_of(lines, step=3).update(epoch=1),
        r"/a\.\w+\.jsonl:6: step 3 is of epoch 1, and comes in epoch 2$",
    ),
    "a step committed twice": (
        "c",
        lambda lines: lines.append(dict(lines[-1])),
        r"/c\.\w+\.jsonl:14: c\.3 commits step 8 again$",
    ),
    "a broken line in the middle": (
        "a",
        lambda lines: line_of(lines, step=2).update(digest=7),
        r"/a\.\w+\.jsonl:4: no line of a tape: .*digest",
    ),
    "a view in the middle that is broken, and nothing more of it": (
        "a",
        lambda lines: line_of(lines, epoch=2, kind="view").update(members=None),
        r"/a\.\w+\.jsonl:5: no line of a tape: .*members",
    ),
}


@pytest.mark.parametrize(("name", "change", "said"), FORGED.values(), ids=FORGED.keys())
def test_what_contradicts_itself_is_found_alone_and_with_its_line(
    folder: Path, name: str, change: Callable[[list[Line]], object], said: str
) -> None:
    forge(of(folder, name), change)
    (found,) = replay(files(folder))["violations"]
    assert re.search(said, f"{found['where']}: {found['what']}"), found
    done = RUN.invoke(app, ["job", "--tape", *map(str, files(folder))])
    assert done.exit_code == ExitCode.FOUND
    assert f"1 violation\n{found['where']}: {found['what']}\n" in done.output


@pytest.mark.parametrize("outside", [["b", 2], ["d", 4], ["x", 9]])
def test_a_contributor_that_is_no_worker_of_the_view_is_found(folder: Path, outside: list[Any]) -> None:
    for name in "ac":  # they agree on it
        forge(of(folder, name), lambda lines: line_of(lines, step=4)["contributors"].append(outside))
    (found,) = replay(files(folder))["violations"]
    who = f"{outside[0]}.{outside[1]}"
    assert found["where"] == f"{of(folder, 'a')}:8"
    assert found["what"] == f"step 4 is of {who}, no worker of epoch 3 at {of(folder, 'a')}:7"


def test_a_copy_of_a_tape_is_a_member_that_commits_twice_and_the_same_file_twice_is_not(folder: Path) -> None:
    copied = folder / "copy.jsonl"
    copied.write_bytes(of(folder, "b").read_bytes())
    assert [one["what"] for one in replay(files(folder))["violations"]] == [
        "b.2 commits step 1 again", "b.2 commits step 2 again"
    ]  # fmt: skip
    copied.unlink()
    assert replay([*files(folder), *files(folder)])["violations"] == []


# Files as a bad night leaves them.


@pytest.mark.parametrize("cut", [1, 5, 60])
def test_the_last_line_of_a_killed_member_may_be_cut(folder: Path, cut: int) -> None:
    path = of(folder, "b")
    path.write_bytes(path.read_bytes()[:-cut])
    assert events(folder)[1] == (1, 2, [3, 3], 0)


@pytest.mark.parametrize("broken", ['{"kind": "commit"}', "[]", "7", "", "\0\0", '{"a":' + "[" * 100_000, "\x1b[31m"])
def test_a_broken_line_is_named_and_the_lines_after_it_count(folder: Path, broken: str) -> None:
    path = of(folder, "a")
    path.write_text(path.read_text().replace("\n", f"\n{broken}\n", 1))
    document = replay([path])
    assert [one["where"] for one in document["violations"]] == [f"{path}:2"]
    assert document["runs"][0]["events"][-1]["steps"] == [6, 8]
    assert "\x1b" not in RUN.invoke(app, ["job", "--tape", str(path)]).output


@pytest.mark.parametrize(
    ("content", "said"),
    [
        (b"", "empty: its member wrote nothing"),
        (b'{"tick": 1}\n', "no tape, as HIVE_TAPE has members write them"),
        (b"\x7fELF\xff\xfe" * 10_000, "no tape"),
        (b'{"kind": "tape", "version": 2, "job": "llm", "run": 1, "member": ["a", 1]}\n', "version"),
        (b'{"kind": "tape", "vers', "no tape"),
        (None, "no such tape; members write theirs"),
    ],
)
def test_a_file_that_is_no_tape_is_refused_by_its_name(folder: Path, content: bytes | None, said: str) -> None:
    other = folder / "other.jsonl"
    if content is not None:
        other.write_bytes(content)
    done = RUN.invoke(app, ["job", "--tape", str(of(folder, "a")), str(other)])
    assert done.exit_code == (ExitCode.SYSTEM if content is None else ExitCode.CONFIGURATION)
    assert str(other) in done.stderr
    assert said in done.stderr
    assert done.stdout == ""


def test_the_command_prints_lines_or_the_document(folder: Path) -> None:
    argv = ["job", "--tape", *map(str, files(folder))]
    done = RUN.invoke(app, argv)
    assert done.exit_code == ExitCode.OK
    lines = [re.sub(r"\d{4}-\d\d-\d\d \d\d:\d\d:\d\d", "T", line) for line in done.stdout.splitlines()]
    assert lines == [
        "llm: 4 tapes",
        "T view 1: 3 members; a, b, c came",
        "T steps 1 to 2 (until T): 3 contributors",
        "T view 2: 2 members; b went",
        "T step 3: 2 contributors, 1 done again",
        "T view 3: 3 members; d joining; d came",
        "T steps 4 to 5 (until T): 2 contributors",
        "T view 4: 3 members",
        "T steps 6 to 8 (until T): 3 contributors",
        "no violations",
    ]
    assert json.loads(RUN.invoke(app, [*argv, "--json"]).stdout) == replay(files(folder))


def test_a_pause_between_two_steps_is_told_by_the_monotonic_clock(folder: Path) -> None:
    def pause(lines: list[Line]) -> None:
        for one in lines[1:]:
            one["monotonic_s"] = 100.0 if one.get("step", 0) < 7 else 712.5
            one["at_s"] = 1.8e9  # this clock was set

    for name in "acd":
        forge(of(folder, name), pause)
    assert "steps 6 to 8 (until 2027" in (told := RUN.invoke(app, ["job", "--tape", *map(str, files(folder))]).stdout)
    assert "3 contributors, at most 612.5 s apart\n" in told


@pytest.mark.parametrize("argv", [["--tape"], ["--tape", "--watch", "x"], ["x", "y"]])
def test_arguments_that_do_not_go_together_are_refused(argv: list[str]) -> None:
    assert RUN.invoke(app, ["job", *argv]).exit_code == ExitCode.USAGE


# Where a tape cannot be written.


@pytest.mark.parametrize("short", [True, False])
def test_a_full_disk_ends_the_tape_with_one_line_in_the_log_and_nothing_else(
    folder: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch, short: bool
) -> None:
    class Full(FileIO):
        def write(self, data: Any) -> int:
            if self.tell() + len(data) > 600:
                if not short:
                    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
                return super().write(data[: 600 - self.tell()])
            return super().write(data)

    monkeypatch.setattr(tape, "FileIO", Full)
    there = tmp_path / "full"
    there.mkdir()
    with caplog.at_level(logging.WARNING, logger="transport.volatile"):
        Job(there, A).steps(20)
    (logged,) = caplog.messages
    assert re.fullmatch(rf"the tape {there}/a\.\w+\.jsonl ends here, and training goes on: .*No space left.*", logged)
    _, steps = events(there)
    assert steps[1] in (1, 2)


def test_a_folder_that_goes_away_does_not_end_training_and_one_that_was_never_there_is_refused(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.WARNING, logger="transport.volatile"):
        Job(tmp_path / "gone", A).steps(2)
    assert len(caplog.messages) == 1
    for wrong in (tmp_path / "gone", Path(__file__)):
        with pytest.raises(ConfigurationError, match=r"HIVE_TAPE.*no folder that can be written; make it"):
            VolatileGroup(
                Register(MemoryStore(), job="j"),
                name="a",
                get_state=lambda: b"",
                set_state=lambda _: None,
                apply_result=lambda _step, _tensors: None,
                settings=Settings.from_environment({"HIVE_TAPE": str(wrong)}),
            )


def test_a_member_with_any_name_has_a_file_of_its_own_in_the_folder(tmp_path: Path) -> None:
    for number, name in enumerate(("../../x", "\0/\n", "ä" * 32, "."), 1):
        Job(tmp_path, Member(name, number)).steps(1)
    assert len(files(tmp_path)) == 4
    assert len(replay(files(tmp_path))["runs"][0]["tapes"]) == 4
