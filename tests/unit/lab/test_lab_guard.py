"""What a lab's guard makes of what is written about its lab."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from tools.lab import guard, state
from tools.lab.kernel import LabError
from tools.lab.state import LabState, Process


@pytest.fixture
def lab(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> LabState:
    monkeypatch.setenv("HIVE_LAB_STATE", str(tmp_path))
    lab = LabState(id="0abc", name="a lab", owner=Process(pid=1, start_ticks=1))
    state.create(lab)
    return lab


def on_sleep(monkeypatch: pytest.MonkeyPatch, then: Callable[[], None]) -> None:
    monkeypatch.setattr(guard.time, "sleep", lambda _: then())


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
