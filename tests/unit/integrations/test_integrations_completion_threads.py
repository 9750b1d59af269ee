"""Callbacks that wait stand in nobody's way, and operations start in the order of the calls."""

from __future__ import annotations

import subprocess
import sys
import threading
from functools import partial

import pytest
from patience import wait_until

from integrations.torch_backend.completion_threads import CompletionThreads, FirstInFirstOut


def unwanted(error: Exception) -> None:
    raise AssertionError(f"not expected to fail: {error}")


def test_jobs_that_wait_for_each_other_in_a_long_chain_all_end() -> None:
    threads = CompletionThreads(idle_s=0.2)
    links = [threading.Event() for _ in range(40)]
    results: list[bool] = []

    def waiter(i: int) -> None:
        results.append(links[i + 1].wait(30))
        links[i].set()

    for i in range(39):
        threads.run(partial(waiter, i))
    threads.run(links[39].set)
    assert links[0].wait(30)
    assert all(results)


def test_an_idle_thread_is_used_again() -> None:
    threads = CompletionThreads(idle_s=60)
    seen: set[threading.Thread] = set()
    for _ in range(50):
        done = threading.Event()

        def job(done: threading.Event = done) -> None:
            seen.add(threading.current_thread())
            done.set()

        threads.run(job)
        assert done.wait(30)
        wait_until(lambda: len(threads._bells) == len(threads._threads))  # the thread has found its way back
    assert len(seen) == 1


def test_a_job_that_raises_does_not_end_the_service() -> None:
    threads = CompletionThreads(threads_max=1, idle_s=0.2)
    done = threading.Event()

    def bad() -> None:
        raise ValueError("somebody's bug")

    threads.run(bad)
    threads.run(done.set)
    assert done.wait(30)


def test_at_the_limit_jobs_wait_and_are_not_lost() -> None:
    threads = CompletionThreads(threads_max=2, idle_s=0.2)
    gate, done = threading.Event(), threading.Semaphore(0)
    for _ in range(2):
        threads.run(lambda: done.release() if gate.wait(30) else None)
    for _ in range(20):
        threads.run(done.release)
    gate.set()
    for _ in range(22):
        assert done.acquire(timeout=30)


def test_a_thread_that_went_idle_for_good_is_replaced() -> None:
    threads = CompletionThreads(idle_s=0.001)
    for _ in range(100):
        done = threading.Event()
        threads.run(done.set)
        assert done.wait(30)


def test_an_operation_with_its_input_ready_starts_on_the_callers_thread() -> None:
    order = FirstInFirstOut(CompletionThreads(idle_s=0.2))
    where: list[int] = []
    order.start(lambda: where.append(threading.get_ident()), until_ready=None, late=lambda: None, failed=unwanted)
    assert where == [threading.get_ident()]


def test_an_operation_whose_input_is_late_holds_back_those_after_it() -> None:
    order = FirstInFirstOut(CompletionThreads(idle_s=0.2))
    gate, ended = threading.Event(), threading.Event()
    log: list[int] = []

    def start(number: int, until_ready: object = None) -> None:
        order.start(
            lambda: log.append(number),
            until_ready=until_ready,  # type: ignore[arg-type]
            late=lambda: log.append(number),
            failed=unwanted,
        )

    start(0)
    start(1, lambda: gate.wait(30))
    start(2)
    start(3, lambda: None)
    order.start(ended.set, until_ready=None, late=ended.set, failed=unwanted)
    assert log == [0]
    gate.set()
    assert ended.wait(30)
    assert log == [0, 1, 2, 3]


def test_after_a_late_one_the_callers_thread_is_used_again() -> None:
    order = FirstInFirstOut(CompletionThreads(idle_s=0.2))
    for _ in range(20):
        started = threading.Event()
        order.start(lambda: None, until_ready=lambda: None, late=started.set, failed=unwanted)
        assert started.wait(30)
        order.start(started.clear, until_ready=None, late=started.clear, failed=unwanted)


def test_an_operation_whose_input_fails_is_told_so_and_those_behind_it_start() -> None:
    order = FirstInFirstOut(CompletionThreads(idle_s=0.2))
    gate, ended = threading.Event(), threading.Event()
    log: list[str] = []

    def broken() -> None:
        gate.wait(30)
        raise RuntimeError("device-side assert")

    def bad() -> None:
        raise ValueError("a mistake")

    order.start(
        lambda: None,
        until_ready=broken,
        late=lambda: log.append("never"),
        failed=lambda error: log.append(str(error)),
    )
    order.start(lambda: None, until_ready=None, late=bad, failed=lambda error: log.append(str(error)))
    order.start(lambda: None, until_ready=None, late=bad, failed=lambda _error: bad())
    order.start(ended.set, until_ready=None, late=ended.set, failed=unwanted)
    gate.set()
    assert ended.wait(30)
    assert log == ["device-side assert", "a mistake"]


def test_where_no_thread_can_be_started_jobs_still_run(monkeypatch: pytest.MonkeyPatch) -> None:
    threads = CompletionThreads(idle_s=0.2)
    ran: list[int] = []

    def cannot(_thread: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    with monkeypatch.context() as patch:
        patch.setattr(threading.Thread, "start", cannot)
        threads.run(lambda: ran.append(1))
        assert ran == [1]
    done = threading.Event()
    threads.run(done.set)
    assert done.wait(30)


def test_a_forked_child_has_threads_of_its_own() -> None:
    program = """
import os, signal, threading, warnings
from integrations.torch_backend.completion_threads import CompletionThreads
warnings.simplefilter("ignore")  # Python's own, of a fork beside threads
threads, ran = CompletionThreads(), threading.Event()
threads.run(ran.set)
assert ran.wait(30)
while not threads._bells:
    pass
child = os.fork()
signal.alarm(60)
ran.clear()
threads.run(ran.set)
assert ran.wait(30)
if child:
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
"""
    subprocess.run([sys.executable, "-c", program], check=True)
