"""Tapes of members that agree are one chain; whatever differs in them is found, with who and where."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from hive_qos.errors import ConfigurationError
from transport.settings import Settings
from transport.volatile.protocol import commit
from transport.volatile.protocol.commit import Prepared, Send, State
from transport.volatile.protocol.view import DIGEST_BYTES, Member, View
from transport.volatile.record import tape_check
from transport.volatile.record.tape import Tape

A, B, C = (Member(name, 1) for name in "abc")
ALL = View(1, (A, B, C), 0, bytes(DIGEST_BYTES))


class Job:
    """Members that do everything at the same time, each with a tape."""

    def __init__(self, folder: Path, *, size_bytes_max: int = 2**20) -> None:
        self.states = {one: commit.begin(one, ALL) for one in ALL.members}
        self.tapes = {
            one: Tape(str(folder), job="llm", state=state, size_bytes_max=size_bytes_max)
            for one, state in self.states.items()
        }

    def step(self) -> None:
        """All members reduce the next step, and hear of each other that they did."""
        said: dict[Member, Prepared] = {}
        for one, state in self.states.items():
            after, actions = commit.reduced(state, state.committed + 1, b"r" * DIGEST_BYTES)
            self._saw(one, after)
            (said[one],) = (send.message for send in actions if isinstance(send, Send))  # type: ignore[assignment]
        for one in self.states:
            for sender, message in said.items():
                if sender != one:
                    self._saw(one, commit.received(self.states[one], sender, message)[0])

    def lose(self, gone: Member) -> None:
        """The others go on without one, which has said nothing."""
        del self.states[gone]
        first = next(iter(self.states.values()))
        members = tuple(sorted(self.states))
        view = View(first.view.epoch + 1, members, first.committed, first.digest)
        for one, state in self.states.items():
            self._saw(one, commit.entered(state, view)[0])

    def end(self) -> None:
        for tape in self.tapes.values():
            tape.close()

    def _saw(self, one: Member, state: State) -> None:
        self.states[one] = state
        self.tapes[one].saw(state)


def verdict(folder: Path) -> tape_check.Verdict:
    return tape_check.check([one for path in sorted(folder.glob("*.jsonl")) for one in tape_check.read(path)])


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Tapes of a job that lost c after its second step, and committed five."""
    job = Job(tmp_path)
    for number in range(5):
        if number == 2:
            job.lose(C)
        job.step()
    job.end()
    return tmp_path


def test_members_that_agree_are_one_chain(folder: Path) -> None:
    found = verdict(folder)
    assert found == tape_check.Verdict((A, B, C), 1, 1, 5, 5, 2, ())


def test_a_job_that_began_anew_is_two_chains(folder: Path) -> None:
    for path in folder.glob("[bc].*.jsonl"):
        path.unlink()
    (path,) = folder.glob("a.*.jsonl")
    first, *lines = (json.loads(line) for line in path.read_text().splitlines())
    anew = [{**line, **({"digest": "ab" * 16} if "commit" in line else {})} for line in lines if "view" not in line]
    begins = {**first, "run": 4712, "incarnation": 5}
    view = {**next(line for line in lines if "view" in line), "members": [["a", 5]]}
    folder.joinpath("a.5.jsonl").write_text(
        "".join(json.dumps(line) + "\n" for line in (begins, view, *({**one, "epoch": 1} for one in anew)))
    )
    found = verdict(folder)
    assert (found.runs, found.commits, found.findings) == (2, 10, ())


def change(folder: Path, name: str, wanted: Callable[[dict[str, Any]], bool], to: dict[str, Any] | None) -> None:
    """Change the lines of a member's tape that are `wanted`, or leave them out."""
    (path,) = folder.glob(f"{name}.*.jsonl")
    lines = [json.loads(line) for line in path.read_text().splitlines()]
    changed = [{**line, **(to or {})} if wanted(line) else line for line in lines if to is not None or not wanted(line)]
    assert changed != lines
    path.write_text("".join(json.dumps(line) + "\n" for line in changed))


@pytest.mark.parametrize(
    ("wanted", "to", "finding"),
    [
        (lambda line: line.get("commit") == 4, {"digest": "ff" * 16}, r"step 4 was committed with 2 digests .*ffff.*b"),
        (lambda line: line.get("commit") == 4, None, "b committed step 5 after step 3"),
        (lambda line: line.get("commit") == 4, {"commit": 3}, "b committed step 3 after step 3"),
        (lambda line: line.get("commit") == 3, {"epoch": 1}, "b committed step 3 in epoch 1; epoch 2 begins at 2"),
        (lambda line: line.get("view") == 2, {"view": 1}, "b entered epoch 1 after epoch 1"),
        (lambda line: line.get("view") == 2, {"members": [["b", 1]]}, r"epoch 2 has 2 views \(a, b: a; b: b\)"),
        (lambda line: line.get("view") == 2, {"base_step": 1}, "b entered epoch 2, which begins with step 1, at 2"),
        (lambda line: line.get("view") == 2, {"digest": "ee" * 16}, "epoch 2 has 2 views"),
    ],
)
def test_whatever_differs_is_found(
    folder: Path, wanted: Callable[[dict[str, Any]], bool], to: dict[str, Any] | None, finding: str
) -> None:
    change(folder, "b", wanted, to)
    found = verdict(folder).findings
    assert any(re.search(finding, one) for one in found), found


