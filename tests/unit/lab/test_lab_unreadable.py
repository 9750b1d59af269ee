"""A lab of which nothing can be read stands in nobody's way, and is taken down by its id."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from tools.lab import cli, state
from tools.lab.kernel import LabError
from tools.lab.state import LabState, Process

LOST, OTHER = "0abc", "0def"


@pytest.fixture(autouse=True)
def labs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Two: the owner of the one that is to become unreadable is dead."""
    monkeypatch.setenv("HIVE_LAB_STATE", str(tmp_path / "labs"))
    for name in ("NAMESPACES", "HOSTS_FILES"):
        monkeypatch.setattr(state, name, tmp_path / name)
    state._say_once.cache_clear()
    state.create(LabState(id=LOST, name="lost", owner=Process(pid=1, start_ticks=1)))
    state.create(LabState(id=OTHER, name="other", owner=Process.of(os.getpid()), detached=True))


@pytest.fixture(params=["cut short", "a directory"])
def lost(request: pytest.FixtureRequest) -> Path:
    """The directory of the lab that cannot be read."""
    path = state.directory_of(LOST) / "state.json"
    if request.param == "cut short":
        path.write_text(path.read_text()[:40])
    else:  # as good as one that the kernel refuses: root may read all others
        path.unlink()
        path.mkdir()
    return path.parent


def run(*words: str) -> object:
    """The exit status of a command."""
    with pytest.raises(SystemExit) as ended:
        cli.main(words)
    return ended.value.code


def test_it_is_taken_down_all_the_same(lost: Path) -> None:
    with pytest.raises(LabError, match=r"lab 0abc: its state\.json cannot be read"):
        state.read(LOST)
    assert state.processes_inside(LOST) == []
    state.tear_down(LOST)
    assert not lost.exists()


def test_the_others_are_found_and_it_is_told_of_in_one_line(lost: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert state.sweep() == []
    assert [lab.id for lab in state.all_labs()] == [OTHER]
    assert state.all_ids() == [LOST, OTHER]
    (line,) = capsys.readouterr().err.splitlines()
    assert "lab 0abc: its state.json cannot be read: " in line
    assert line.endswith("; `python -m tools.lab down 0abc` takes it down")
    assert lost.exists()


def test_down_takes_it_down_by_its_id_and_leaves_the_others(lost: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run("down", LOST) == 0
    assert capsys.readouterr().out == "lab 0abc is down\n"
    assert not lost.exists()
    assert state.directory_of(OTHER).exists()


def test_status_and_down_all_serve_the_others(lost: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run("status") == 0
    assert "lab 0def (other)" in capsys.readouterr().out
    assert run("down", "--all") == 0
    assert capsys.readouterr().out == "lab 0def is down\n"
    assert lost.exists()
