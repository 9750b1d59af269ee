"""What a member has learned counts once, wherever in a meeting Ctrl-C comes: it goes on, or leaves and joins again."""

from __future__ import annotations

import contextlib
import json
import subprocess
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest
from patience import wait_until
from torch._C._distributed_c10d import TCPStore

PROGRAM = Path(__file__).parent / "programs" / "volatile_interrupted.py"
POINTS = ["reducing", "reduced", "prepared", "committed", "applied", "received"]


@contextlib.contextmanager
def member(
    folder: Path, name: str, *, kind: str, port: int, points: Sequence[str] = ()
) -> Iterator[tuple[Path, subprocess.Popen[bytes]]]:
    """The file that a process writes its lines to, and the process. It ends when there is a file `end`."""
    wishes = {"name": name, "kind": kind, "port": port, "points": list(points), "end": str(folder / "end")}
    told = folder / name
    with (
        told.open("wb") as output,
        subprocess.Popen([sys.executable, str(PROGRAM), json.dumps(wishes)], stdout=output) as one,
    ):
        try:
            yield told, one
            (folder / "end").touch()
            one.wait(60.0)
        finally:
            one.kill()


def lines(told: Path) -> list[dict[str, Any]]:
    return [json.loads(one) for one in told.read_text(encoding="utf-8").splitlines(keepends=True) if one.endswith("\n")]


def last(told: Path) -> dict[str, Any]:
    """Its last line, once it has written that."""
    found = wait_until(
        lambda: [one for one in lines(told) if "learned" in one], what=lambda: lines(told), limit_s=120.0
    )
    return found[0]


@pytest.fixture
def port() -> Iterator[int]:
    store = TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
    yield store.port
    del store


@pytest.mark.long
@pytest.mark.parametrize("kind", ["LocalSGD", "DiLoCo", "StreamingDiLoCo", "AsyncDiLoCo", "PartialMean"])
def test_what_a_member_learned_counts_once_wherever_ctrl_c_comes(kind: str, port: int, tmp_path: Path) -> None:
    points = [*POINTS, *(f"leave:{one}" for one in POINTS)]
    if kind == "PartialMean":  # it applies steps of others alone
        points = [one for one in points if "applied" not in one]
    with (
        member(tmp_path, "b", kind=kind, port=port),
        member(tmp_path, "a", kind=kind, port=port, points=points) as (told, _),
    ):
        ended = last(told)
    assert ended["points"] == [], lines(told)
    assert ended["holds"] == pytest.approx(ended["learned"], abs=0.5)


@pytest.mark.long
@pytest.mark.parametrize("point", ["reducing", "prepared"])
def test_members_that_are_all_interrupted_in_one_meeting_meet_again(point: str, port: int, tmp_path: Path) -> None:
    with (
        member(tmp_path, "b", kind="DiLoCo", port=port, points=[point]),
        member(tmp_path, "a", kind="DiLoCo", port=port, points=[point]) as (told, _),
    ):
        ended = last(told)
    assert ended["points"] == []
    assert ended["holds"] == pytest.approx(ended["learned"], abs=0.5)


@pytest.mark.long
@pytest.mark.parametrize("point", ["reducing", "reduced", "prepared"])
def test_who_is_interrupted_as_the_other_one_dies_goes_on_when_that_one_is_started_again(
    point: str, port: int, tmp_path: Path
) -> None:
    """Not alone: the other one might live, hold a later step, and be cut off from the register."""
    (again := tmp_path / "again").mkdir()
    with (
        member(tmp_path, "b", kind="DiLoCo", port=port, points=[f"die:{point}"]) as (_, dies),
        member(tmp_path, "a", kind="DiLoCo", port=port, points=[point]) as (told, _),
    ):
        dies.wait(60.0)
        with member(again, "b", kind="DiLoCo", port=port):
            ended = last(told)
    assert ended["points"] == []
    assert ended["more"], "it meets again"
    assert ended["holds"] == pytest.approx(ended["learned"], abs=0.5)
