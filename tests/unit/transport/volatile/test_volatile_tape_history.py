"""Tapes tell what happened to a job: who came and left when, and how its steps went on."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from broker.cli.app import app
from transport.volatile.protocol.view import Member
from transport.volatile.record import tape_check
from transport.volatile.record.tape_history import TapedEpoch, history

A, B, C = (Member(name, 1) for name in "abc")
BEGAN_S = 1_790_000_000.0


def write(folder: Path, name: str, *lines: tuple[float, dict[str, Any]], run: int = 7) -> None:
    """A member's tape; times are from `BEGAN_S` on."""
    head = {"tape": 1, "job": "llm", "run": run, "member": name, "incarnation": 1, "step": 0, "digest": ""}
    written = [head, *({"at_s": BEGAN_S + at_s, "digest": "ab", **line} for at_s, line in lines)]
    (folder / f"{name}.{run}.jsonl").write_text("".join(json.dumps(line) + "\n" for line in written))


def view(epoch: int, names: str, *, base_step: int, joining: str = "") -> dict[str, Any]:
    members, learning = ([[one, 1] for one in some] for some in (names, joining))
    return {"view": epoch, "members": members, "joining": learning, "base_step": base_step}


def commit(step: int, epoch: int) -> dict[str, Any]:
    return {"commit": step, "epoch": epoch}


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Three members, of whom c is lost after three steps, and comes again as one that learns."""
    both = [
        (0.0, view(1, "abc", base_step=0)),
        *((1.0 + step, commit(step, 1)) for step in (1, 2, 3)),
        (6.0, view(2, "ab", base_step=3)),
        (6.5, commit(4, 2)),
        (7.0, view(3, "abc", base_step=4, joining="c")),
    ]
    write(tmp_path, "a", *((at_s + 0.25, line) for at_s, line in both))
    write(tmp_path, "b", *both)
    write(tmp_path, "c", *both[:3])
    return tmp_path


def epochs(folder: Path) -> tuple[TapedEpoch, ...]:
    return history([one for path in sorted(folder.glob("*.jsonl")) for one in tape_check.read(path)])


def test_each_view_tells_who_came_and_left_and_how_steps_went_on(folder: Path) -> None:
    first, second, third = epochs(folder)
    assert first == TapedEpoch(7, 1, BEGAN_S, 3, (A, B, C), (), (), 1, 3, 1.0, 1.0)
    assert second == TapedEpoch(7, 2, BEGAN_S + 6.0, 2, (), (C,), (), 4, 4, None, 2.5)
    assert third == TapedEpoch(7, 3, BEGAN_S + 7.0, 3, (C,), (), (C,), 0, 0, None, None)


def test_steps_in_a_view_that_no_tape_has_any_more_are_told_too(folder: Path) -> None:
    for path in folder.glob("*.jsonl"):
        path.write_text("".join(line for line in path.read_text().splitlines(True) if '"view": 1,' not in line))
    first, second, _ = epochs(folder)
    assert first == TapedEpoch(7, 1, BEGAN_S + 2.0, 3, (A, B, C), (), (), 1, 3, 1.0, 1.0)
    assert second.without_commit_s == 2.5


def test_a_clock_that_is_behind_shortens_no_time_below_nothing(folder: Path) -> None:
    write(folder, "a", (-900.0, view(2, "ab", base_step=3)), (-899.0, commit(4, 2)), (9.5, commit(5, 2)))
    (folder / "b.7.jsonl").unlink()
    assert [one.without_commit_s for one in epochs(folder)] == [1.0, 6.5]


def test_runs_of_a_job_follow_each_other(folder: Path) -> None:
    write(folder, "a", (-50.0, view(1, "a", base_step=0)), (-49.0, commit(1, 1)), run=9)
    assert [(one.run, one.epoch) for one in epochs(folder)] == [(9, 1), (7, 1), (7, 2), (7, 3)]


def test_the_command_tells_it_in_words_and_in_json(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "200")
    files = [str(path) for path in sorted(folder.glob("*.jsonl"))]
    lines = CliRunner().invoke(app, ["tapes", *files, "--replay"]).output.splitlines()
    assert [line.partition(" view ")[2] for line in lines[:3]] == [
        "1: 3 members; a, b, c came; steps 1 to 3, 1 a second; at most 1.0 s without one",
        "2: 2 members; c gone; step 4; at most 2.5 s without one",
        "3: 3 members; c came; c learning; no step",
    ]
    assert lines[3] == "3 members committed steps 1 to 4 in 3 views: one chain"
    assert CliRunner().invoke(app, ["tapes", *files]).output.splitlines() == lines[3:]
    found = json.loads(CliRunner().invoke(app, ["tapes", *files, "--json"]).output)
    assert [one["without_commit_s"] for one in found["history"]] == [1.0, 2.5, None]
    assert found["findings"] == []
