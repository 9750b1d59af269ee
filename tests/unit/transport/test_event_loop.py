"""The transport's thread: what it is given runs in order, and its tick follows, once for what comes together."""

from __future__ import annotations

import asyncio
import math
import operator
import threading
import time
from functools import partial

import pytest
from patience import LIMIT_S, wait_until

from transport.event_loop import TICK_S_MIN, EventLoop


def test_what_comes_in_quick_succession_shares_ticks() -> None:
    ticks = 0

    def tick(now_s: float) -> float:
        nonlocal ticks
        ticks += 1
        return math.inf

    loop, began_s = EventLoop("loop", tick), time.monotonic()
    loop.start()
    for _ in range(300):  # each comes when the one before is over, and finds the queue empty
        over = threading.Event()
        loop.call(over.set)
        assert over.wait(LIMIT_S)
    took_s = time.monotonic() - began_s
    found = ticks
    loop.stop(timeout_s=LIMIT_S)
    assert found <= took_s / TICK_S_MIN + 2


def test_a_tick_follows_everything_that_happened() -> None:
    happened: list[str] = []

    def tick(now_s: float) -> float:
        happened.append("tick")
        return math.inf

    loop = EventLoop("loop", tick)
    loop.start()
    for number in range(20):
        loop.call(lambda: happened.append("item"))
        wait_until(lambda: happened[-1:] == ["tick"] and happened.count("item") > number)  # noqa: B023 - waited for here
    loop.stop(timeout_s=LIMIT_S)


def test_what_was_given_last_has_its_tick_before_the_thread_ends() -> None:
    for _ in range(20):
        happened: list[str] = []

        def tick(now_s: float, happened: list[str] = happened) -> float:
            happened.append("tick")
            return math.inf

        loop = EventLoop("loop", tick)
        loop.start()
        wait_until(partial(operator.contains, happened, "tick"))
        loop.call(partial(happened.append, "item"))
        loop.stop(timeout_s=LIMIT_S)
        assert happened[-1] == "tick", happened


def test_a_tick_comes_when_it_asked_for_it() -> None:
    asked_s: list[float] = []
    came_s: list[float] = []

    def tick(now_s: float) -> float:
        came_s.append(now_s)
        asked_s.append(now_s + 0.02)
        return asked_s[-1]

    loop = EventLoop("loop", tick)
    loop.start()
    wait_until(lambda: len(came_s) > 5)
    loop.stop(timeout_s=LIMIT_S)
    assert all(came >= asked - 0.001 for asked, came in zip(asked_s, came_s[1:], strict=False))


@pytest.mark.parametrize("mistake", [RuntimeError, SystemExit, asyncio.CancelledError])
def test_a_mistake_in_an_item_or_a_tick_does_not_end_the_thread(mistake: type[BaseException]) -> None:
    def fail(*_: object) -> float:
        raise mistake("a mistake")

    loop, over = EventLoop("loop", fail), threading.Event()
    loop.start()
    loop.call(lambda: [fail()].clear())
    loop.call(over.set)
    assert over.wait(LIMIT_S)
    loop.stop(timeout_s=LIMIT_S)
