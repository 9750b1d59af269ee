"""Threads that tell torch of finished operations, apart from the transport's own thread.

Completing a torch future runs the callbacks that hang on it, and those are other people's code: that of
DistributedDataParallel, or a communication hook's. They may take long, take the GIL, or start another collective and
wait for it (the PowerSGD hook does). So they never run on the transport's thread, never under a lock of ours, and one
that waits never stands in the way of another: whoever finds no idle thread gets a new one.
"""

from __future__ import annotations

import collections
import functools
import logging
import os
import queue
import threading
from collections.abc import Callable

THREADS_MAX = 512
"""Callbacks that wait at the same time. A model has at most a few hundred buckets, and each waits once."""
IDLE_S = 10.0
"""A thread that found nothing to do for so long ends; the first one stays as long as it has work every so often."""

Failed = Callable[[Exception], None]

_log = logging.getLogger("integrations.torch")


class CompletionThreads:
    """Runs short or long jobs, each as soon as it is handed over. Safe to use from any thread and from signal handlers.

    No lock is taken (`transport.work.End` says why). What a job needs is in two deques, whose calls cannot be
    interrupted: jobs that wait, and the bells of idle threads. Whoever adds to one looks at the other afterwards, so
    that of two who come at the same time, at least one sees the other.
    """

    def __init__(self, *, threads_max: int = THREADS_MAX, idle_s: float = IDLE_S) -> None:
        self._threads_max = threads_max
        self._idle_s = idle_s
        self._jobs: collections.deque[Callable[[], None]] = collections.deque()
        self._bells: collections.deque[queue.SimpleQueue[None]] = collections.deque()
        self._threads: set[threading.Thread] = set()
        os.register_at_fork(after_in_child=self._begin_anew)

    def _begin_anew(self) -> None:
        """In a forked child: these threads, and what they were to do, are the parent's."""
        for inherited in (self._jobs, self._bells, self._threads):
            inherited.clear()

    def run(self, job: Callable[[], None]) -> None:
        """Run `job` on one of the threads. Returns at once; what the job raises is logged."""
        self._jobs.append(job)
        self._call_a_thread()

    def _call_a_thread(self) -> None:
        try:
            self._bells.pop().put(None)
            return
        except IndexError:  # none is idle
            pass
        if len(self._threads) >= self._threads_max:
            return  # whoever is ready first takes it
        thread = threading.Thread(target=self._serve, name="hive-complete", daemon=True)
        self._threads.add(thread)
        try:
            thread.start()
        except RuntimeError:  # the process has as many threads as it may
            self._threads.discard(thread)
            _log.error("no thread can be started to tell of finished operations")
            if not self._threads:
                self._run_jobs()

    def _run_jobs(self) -> None:
        while True:
            try:
                job = self._jobs.popleft()
            except IndexError:
                return
            _guarded(job)
            del job  # its tensors go now, not with the next job

    def _serve(self) -> None:
        bell: queue.SimpleQueue[None] = queue.SimpleQueue()
        while True:
            self._run_jobs()
            self._bells.append(bell)
            if self._jobs:
                self._call_a_thread()
            try:
                bell.get(timeout=self._idle_s)
            except queue.Empty:
                try:
                    self._bells.remove(bell)
                    break
                except ValueError:  # somebody has it, and rings now
                    bell.get()
        self._threads.discard(threading.current_thread())
        if self._jobs:
            self._call_a_thread()


class FirstInFirstOut:
    """Starts operations in the order in which they were asked for, although some must wait for their input.

    Collectives match by order: a tensor that is still on its way from the GPU must hold back the operations after it.
    An operation whose input is ready, with nothing before it, starts on the caller's thread.
    """

    def __init__(self, threads: CompletionThreads) -> None:
        self._threads = threads
        self._waiting: collections.deque[tuple[Callable[[], None], Callable[[], None], Failed]] = collections.deque()
        self.queued = 0
        """Operations that had to wait until now."""
        self._draining = threading.Lock()  # never waited for: who finds it taken leaves the work to whoever has it

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
        if until_ready is None and not self._waiting:
            begin()
            return
        self.queued += 1
        self._waiting.append((until_ready or _nothing, late, failed))
        self._threads.run(self._drain)

    @property
    def waiting(self) -> bool:
        """Whether any operation is queued."""
        return bool(self._waiting)

    def _drain(self) -> None:
        while self._waiting and self._draining.acquire(blocking=False):
            try:
                while self._waiting:
                    until_ready, late, failed = self._waiting[0]
                    error = _raised(until_ready) or _raised(late)
                    if error is not None:
                        _guarded(functools.partial(failed, error))
                    del until_ready, late, failed
                    self._waiting.popleft()  # only now: what is asked for meanwhile must not overtake it
            finally:
                self._draining.release()


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
