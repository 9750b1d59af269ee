"""Waiting for an end in such a way that no signal is lost, and no signal's handler waits for ever.

Python runs a signal's handler in the main thread, in the middle of whatever that does. A handler that starts a
collective and waits for it needs the threads that end collectives. So no thread of ours may wait for a lock that the
main thread takes: `threading.Event` has one.
"""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable
from typing import Protocol

SLICE_S = 0.5
"""Longest wait in one go. A signal that arrives just before a thread blocks is noticed only when it next runs: without
slices a Ctrl-C at that moment would be lost until the wait ends."""


class End:
    """The end of something: wait for it, or be called when it has come. For any thread, and for signal handlers.

    There is no lock to be interrupted under. Each step is one call into C, and callbacks are kept before the flag is
    looked at, as it is set before they are: whoever comes second runs them, and `popleft` gives each to one thread.
    """

    __slots__ = ("_callbacks", "_come", "_gate")

    def __init__(self) -> None:
        self._come = False
        self._gate = threading.Lock()
        self._gate.acquire()
        self._callbacks: deque[Callable[[], None]] = deque()

    def is_set(self) -> bool:
        """Whether it has come."""
        return self._come

    def set(self) -> None:
        """It has come. To be called once; runs the callbacks, which must not raise."""
        self._come = True
        self._gate.release()
        self._run_callbacks()

    def wait(self, timeout_s: float) -> bool:
        """Block until it has come, for so long at most; whether it has."""
        if not self._come and self._gate.acquire(timeout=timeout_s):
            self._gate.release()  # for the next who waits; where an interrupt keeps this from running, slices end
        return self._come

    def tell(self, callback: Callable[[], None]) -> None:
        """Call `callback` when it has come: here and now, or in the thread that calls `set`."""
        self._callbacks.append(callback)
        if self._come:
            self._run_callbacks()

    def _run_callbacks(self) -> None:
        while True:
            try:
                callback = self._callbacks.popleft()
            except IndexError:
                return
            callback()


class Waitable(Protocol):
    """`End` or `threading.Event`."""

    def wait(self, timeout: float, /) -> bool: ...


def wait_until(event: Waitable, give_up_s: float) -> bool:
    """Wait for `event` until `give_up_s` of the monotonic clock (infinity for ever); whether it was set."""
    while not event.wait(min(max(give_up_s - time.monotonic(), 0.0), SLICE_S)):
        if time.monotonic() >= give_up_s:
            return False
    return True
