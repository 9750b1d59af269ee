"""All programs of a configuration: each has its own limit back, also one that was taken out, and that is told once."""

from __future__ import annotations

import contextlib
import threading
from pathlib import Path
from typing import Any

import pytest

from broker.adapters import service
from broker.adapters.limiter import Limiter
from broker.adapters.program import ProgramError, Settings
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


def test_a_program_that_was_taken_out_and_does_not_answer_is_asked_again_and_told_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    told: list[tuple[str, str]] = []
    answers: set[str] = set()

    class Program(Rclone):
        def settings(self) -> tuple[str, Settings]:
            if not answers:
                raise ProgramError("unreachable", "no answer")
            return "1", {"send": -1, "receive": -1}

        def write(self, settings: Settings) -> None:
            pass

    class Said:
        def __getattr__(self, level: str) -> Any:
            return lambda event, **_: told.append((level, event))

    monkeypatch.setattr(service, "adapter_of", lambda program: Program(program, ""))
    answers.add("yes")
    Limiter(PROGRAM, Program(PROGRAM, ""), tmp_path).follow(ceiling_bits_per_s=8, guarantee_bits_per_s=0, now_s=0.0)
    answers.clear()
    known: set[StorageProgram] = set()
    for _ in range(3):
        assert service._retire((), tmp_path, Said(), known)
    answers.add("yes")
    assert not service._retire((), tmp_path, Said(), known)
    assert told == [("error", "storage-limit-left"), ("info", "storage-limit-restored")]
