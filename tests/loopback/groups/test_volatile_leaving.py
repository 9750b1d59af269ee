"""Who leaves a volatile group, alone or with all others, takes nothing with it that somebody needs."""

from __future__ import annotations

import contextlib
import os
import re
import signal
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from types import FrameType
from typing import Any

import numpy as np
import pytest
from volatile_workers import LIMIT_S, SECRET, Worker, agree, alone, step_together, trio, until, works

from hive_qos.errors import EvictedError, MisuseError
from transport.volatile.following import Follower
from transport.volatile.membership import joining, restart
from transport.volatile.register.register import MemoryStore, Register


def test_who_leaves_is_not_waited_for(start: Callable[..., Worker]) -> None:
    members = trio(start, MemoryStore())
    for one in members[:2]:
        one.allow()  # they wait for the third
    members[2].end()
    until(lambda: works(members[0], "a", "b"))
    assert members[2].wait() is None


def test_a_job_whose_members_all_leave_at_once_begins_anew_with_who_comes_then(start: Callable[..., Worker]) -> None:
    store = MemoryStore()
    for _ in range(3):
        members = trio(start, store)
        for one in members:
            one.end()
        assert [one.wait() for one in members] == [None] * 3


def test_a_job_whose_members_all_died_begins_anew_when_they_are_started_again_and_says_so_meanwhile(
    start: Callable[..., Worker], monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(restart, "STANDS_S", 0.5)
    monkeypatch.setattr(joining, "SAY_S", 0.2)
    monkeypatch.setattr(restart, "connect_s", lambda members: 0.0)
    store = MemoryStore()
    for one in trio(start, store):
        one.kill()
    members = [start(name, store, members_min=4) for name in "dabc"]
    for one in members:
        one.allow()
    until(lambda: all(len(one.met) == 1 for one in members))
    agree(*members)
    assert re.search(r"(\w) waits for an earlier \1, the first member, to answer; if all members died", caplog.text)


class Distant(MemoryStore):
    """A store that is far away, once told so."""

    def __init__(self) -> None:
        super().__init__()
        self.answers_in_s = 0.0

    def get(self, key: str) -> bytes | None:
        time.sleep(self.answers_in_s)
        return super().get(key)

    def set(self, key: str, value: bytes) -> None:
        time.sleep(self.answers_in_s)
        super().set(key, value)

    def compare_set(self, key: str, expected: bytes, value: bytes) -> bytes:
        time.sleep(self.answers_in_s)
        return super().compare_set(key, expected, value)


def test_who_leaves_last_has_ended_the_job_when_it_has_left_however_far_the_register_is(
    start: Callable[..., Worker],
) -> None:
    store = Distant()
    members = trio(start, store)
    store.answers_in_s = 0.4  # less than `Worker` gives it, and five answers take longer than `END_S`
    for one in members:
        one.end()
    assert [one.wait() for one in members] == [None] * 3
    view = Register(store, job="job", secret=SECRET).view()
    assert view is not None
    assert view.members == ()


def test_who_is_interrupted_while_it_stays_for_a_learner_is_gone_all_the_same(start: Callable[..., Worker]) -> None:
    def interrupted() -> bytes:
        raise KeyboardInterrupt

    store = MemoryStore()
    group = alone(store, interrupted)
    learner = start("b", store)
    until(lambda: group.view.joining)
    with pytest.raises(KeyboardInterrupt):
        group.leave()
    until(lambda: isinstance(learner.error, EvictedError) or works(learner, "b"))  # it had entered the view, or not yet


@pytest.mark.parametrize("at", ["control.Control._end_job", "group.VolatileGroup.close"])
def test_a_step_in_another_thread_ends_however_leaving_is_interrupted(monkeypatch: pytest.MonkeyPatch, at: str) -> None:
    def interrupted(*_: object) -> None:
        raise KeyboardInterrupt

    group = alone(MemoryStore(), members_min=2)
    with ThreadPoolExecutor(1) as threads:
        step = threads.submit(group.all_reduce, np.ones(1, np.float32))
        until(lambda: group._control.idle)  # it waits for a second member
        try:
            monkeypatch.setattr(f"transport.volatile.{at}", interrupted)
            with pytest.raises(KeyboardInterrupt):
                group.leave()
            assert group._closed or at == "group.VolatileGroup.close"
            assert isinstance(step.exception(LIMIT_S), MisuseError)
        finally:
            monkeypatch.undo()
            group.close()


def test_the_last_that_works_stays_for_who_is_learning(start: Callable[..., Worker]) -> None:
    store = MemoryStore()
    first = start("a", store)
    first.allow(2)
    until(lambda: first.step == 2)
    second = start("b", store)
    until(lambda: first.group is not None and first.group.view.joining)
    first.end()
    until(lambda: works(second, "a", "b") or works(second, "b"))
    assert first.wait() is None
    assert np.array_equal(first.weights, second.weights)


def test_one_of_those_who_leave_together_stays_for_who_is_learning(start: Callable[..., Worker]) -> None:
    store = MemoryStore()
    members = [start(name, store, members_min=2) for name in "ab"]
    step_together(members, 2)
    learner = start("c", store)
    while not all(one.group is not None and one.group.view.joining for one in members):
        step_together(members, 1)  # it is let in after one
    for one in members:
        one.end()
    until(lambda: works(learner, "a", "c") or works(learner, "c"))
    assert [one.wait() for one in members] == [None] * 2
    assert np.array_equal(members[0].weights, learner.weights)


@pytest.mark.parametrize("in_time", [True, False])
def test_who_leaves_on_a_signal_hands_a_learner_what_only_it_has_or_that_one_begins_anew(
    start: Callable[..., Worker], monkeypatch: pytest.MonkeyPatch, in_time: bool
) -> None:
    # A busy machine does in a minute what takes 0.1 s.
    monkeypatch.setattr("transport.volatile.group.LEAVE_S", LIMIT_S if in_time else 3.0)
    store, fetch_result, leaves = MemoryStore(), Follower._fetch_result, threading.Event()

    def fetch(follower: Follower, *arguments: Any) -> object:
        return fetch_result(follower, *arguments) if in_time and leaves.is_set() else None

    monkeypatch.setattr(Follower, "_fetch_result", fetch)
    weights, change = np.zeros(1000, np.float32), np.ones(1000, np.float32)
    group = alone(store, weights.tobytes)
    learner = start("b", store)
    until(lambda: group.view.joining)
    group.stepped(0)  # it gives the state
    group.all_reduce(change)
    weights += change
    before = signal.getsignal(signal.SIGTERM)
    group.leave_on(signal.SIGTERM)
    threading.Timer(0.2, leaves.set).start()  # the result of the step has yet to be fetched
    try:
        with pytest.raises(SystemExit), group:
            signal.raise_signal(signal.SIGTERM)
    finally:
        signal.signal(signal.SIGTERM, before)
    learner.allow()
    until(lambda: learner.step == (2 if in_time else 1))
    assert works(learner, "b")
    own = np.full(1000, 1.0 + sum(b"b") % 7, np.float32)
    assert np.array_equal(learner.weights, weights + own if in_time else own)


def own_handler(_number: int, _frame: FrameType | None) -> None:
    os._exit(7)


@pytest.mark.filterwarnings("ignore:This process:DeprecationWarning")  # fork with threads is what is tested
@pytest.mark.parametrize(("own", "ends"), [(signal.SIG_DFL, -signal.SIGTERM), (own_handler, 7)])
def test_a_signal_ends_a_forked_child_of_a_member_as_if_it_had_never_joined(own: Any, ends: int) -> None:
    before = signal.signal(signal.SIGTERM, own)
    group = alone(MemoryStore())
    try:
        group.leave_on(signal.SIGTERM)
        child = os.fork()
        if child == 0:
            try:
                signal.raise_signal(signal.SIGTERM)
            finally:
                os._exit(1)
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == ends
    finally:
        signal.signal(signal.SIGTERM, before)
        group.close()


@pytest.mark.filterwarnings("ignore:This process:DeprecationWarning")  # as above
def test_a_forked_child_that_leaves_the_block_does_not_leave_for_its_parent() -> None:
    store = MemoryStore()
    with alone(store) as group:
        group._control.changed.acquire()  # as another thread may hold it at a fork: in the child for ever
        child = os.fork()
        if child == 0:
            leaving = threading.Thread(target=group.leave, daemon=True)
            leaving.start()
            leaving.join(LIMIT_S)
            os._exit(leaving.is_alive() or Register(store, job="job", secret=SECRET).view() != group.view)
        group._control.changed.release()
        assert os.waitpid(child, 0)[1] == 0


@pytest.mark.parametrize("later", [None, signal.SIG_IGN])
def test_a_signal_does_what_it_did_before_once_a_member_has_left_unless_the_caller_has_changed_that(later: Any) -> None:
    before = signal.signal(signal.SIGTERM, own_handler)
    try:
        with alone(MemoryStore()) as group:
            group.leave_on(signal.SIGTERM)
            group.leave_on(signal.SIGTERM)
            assert signal.getsignal(signal.SIGTERM) is not own_handler
            if later is not None:
                signal.signal(signal.SIGTERM, later)
        assert signal.getsignal(signal.SIGTERM) is (later or own_handler)
    finally:
        signal.signal(signal.SIGTERM, before)


def test_a_second_signal_does_not_cut_short_what_the_first_one_ends() -> None:
    before = signal.signal(signal.SIGTERM, own_handler)
    try:
        with contextlib.suppress(SystemExit), alone(MemoryStore()) as group:
            group.leave_on(signal.SIGTERM)
            signal.raise_signal(signal.SIGTERM)
        with pytest.raises(SystemExit):
            signal.raise_signal(signal.SIGTERM)  # a checkpoint may be written by now
    finally:
        signal.signal(signal.SIGTERM, before)
