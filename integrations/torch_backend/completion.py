"""Threads that tell torch of finished operations, apart from the transport's own thread.

Completing a torch future runs the callbacks that hang on it, and those are other people's code: that of
DistributedDataParallel, or a communication hook's. They may take long, take the GIL, or start another collective and
wait for it (the PowerSGD hook does). So they never run on the transport's thread, never under a lock of ours, and one
that waits never stands in the way of another: whoever finds no idle thread gets a new one.
"""

from __future__ import annotations

import collections
import functools
import queue
import threading
from collections.abc import Callable

import structlog

THREADS_MAX = 512
"""Callbacks that wait at the same time. A model has at most a few hundred buckets, and each waits once."""
IDLE_S = 10.0
"""A thread that found nothing to do for so long ends; the first one stays as long as it has work every so often."""

Failed = Callable[[Exception], None]

_log = structlog.get_logger("integrations.torch")


class CompletionThreads:
    """Runs short or long jobs, each as soon as it is handed over. Safe to use from any thread."""

    def __init__(self, *, threads_max: int = THREADS_MAX, idle_s: float = IDLE_S) -> None:
        self._threads_max = threads_max
        self._idle_s = idle_s
        self._changed = threading.Condition()
        self._jobs: collections.deque[Callable[[], None]] = collections.deque()
        self._threads = 0
        self._waiting = 0

    def run(self, job: Callable[[], None]) -> None:
        """Run `job` on one of the threads. Returns at once; what the job raises is logged."""
        with self._changed:
            self._jobs.append(job)
            if self._waiting >= len(self._jobs):
                self._changed.notify()
                return
            if self._threads >= self._threads_max:
                return  # whoever is ready first takes it
            self._threads += 1
        try:
            threading.Thread(target=self._serve, name="hive-complete", daemon=True).start()
        except RuntimeError:  # the process has as many threads as it may
            self._run_without_a_thread()

    def _run_without_a_thread(self) -> None:
        """Leave the jobs to the threads that there are, or where there is none, run them here: they must be run."""
        with self._changed:
            self._threads -= 1
            jobs: list[Callable[[], None]] = []
            while self._jobs and not self._threads:
                jobs.append(self._jobs.popleft())
        _log.error("no thread can be started to tell of finished operations")
        for job in jobs:
            _guarded(job)

    def _serve(self) -> None:
        while (job := self._next()) is not None:
            _guarded(job)
            del job  # its tensors go now, not with the next job

    def _next(self) -> Callable[[], None] | None:
        with self._changed:
            while not self._jobs:
                self._waiting += 1
                told = self._changed.wait(self._idle_s)
                self._waiting -= 1
                if not told and not self._jobs:
                    self._threads -= 1
                    return None
            return self._jobs.popleft()


class FirstInFirstOut:
    """Starts operations in the order in which they were asked for, although some must wait for their input.

    Collectives match by order: a tensor that is still on its way from the GPU must hold back the operations after it.
    An operation whose input is ready, with nothing before it, starts on the caller's thread.
    """

    def __init__(self, threads: CompletionThreads) -> None:
        self._threads = threads
        self._lock = threading.Lock()
        self._waiting: queue.SimpleQueue[tuple[Callable[[], None], Callable[[], None], Failed]] = queue.SimpleQueue()
        self._depth = 0

    def start(
        self,
        begin: Callable[[], None],
        *,
        until_ready: Callable[[], None] | None,
        late: Callable[[], None],
        failed: Failed,
    ) -> None:
        """Call `begin` here and now if nothing is before it, or `late` after `until_ready` has returned.

        Args:
            begin: starts the operation; must not block. What it raises reaches the caller.
            until_ready: blocks until the input may be read; None if it may be read now.
            late: the same as `begin`, but on another thread.
            failed: called with what `until_ready` or `late` raised; operations behind it go on.
        """
        with self._lock:
            if until_ready is None and self._depth == 0:
                begin()
                return
            self._depth += 1
            self._waiting.put((until_ready or _nothing, late, failed))
            if self._depth > 1:
                return
        self._threads.run(self._drain)

    def _drain(self) -> None:
        while True:
            until_ready, late, failed = self._waiting.get()
            error = _raised(until_ready)
            with self._lock:
                error = error or _raised(late)
                if error is not None:
                    _guarded(functools.partial(failed, error))
                self._depth -= 1
                if self._depth == 0:
                    return


def _raised(call: Callable[[], None]) -> Exception | None:
    try:
        call()
    except Exception as error:  # noqa: BLE001 - whatever it is, it is the operation's, which is told
        return error
    return None


def _guarded(job: Callable[[], None]) -> None:
    error = _raised(job)
    if error is not None:  # somebody's callback must not end the thread that serves the others
        _log.error("a callback of a finished operation failed", exc_info=error)


def _nothing() -> None:
    return None
