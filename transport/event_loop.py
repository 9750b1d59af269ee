"""The transport's own thread. Everything above the engine runs in it, one item after another.

Calls from user threads and batches of engine events go into one queue. Between them the loop calls `tick` when it asked
for it. So no state of endpoint, collectives or messages needs a lock, and the engine's thread is never held up.
"""

from __future__ import annotations

import logging
import queue
import threading
import time
from collections.abc import Callable

_log = logging.getLogger("transport.event_loop")

IDLE_S = 1.0
"""Longest sleep; only a lost wake-up would ever make it matter."""
TICK_S_MIN = 0.005
"""What comes in quick succession shares a tick: one for each chunk took a quarter of the thread's time."""


class EventLoop:
    """A thread that runs what it is given.

    Args:
        name: of the thread.
        tick: called between items with the monotonic time, and once behind the last; returns when it wants to be called
            next, which may be as much later as what comes in quick succession waits for it.
    """

    def __init__(self, name: str, tick: Callable[[float], float]) -> None:
        self._items: queue.SimpleQueue[Callable[[], None] | None] = queue.SimpleQueue()
        self._tick = tick
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)
        self.started = False

    def start(self) -> None:
        self.started = True
        self._thread.start()

    def call(self, item: Callable[[], None]) -> None:
        """Run `item` in the thread, after what was given before. Never blocks; from any thread."""
        self._items.put(item)

    def inside(self) -> bool:
        """Whether the caller runs in the loop's thread."""
        return threading.current_thread() is self._thread

    def stop(self, *, timeout_s: float) -> None:
        """Run what was given before, then end the thread."""
        self._items.put(None)
        if not self.inside():
            self._thread.join(timeout_s)

    def _run(self) -> None:
        wake_s = rested_s = 0.0
        ticked = True
        while True:
            left_s = min(max(wake_s - time.monotonic(), 0.0), IDLE_S)
            try:
                item = self._items.get(timeout=left_s) if left_s > 0 else self._items.get_nowait()
            except queue.Empty:
                item = _nothing
            if item is None:
                if not ticked:
                    self._wake_s()
                return
            self._guard(item)
            now_s = time.monotonic()
            ticked = now_s >= min(wake_s, rested_s)
            if ticked:
                wake_s, rested_s = self._wake_s(), now_s + TICK_S_MIN
            else:
                wake_s = min(wake_s, rested_s)

    def _wake_s(self) -> float:
        try:
            return self._tick(time.monotonic())
        except BaseException:  # noqa: BLE001 - the thread must outlive a mistake, or everybody would wait for ever
            _log.exception("the transport's thread failed in its periodic work")
            return time.monotonic() + IDLE_S

    def _guard(self, item: Callable[[], None]) -> None:
        try:
            item()
        except BaseException:  # noqa: BLE001 - as above; operations end by their timeouts
            _log.exception("the transport's thread failed in an item")


def _nothing() -> None:
    """What runs when there was nothing to run."""
