"""What a lab's guard makes of what is written about its lab."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from tools.lab import guard, state
from tools.lab.kernel import LabError
from tools.lab.state import LabState, Process


@pytest.fixture
def lab(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> LabState:
    monkeypatch.setenv("HIVE_LAB_STATE", str(tmp_path / "labs"))
    for name in ("NAMESPACES", "HOSTS_FILES"):
        monkeypatch.setattr(state, name, tmp_path / name)
    lab = LabState(id="0abc", name="a lab", owner=Process(pid=1, start_ticks=1))
    state.create(lab)
    return lab


def on_sleep(monkeypatch: pytest.MonkeyPatch, then: Callable[[], object]) -> None:
    monkeypatch.setattr("tools.lab.guard.time.sleep", lambda _: then())


@pytest.mark.parametrize("text", ["", '{"id": "0a', "[]", "{}", '{"owner": {"pid": 1}}', '{"owner": 4}'])
def test_a_state_that_cannot_be_read_is_an_error_of_its_own_and_read_again(
    lab: LabState, text: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    (state.directory_of(lab.id) / "state.json").write_text(text)
    with pytest.raises(LabError, match=r"lab 0abc: its state\.json cannot be read"):
        state.read(lab.id)
    on_sleep(monkeypatch, lambda: state.write(lab))
    assert guard._state_of(lab.id) == lab


def test_a_state_that_stays_unreadable_counts_as_gone(lab: LabState, monkeypatch: pytest.MonkeyPatch) -> None:
    waited: list[None] = []
    on_sleep(monkeypatch, lambda: waited.append(None))
    (state.directory_of(lab.id) / "state.json").write_text("{")
    assert guard._state_of(lab.id) is None
    assert 1 < len(waited) < 20


def test_the_guard_of_a_detached_lab_ends_although_who_took_it_down_could_not_see_whose_it_was(
    lab: LabState, monkeypatch: pytest.MonkeyPatch
) -> None:
    state.write(replace(lab, owner=Process.of(os.getpid()), detached=True))
    monkeypatch.setattr(sys, "argv", ["guard", lab.id, "1"])
    monkeypatch.setattr(guard, "_wait_for_end_of", lambda _: None)
    monkeypatch.setattr("tools.lab.guard.signal.signal", lambda *_: None)
    path = state.directory_of(lab.id) / "state.json"
    left: list[Callable[[], object]] = [lambda: None, lambda: path.write_text("{"), lambda: state.tear_down(lab.id)]
    on_sleep(monkeypatch, lambda: left.pop(0)() if left else None)
    guard.main()
    assert not left