def test_a_view_that_begins_with_what_nobody_committed_is_found(folder: Path) -> None:
    for name in "ab":
        change(folder, name, lambda line: line.get("view") == 2, {"digest": "ee" * 16})
    assert verdict(folder).findings == ("epoch 2 begins with step 2 as eeeeeeee, which nobody committed",)


def test_a_commit_of_a_member_that_is_gone_is_found(folder: Path) -> None:
    (path,) = folder.glob("c.*.jsonl")
    digest = json.loads(next(folder.glob("a.*.jsonl")).read_text().splitlines()[-3])["digest"]
    with path.open("a") as file:
        file.write(json.dumps({"at_s": 1.0, "commit": 3, "epoch": 2, "digest": digest}) + "\n")
    assert "c committed step 3 in epoch 2, of which it is no member" in verdict(folder).findings


def test_a_tape_is_bounded_and_whole_without_what_came_before(tmp_path: Path) -> None:
    job = Job(tmp_path, size_bytes_max=2000)
    for _ in range(100):
        job.step()
    job.end()
    assert all(path.stat().st_size < 3000 for path in tmp_path.iterdir())
    assert len(list(tmp_path.iterdir())) == 6
    found = verdict(tmp_path)
    assert (found.findings, found.last_step) == ((), 100)
    assert found.first_step > 50


def test_a_killed_members_last_line_is_left_out_and_any_other_is_named(folder: Path) -> None:
    (path,) = folder.glob("a.*.jsonl")
    with path.open("a") as file:
        file.write('{"commit": 6, "ep')
    assert verdict(folder).findings == ()
    whole = path.read_text().rpartition("\n")[0]
    no_time = '{"at_s": NaN, "commit": 6, "epoch": 2, "digest": ""}'
    for line in (no_time, '{"commit": 6, "ep', '{"commit": 1e999, "epoch": 1, "digest": ""}', "[" * 100_000):
        path.write_text(f"{whole}\n{line}\n")
        with pytest.raises(ConfigurationError, match="line 9"):
            verdict(folder)


def test_who_learns_may_be_given_a_later_state_and_nobody_else(folder: Path) -> None:
    digest = {step: verdict_digest(folder, step) for step in (2, 4, 5)}
    head = {"tape": 1, "job": "llm", "member": "d", "incarnation": 9, "step": -1, "digest": "00" * 16}
    view = {"view": 3, "members": [["a", 1], ["b", 1], ["d", 9]], "joining": [["d", 9]], "base_step": 5}
    begins = {"at_s": 1.0, "epoch": 3}
    given = [head, {**begins, **view, "digest": digest[5]}, {**begins, "holds": 2, "digest": digest[2]}]
    last = {**begins, "commit": 5, "digest": digest[5]}
    for name, findings in (("holds", ()), ("commit", ("d committed step 4 after step 2",))):
        lines = [*given, {**begins, name: 4, "digest": digest[4]}, last]
        (folder / "d.0009.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
        assert verdict(folder).findings == findings


def test_a_learner_writes_what_it_was_given_and_then_what_it_commits(tmp_path: Path) -> None:
    learns = replace(ALL, joining=(C,))
    state = replace(commit.begin(C, learns), committed=-1)
    tape = Tape(str(tmp_path), job="llm", state=state)
    for step in (3, 4, 9, 10):
        state = replace(state, committed=step)
        tape.saw(state)
    tape.close()
    lines = [json.loads(line) for line in tape.path.read_text().splitlines()[2:]]
    assert [next(iter({"holds", "commit"} & set(line))) for line in lines] == ["holds", "commit", "holds", "commit"]


def verdict_digest(folder: Path, step: int) -> str:
    """With which a committed a step."""
    lines = [json.loads(line) for line in next(folder.glob("a.*.jsonl")).read_text().splitlines()]
    return next(str(line["digest"]) for line in lines if line.get("commit") == step)


def test_tapes_of_two_jobs_are_not_compared(folder: Path) -> None:
    change(folder, "b", lambda line: "tape" in line, {"job": "other"})
    with pytest.raises(ConfigurationError, match="several jobs"):
        verdict(folder)


def test_training_goes_on_without_a_tape_that_cannot_be_written(tmp_path: Path) -> None:
    state = commit.begin(A, ALL)
    tape = Tape(str(tmp_path / "none"), job="llm", state=state)
    tape.saw(commit.changed(state)[0])
    with pytest.raises(ConfigurationError, match="HIVE_TAPE"):
        Settings(tape=str(tmp_path / "none"))
