"""What `hive-qos clear` says of storage programs whose limits it cannot put back itself."""

from __future__ import annotations

import subprocess
from pathlib import Path
from typing import Any

import pytest

from broker.cli.adapter_command import BY_ITSELF, restored
from broker.process.locks import Lock


@pytest.fixture
def state(tmp_path: Path) -> Path:
    (tmp_path / "state").mkdir(mode=0o700)
    (tmp_path / "state/syncthing-00000000.json").write_text("{}")
    return tmp_path / "state"


def test_an_adapter_that_is_at_work_puts_limits_back_itself(state: Path) -> None:
    with Lock(str(state / "adapter.lock")):
        assert restored(state) == [BY_ITSELF]


def test_who_may_not_become_its_user_leaves_it_to_the_adapter(state: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: Any, **__: Any) -> None:
        raise PermissionError(1, "Operation not permitted")

    monkeypatch.setattr(subprocess, "run", refuse)
    assert restored(state) == [BY_ITSELF]


def test_nothing_is_said_where_no_limit_is_ours(tmp_path: Path) -> None:
    assert restored(tmp_path / "nothing") == []
