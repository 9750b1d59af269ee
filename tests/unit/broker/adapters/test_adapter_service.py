"""All programs of a configuration: however the thread of one ends, the program has its own limit back."""

from __future__ import annotations

import contextlib
import threading
from pathlib import Path
from typing import Any

import pytest

from broker.adapters import service
from broker.adapters.rclone import Rclone
from broker.policy.types import StorageProgram

PROGRAM = StorageProgram(name="photos", kind="rclone", url="http://127.0.0.1:5572")


def test_a_program_has_its_own_limit_back_also_where_a_mistake_of_ours_cannot_be_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    done: list[str] = []

    class Mistaken:
        def round(self) -> None:
            raise ValueError("a mistake of ours")

        def end(self) -> None:
            done.append("end")

    class Full:
        def __getattr__(self, name: str) -> Any:
            raise OSError(28, "No space left on device")

    monkeypatch.setattr(service, "Session", lambda **_: contextlib.nullcontext())
    monkeypatch.setattr(service, "Follower", lambda *_, **__: Mistaken())
    with pytest.raises(OSError, match="No space"):
        service._follow(PROGRAM, Rclone(PROGRAM, ""), tmp_path, "", Full(), threading.Event())
    assert done == ["end"]
