"""A snapshot is made when somebody asks, by the loop alone; who asks of a loop that hangs sees what was shown last."""

from __future__ import annotations

import threading
from typing import cast

import pytest

from broker.api import latest_snapshot
from broker.api.documents.snapshot import Snapshot
from broker.api.latest_snapshot import HANGS_S, SHARED_S, SHOW_S, LatestSnapshot


def snapshot(name: str) -> Snapshot:
    return cast(Snapshot, name)


def later() -> float:
    """So late that what was shown at 10 s is not shared any more."""
    return 15.0


def test_what_nobody_asks_for_is_shown_once_a_second() -> None:
    one = LatestSnapshot(lambda: None, clock=later)
    assert not one.due(now_s=10.0)  # nothing was decided yet
    one.outdate()
    assert one.due(now_s=10.0)
    one.show(snapshot("first"), now_s=10.0)
    one.outdate()
    assert not one.due(now_s=10.0 + 0.9 * SHOW_S)
    assert one.due(now_s=10.0 + SHOW_S)


def test_who_asks_wakes_the_loop_and_gets_the_newest_decision() -> None:
    asked = threading.Event()
    one = LatestSnapshot(asked.set, clock=later)
    one.outdate()
    one.show(snapshot("old"), now_s=10.0)
    one.outdate()
    found: list[Snapshot | None] = []
    reader = threading.Thread(target=lambda: found.append(one.ask()))
    reader.start()
    assert asked.wait(30.0)
    assert one.due(now_s=10.01)
    one.show(snapshot("new"), now_s=10.01)
    reader.join(30.0)
    assert found == ["new"]


def test_what_is_new_already_is_not_made_again() -> None:
    wakes: list[None] = []
    one = LatestSnapshot(lambda: wakes.append(None), clock=later)
    one.outdate()
    one.show(snapshot("new"), now_s=10.0)
    assert one.ask() == "new"
    assert not wakes
    assert not one.due(now_s=99.0)


def test_a_loop_that_answers_late_leaves_what_was_shown_last(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(latest_snapshot, "WAIT_S", 0.01)
    one = LatestSnapshot(lambda: None, clock=later)
    assert one.ask() is None
    one.outdate()
    assert one.ask() is None
    one.show(snapshot("old"), now_s=10.0)
    one.outdate()
    assert one.ask() == "old"


@pytest.mark.parametrize("decides", [False, True])
def test_nothing_is_current_of_a_loop_that_hangs_until_it_shows_something_again(
    decides: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(latest_snapshot, "WAIT_S", 0.01)
    now_s, wakes = 10.0, []

    def wake() -> None:
        wakes.append(now_s)

    one = LatestSnapshot(wake, clock=lambda: now_s)
    one.outdate()
    one.show(snapshot("old"), now_s=now_s)
    if decides:
        one.outdate()
    now_s += HANGS_S
    assert one.current is one.ask() is None
    assert wakes == [now_s]
    assert one.last == "old"
    one.outdate()
    one.show(snapshot("new"), now_s=now_s)
    assert one.current == one.ask() == "new"


def test_however_often_somebody_asks_the_loop_is_woken_once_a_tick() -> None:
    wakes: list[None] = []
    one = LatestSnapshot(lambda: wakes.append(None), clock=lambda: 10.0 + SHARED_S / 2)
    one.outdate()
    one.show(snapshot("shared"), now_s=10.0)
    one.outdate()
    assert [one.ask() for _ in range(100)] == ["shared"] * 100
    assert not wakes
    assert not one.due(now_s=10.0 + SHARED_S / 2)


def test_after_a_reload_nobody_sees_what_was_before(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(latest_snapshot, "WAIT_S", 0.01)
    wakes: list[None] = []
    one = LatestSnapshot(lambda: wakes.append(None), clock=lambda: 10.0)
    one.outdate()
    one.show(snapshot("before"), now_s=10.0)
    one.invalidate()  # before anything was decided by the new policy
    assert one.current == one.ask() == "before"  # as long as the loop is at that
    assert wakes
    assert one.due(now_s=10.0)
    one.show(snapshot("after"), now_s=10.0)
    assert one.ask() == snapshot("after")
    assert not one.due(now_s=10.0 + 2 * SHOW_S)
