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
from collections.abc import Callable, Generator

from hive_qos.errors import HiveError, MisuseError, TimedOutError, TransportError
from transport.waiting import End, wait_until

_log = logging.getLogger("transport.work")
THREAD_NAME = "hive-transport"
"""How the names of the transport's own threads begin."""


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
        self._process = os.getpid()
        self._ended = End()
        self._error: HiveError | None = None
        self._result: object = None

    def __repr__(self) -> str:
        state = "running" if not self.done() else "failed" if self._error else "done"
        return f"<Work {self.what}: {state}, {self._bytes_done} of {self.bytes_total} bytes>"

    @property
    def bytes_done(self) -> int:
        """Payload bytes sent (acknowledged) and received so far."""
        return self._bytes_done

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
        if threading.current_thread().name.startswith(THREAD_NAME) and not self.done():
            raise MisuseError(f"waiting for {self.what} in a callback would stop the thread that it needs")
        if os.getpid() != self._process and not self.done():
            raise MisuseError(f"waiting for {self.what} in a forked child: it runs in the parent alone")
        give_up_s = math.inf if timeout_s is None else time.monotonic() + timeout_s
        if not wait_until(self._ended, give_up_s):
            raise TimedOutError(
                self.what, timeout_s=timeout_s or 0.0, bytes_done=self._bytes_done, bytes_total=self.bytes_total
            )
        return self.result()

    def add_done_callback(self, callback: Callable[[Work], None]) -> None:
        """Call `callback(self)` once it has ended: at once if it has, else from the transport's thread.

        The callback must be short and must not wait for another operation. What it raises is logged.
        """
        self._ended.tell(functools.partial(self._call, callback))

    def __await__(self) -> Generator[object, None, object]:
        """`await work` in an asyncio task, with the same outcome as `wait()`."""
        if not self._ended.is_set():
            loop = asyncio.get_running_loop()
            ended: asyncio.Future[None] = loop.create_future()

            def finish() -> None:
                if not ended.done():
                    ended.set_result(None)

            def from_any_thread(_work: Work) -> None:
                if not loop.is_closed():
                    loop.call_soon_threadsafe(finish)

            self.add_done_callback(from_any_thread)
            yield from ended
        return self.result()

    # The transport's side.

    def progress(self, byte_count: int) -> None:
        """Count payload bytes as done. Called from the transport's thread only."""
        self._bytes_done += byte_count

    def finish(self, result: object = None, error: HiveError | None = None) -> None:
        """End it; a second call does nothing. Called from the transport's thread only."""
        if self._ended.is_set():
            return
        self._result = result
        self._error = error
        self._ended.set()

    def _call(self, callback: Callable[[Work], None]) -> None:
        try:
            callback(self)
        except Exception:  # noqa: BLE001 - a caller's callback must not stop the transport's thread
            _log.exception("a callback of %s failed", self.what)
