"""An operation under way: wait for it, await it, be called when it is done.

A `Work` ends exactly once, with a result or with an error of `hive_qos.errors`. Until then the tensors that were handed
over belong to the transport: sources must not be written, targets neither read nor written. Afterwards, whatever the
outcome, they are the caller's again. After an error a target's content is undefined.
"""

from __future__ import annotations

import asyncio
import functools
import logging
import math
import os
import threading
import time
from collections import deque
from collections.abc import Callable, Generator
from typing import Protocol

from hive_qos.errors import HiveError, MisuseError, TimedOutError, TransportError

_log = logging.getLogger("transport.work")
THREAD_NAME = "hive-transport"
"""How the names of the transport's own threads begin."""
SLICE_S = 0.5
"""Longest wait in one go. A signal that arrives just before a thread blocks is noticed only when it next runs: without
slices a Ctrl-C at that moment would be lost until the wait ends."""


def unforeseen(what: str, error: Exception) -> TransportError:
    """What an operation ends with where something was raised that nobody planned for; it stands in the log as well."""
    _log.error("%s failed unexpectedly", what, exc_info=error)
    failure = TransportError(f"{what} failed unexpectedly: {type(error).__name__}: {error}")
    failure.__cause__ = error
    return failure


class Work:
    """One operation that was started. Safe to use from any thread.

    Args:
        what: the operation in words, for errors ("all-reduce 7 of group default").
        bytes_total: payload bytes that this rank sends and receives for it.

    `source` is, after a `recv`, the sender's rank in the group; None before and for everything else.
    """

    def __init__(self, what: str, *, bytes_total: int = 0) -> None:
        self.what = what
        self.bytes_total = bytes_total
        self.source: int | None = None
        self._bytes_done = 0
        self._watched: Callable[[], int] | None = None
        self._cancel: Callable[[], None] | None = None
        self._process = os.getpid()
        self._ended = End()
        self._error: HiveError | None = None
        self._result: object = None

    def __repr__(self) -> str:
        state = "running" if not self.done() else "failed" if self._error else "done"
        return f"<Work {self.what}: {state}, {self.bytes_done} of {self.bytes_total} bytes>"

    @property
    def bytes_done(self) -> int:
        """Payload bytes sent and received so far."""
        watched = self._watched
        return self._bytes_done if watched is None else watched()

    def done(self) -> bool:
        """Whether it has ended, well or not."""
        return self._ended.is_set()

    def exception(self) -> HiveError | None:
        """The error it ended with; None while it runs and after success. Never blocks."""
        return self._error

    def result(self) -> object:
        """What it returned, e.g. the array of a `recv` into nothing. None while it runs. Raises its error."""
        if self._error is not None:
            raise self._error
        return self._result

    def wait(self, timeout_s: float | None = None) -> object:
        """Block until it has ended and return its result. Ctrl-C interrupts the waiting, not the operation.

        Args:
            timeout_s: how long this call waits; the operation's own timeout goes on by itself. None: without limit of
                its own, which is safe because every operation has a timeout.

        Raises:
            TimedOutError: this call's timeout, or the operation's, has passed.
            ConnectionLostError: a rank that takes part is gone; `rank` says which.
            MisuseError: called for an operation that has not ended, from a callback of the transport's thread or in a
                forked child.
            TransportError: any other outcome but success.
        """
        if _in_a_thread_of_ours() and not self.done():
            raise MisuseError(f"waiting for {self.what} in a callback would stop the thread that it needs")
        if os.getpid() != self._process and not self.done():
            raise MisuseError(f"waiting for {self.what} in a forked child: it runs in the parent alone")
        give_up_s = math.inf if timeout_s is None else time.monotonic() + timeout_s
        if not wait_until(self._ended, give_up_s):
            raise TimedOutError(
                self.what, timeout_s=timeout_s or 0.0, bytes_done=self.bytes_done, bytes_total=self.bytes_total
            )
        return self.result()

    def add_done_callback(self, callback: Callable[[Work], None]) -> None:
        """Call `callback(self)` once it has ended: at once if it has, else from the transport's thread.

        The callback must be short and must not wait for another operation. What it raises is logged.
        """
        self._ended.tell(functools.partial(self._call, callback))

    def cancel(self) -> None:
        """Give up a receive, from any thread: soon it ends with `CancelledError`, and the next one takes its message.

        One whose message has begun to come ends with that. Other operations go on: their other ranks count on them.
        """
        cancel = self._cancel
        if cancel is not None and os.getpid() == self._process:
            cancel()

    def __await__(self) -> Generator[object, None, object]:
        """`await work` in an asyncio task, with the same outcome as `wait()`.

        A task that is cancelled meanwhile (`asyncio.wait_for`) cancels a receive, too, and goes on when that has ended.
        If its message was coming then, `result()` still has it.
        """
        if not self._ended.is_set():
            try:
                yield from self._when_ended()
            except asyncio.CancelledError:
                if self._cancel is not None:
                    self.cancel()
                    yield from self._when_ended()
                raise
        return self.result()

    def _when_ended(self) -> asyncio.Future[None]:
        loop = asyncio.get_running_loop()
        ended: asyncio.Future[None] = loop.create_future()

        def finish() -> None:
            if not ended.done():
                ended.set_result(None)

        def from_any_thread(_work: Work) -> None:
            if not loop.is_closed():
                loop.call_soon_threadsafe(finish)

        self.add_done_callback(from_any_thread)
        return ended

    # The transport's side.

    def cancel_by(self, cancel: Callable[[], None]) -> None:
        """How `cancel` reaches the transport's thread; without, it does nothing."""
        self._cancel = cancel

    def progress(self, byte_count: int) -> None:
        """Count payload bytes as done. Called from the transport's thread only."""
        self._bytes_done += byte_count

    def watch(self, bytes_done: Callable[[], int] | None) -> None:
        """Somebody else counts from now on; None: no more. Called from the transport's thread only."""
        self._watched = bytes_done

    def finish(self, result: object = None, error: HiveError | None = None) -> None:
        """End it; a second call does nothing. Called from the transport's thread only."""
        if self._ended.is_set():
            return
        self._result = result
        self._error = error
        self._cancel = None  # it may know this one
        self._ended.set()

    def _call(self, callback: Callable[[Work], None]) -> None:
        try:
            callback(self)
        except BaseException as failure:  # a caller's callback must not stop the transport's thread
            if not (isinstance(failure, Exception) or _in_a_thread_of_ours()):
                raise  # a Ctrl-C, in the thread of who asked to be called
            _log.exception("a callback of %s failed", self.what)


def _in_a_thread_of_ours() -> bool:
    return threading.current_thread().name.startswith(THREAD_NAME)


class End:
    """The end of something: wait for it, or be called when it has come. For any thread, and for signal handlers.

    Python runs a signal's handler in the main thread, in the middle of whatever that does. A handler that starts a
    collective and waits for it needs the threads that end collectives. So no thread of ours may wait for a lock that
    the main thread takes: `threading.Event` has one.

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
