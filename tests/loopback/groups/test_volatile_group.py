"""Volatile groups of threads: who joins, who is late, who leaves, and what is wrong with a register or a member."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from patience import wait_until

from hive_qos.errors import EvictedError, HiveError, MisuseError, PeerError, RegisterLostError
from transport.inspection import jobs
from transport.settings import Settings
from transport.tensors import TensorView
from transport.volatile import commit, restart
from transport.volatile.group import Committed, VolatileGroup
from transport.volatile.mesh import CONNECT_S
from transport.volatile.register import MemoryStore, Register, Store
from transport.volatile.view import Member, View, encode

SECRET = b"0123456789abcdef"
LIMIT_S = 60.0


class Worker:
    """A member in a thread. Its weights are the sum of all results; it makes one step for each `allow()`.

    Args:
        fragments: in turn each step is of so many of the first weights; () for steps of all of them.
        wishes: arguments of `VolatileGroup`, and `quorum` of its all-reduce.
    """

    def __init__(
        self,
        name: str,
        store: Store,
        *,
        size: int = 1000,
        follows: bool = True,
        apply_s: float = 0.0,
        engine: str = "auto",
        fragments: Sequence[int] = (),
        **wishes: object,
    ) -> None:
        self._fragments = fragments or (size,)
        self.name, self._store, self._follows, self._apply_s, self._engine = name, store, follows, apply_s, engine
        self._quorum = int(str(wishes.pop("quorum", 0)))
        self._wishes = wishes
        self.weights = np.zeros(size, np.float32)
        self.part = np.ones(size, np.float32)
        self.met: list[Committed] = []
        self.digests: dict[int, float] = {}
        self.group: VolatileGroup | None = None
        self.error: HiveError | None = None
        self._steps = threading.Semaphore(0)
        self._ending = False
        self._thread = threading.Thread(target=self._run, name=name)
        self._thread.start()

    def allow(self, steps: int = 1) -> None:
        self._steps.release(steps)

    def end(self) -> None:
        self._ending = True
        self._steps.release()

    def wait(self) -> HiveError | None:
        self._thread.join(LIMIT_S)
        assert not self._thread.is_alive(), f"{self.name} hangs"
        return self.error

    def kill(self) -> None:
        """As near to it as a thread comes: the others hear no word of the group's."""
        assert self.group is not None
        self.group.close()

    @property
    def step(self) -> int:
        return self.met[-1].step if self.met else 0

    def _elems(self, step: int) -> int:
        return self._fragments[step % len(self._fragments)]

    def _follow(self, step: int, tensors: Sequence[memoryview]) -> None:
        time.sleep(self._apply_s)
        self._applied(step, tensors)

    def _applied(self, step: int, tensors: Sequence[memoryview]) -> None:
        change = np.frombuffer(tensors[0], np.float32)
        assert change.size == self._elems(step)
        self.weights[: change.size] += change
        self.digests[step] = float(self.weights.sum())

    def _set(self, data: bytes) -> None:
        if len(data) != self.weights.nbytes:
            raise PeerError("the group", "it trains another model")
        self.weights[:] = np.frombuffer(data, np.float32)

    def _run(self) -> None:
        settings = Settings(
            listen="127.0.0.1",
            broker="off",
            engine=self._engine,
            receive_bytes_max=int(str(self._wishes.pop("bytes", 2**30))),
        )
        try:
            with VolatileGroup(
                Register(self._store, job="job", secret=SECRET, timeout_s=0.5),
                name=self.name,
                get_state=self.weights.tobytes,
                set_state=self._set,
                apply_result=self._follow if self._follows else None,
                settings=settings,
                **self._wishes,  # type: ignore[arg-type]
            ) as self.group:
                while True:
                    self._steps.acquire()
                    if self._ending:
                        return
                    part = self.part[: self._elems(self.group.step + 1)]
                    change = part * (1.0 + sum(self.name.encode()) % 7)
                    met = self.group.all_reduce(change, quorum=self._quorum)
                    assert met.applied == (part.size != self._elems(met.step))
                    if not met.applied:
                        self._applied(met.step, [TensorView.of(change, writable=False).data])
                    self.met.append(met)
        except HiveError as error:
            self.error = error


@pytest.fixture
def start() -> Iterator[Callable[..., Worker]]:
    """Starts members, and sees that all of them end."""
    workers: list[Worker] = []

    def begin(name: str, store: Store, **wishes: object) -> Worker:
        workers.append(Worker(name, store, **wishes))  # type: ignore[arg-type]
        return workers[-1]

    yield begin
    for one in workers:
        one.end()
        if one.group is not None:
            one.group.close()
    for one in workers:
        one.wait()


def works(worker: Worker, *names: str) -> bool:
    """Whether that member is in a group of exactly those who work."""
    assert worker.error is None, worker.error
    return worker.group is not None and [str(one) for one in worker.group.view.workers] == list(names)


def until(condition: Callable[[], object]) -> None:
    wait_until(condition, limit_s=LIMIT_S)


def trio(start: Callable[..., Worker], store: Store, **wishes: object) -> list[Worker]:
    """Three that work, after one step with all of their parts."""
    members = [start(name, store, members_min=3, **wishes) for name in "abc"]
    for one in members:
        one.allow()
    until(lambda: all(one.met for one in members))
    for one in members:
        assert one.group is not None
        one.group.members_min = 1
    return members


def step_together(members: Sequence[Worker], steps: int) -> None:
    """Nobody has a call left then. With eight, 20 arrivals and more are known."""
    for _ in range(steps):
        step = members[0].step + 1
        for one in members:
            one.allow()
        until(lambda: all(one.step == step for one in members))  # noqa: B023 - called at once


def agree(*workers: Worker) -> None:
    """All had the same weights after each step."""
    found: dict[int, set[float]] = {}
    for one in workers:
        for step, digest in one.digests.items():
            found.setdefault(step, set()).add(digest)
    assert all(len(one) == 1 for one in found.values()), found


@pytest.mark.parametrize(("follows", "engine"), [(True, "auto"), (False, "auto"), (True, "aioquic")])
def test_who_joins_holds_the_same_weights_and_the_others_wait_only_for_who_cannot_follow(
    start: Callable[..., Worker], follows: bool, engine: str
) -> None:
    store = MemoryStore()
    first = start("a", store, engine=engine)
    first.allow(3)
    until(lambda: first.step == 3)
    second = start("b", store, follows=follows, engine=engine)
    until(lambda: first.group is not None and first.group.view.joining)
    assert first.group is not None
    assert first.group.view.pause != follows
    first.allow(1)
    until(lambda: works(first, "a", "b") and works(second, "a", "b"))
    assert first.step == 4 if follows else first.step in (3, 4)
    for one in (first, second):
        one.allow(2)
    until(lambda: min(first.step, second.step) >= 5)
    agree(first, second)
    assert np.array_equal(first.weights, second.weights) or first.step != second.step


@pytest.mark.parametrize("written", [True, False])
def test_a_process_that_died_when_it_had_asked_to_join_keeps_nobody_out(
    start: Callable[..., Worker], written: bool
) -> None:
    store = MemoryStore()
    first = start("a", store)
    first.allow()
    until(lambda: first.step == 1)
    if written:
        Register(store, job="job", secret=SECRET).ask_to_join(Member("dead", 1))
    else:  # between taking its number and writing its name
        store.add("hive/volatile/job/asked", 1)
    began_s = time.monotonic()
    second = start("b", store)
    until(lambda: first.allow() or works(second, "a", "b"))
    assert time.monotonic() - began_s < CONNECT_S
    agree(first, second)


def test_any_member_tells_of_view_and_commits_of_all_as_soon_as_one_has_joined(
    start: Callable[..., Worker], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path))
    store = MemoryStore()
    workers = [start(name, store, members_min=2) for name in "ab"]
    for step in range(1, 1000):
        for one in workers:
            one.allow()
        until(lambda step=step: all(one.step == step for one in workers))
        if step == 1:
            start("c", store)
        if workers[0].group.view.joining:
            break
        time.sleep(0.1)
    # c learns, and stays a learner: nobody makes a step.
    until(lambda: len(list(tmp_path.glob("hive-qos/jobs/*.sock"))) == 3)
    for path in tmp_path.glob("hive-qos/jobs/*.sock"):

        def told(path: Path = path) -> dict[str, dict[str, Any]]:
            found = [one.get("volatile", {}) for one in jobs.ask(path, whole=True)["members"]]
            return {one["member"]: one for one in found if one.get("joining") == ["c"]}

        until(lambda told=told: sorted(told()) == ["a", "b", "c"])
        assert all(told()[name]["commits"][-1]["digest"] == told()[name]["digest"] for name in "ab")


def test_who_cannot_keep_up_is_waited_for_once_and_the_log_says_why(
    start: Callable[..., Worker], caplog: pytest.LogCaptureFixture
) -> None:
    store = MemoryStore()
    first = start("a", store)
    first.allow()
    until(lambda: first.step == 1)
    with caplog.at_level(logging.WARNING):
        second = start("b", store, apply_s=0.1)  # each result takes it as long as many steps take the other
        until(lambda: first.allow() or works(second, "a", "b"))
    assert "the next step waits for b, which does not catch up" in caplog.text
    agree(first, second)


def test_a_late_part_is_left_out_and_its_member_takes_the_result(start: Callable[..., Worker]) -> None:
    store = MemoryStore()
    members = trio(start, store, quorum=2)
    late = members[2]
    step_together(members, 8)
    for one in members[:2]:
        one.allow(2)
    until(lambda: all(one.step == 11 for one in members[:2]))
    assert [str(one) for one in members[0].met[-1].members] == ["a", "b"]
    late.allow(1)  # it is two steps behind, and makes up for both at once
    until(lambda: late.step == 11)
    assert not late.met[-1].contributed
    assert late.met[-1].members == members[0].met[-1].members
    agree(*members)


@pytest.mark.parametrize("missed", [1, 2, 3])
def test_who_was_late_applies_results_of_other_fragments_than_its_own(
    start: Callable[..., Worker], missed: int
) -> None:
    members = trio(start, MemoryStore(), quorum=2, fragments=(1000, 600))
    late = members[2]
    step_together(members, 8)
    for one in members[:2]:
        one.allow(missed)
    until(lambda: all(one.step == 9 + missed for one in members[:2]))
    while late.step < 9 + missed:  # one call, or more where the view changes meanwhile
        before = late.step
        late.allow(1)
        until(lambda: late.step > before)  # noqa: B023 - called at once
    assert not late.met[-1].contributed
    assert np.array_equal(late.weights, members[0].weights)
    agree(*members)


def test_who_is_always_late_learns_until_it_has_caught_up(start: Callable[..., Worker]) -> None:
    store = MemoryStore()
    members = trio(start, store, quorum=2)
    for one in members:
        one.allow(8)
    until(lambda: all(one.step == 9 for one in members))
    for one in members[:2]:
        one.allow(6)
    until(lambda: all(one.step == 15 for one in members[:2]))
    until(lambda: works(members[0], "a", "b"))
    assert len(members[0].group.view.joining) == 1
    members[2].allow(3)  # one or two take what there is, the next finds nothing more
    until(lambda: members[2].step == 15)
    for one in members[:2]:
        one.allow(1)
    until(lambda: works(members[0], "a", "b", "c"))
    for one in members[:2]:
        one.allow(1)
    until(lambda: min(one.step for one in members) >= 17 or members[2].step >= 16)
    agree(*members)


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


def test_a_job_whose_members_all_died_begins_anew_when_they_are_started_again(
    start: Callable[..., Worker], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(restart, "STANDS_S", 0.5)
    store = MemoryStore()
    for one in trio(start, store):
        one.kill()
    members = [start(name, store, members_min=4) for name in "dabc"]
    for one in members:
        one.allow()
    until(lambda: all(len(one.met) == 1 for one in members))
    agree(*members)


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
    group = VolatileGroup(
        Register(store, job="job", secret=SECRET),
        name="a",
        get_state=interrupted,
        set_state=lambda _data: None,
        settings=Settings(listen="127.0.0.1", broker="off"),
    )
    learner = start("b", store)
    until(lambda: group.view.joining)
    with pytest.raises(KeyboardInterrupt):
        group.leave()
    until(lambda: isinstance(learner.error, EvictedError) or works(learner, "b"))  # it had entered the view, or not yet


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


def test_a_joiner_of_another_model_or_for_a_state_too_large_ends_alone(start: Callable[..., Worker]) -> None:
    store = MemoryStore()
    first = start("a", store)
    first.allow(1)
    until(lambda: first.step == 1)
    other, small = start("b", store, size=5), start("c", store, bytes=100)
    until(lambda: first.allow() or (other.error and small.error))
    assert "trains another model" in str(other.wait())
    assert "its state has 4000 bytes, and this process takes at most 100" in str(small.wait())
    until(lambda: works(first, "a") and not first.group.view.joining)


def test_what_is_not_finite_is_not_sent_and_its_member_named(start: Callable[..., Worker]) -> None:
    members = trio(start, MemoryStore())
    members[1].part[5] = np.nan
    for one in members:
        one.allow()
    assert isinstance(members[1].wait(), MisuseError)
    assert "tensor 0 holds nan at 5" in str(members[1].error)
    until(lambda: members[0].step == 2)
    assert [str(one) for one in members[0].met[-1].members] == ["a", "c"]


def test_a_member_that_computes_wrong_is_named_and_the_others_go_on(
    start: Callable[..., Worker], monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    members = trio(start, MemoryStore())
    reduced = commit.reduced

    def wrong(state: commit.State, step: int, result: bytes) -> tuple[commit.State, list[commit.Action]]:
        return reduced(state, step, result[::-1] if state.me.name == "b" else result)

    monkeypatch.setattr(commit, "reduced", wrong)
    with caplog.at_level(logging.WARNING):
        for one in members:
            one.allow()
        assert isinstance(members[1].wait(), PeerError)
        until(lambda: members[0].step == members[2].step == 2)
    assert "this machine computes wrong" in str(members[1].error)
    assert "results of step 2 differ, b is odd" in caplog.text
    assert works(members[0], "a", "c")
    agree(members[0], members[2])


def test_two_that_differ_stop_and_say_so(start: Callable[..., Worker], monkeypatch: pytest.MonkeyPatch) -> None:
    store = MemoryStore()
    members = [start(name, store, members_min=2) for name in "ab"]
    reduced = commit.reduced

    def wrong(state: commit.State, step: int, result: bytes) -> tuple[commit.State, list[commit.Action]]:
        return reduced(state, step, result[::-1] if state.me.name == "b" else result)

    monkeypatch.setattr(commit, "reduced", wrong)
    for one in members:
        one.allow()
    errors = [one.wait() for one in members]
    assert any(isinstance(one, PeerError) and "unequal results of step 1" in str(one) for one in errors)


class Forgetful(MemoryStore):
    """A store that loses the view, goes back to an older one, takes a forged one, or falls silent, once told to."""

    def __init__(self) -> None:
        super().__init__()
        self.spoilt: Callable[[bytes], bytes | None] | None = None
        self.first = b""
        self.silent = threading.Event()
        self.speaks = threading.Event()

    def get(self, key: str) -> bytes | None:
        if self.silent.is_set():
            self.speaks.wait()
        held = super().get(key)
        if not key.endswith("/view") or held is None:
            return held
        self.first = self.first or held
        return held if self.spoilt is None else self.spoilt(held)

    def add(self, key: str, amount: int) -> int:
        if self.silent.is_set():
            self.speaks.wait()
        return super().add(key, amount)

    def compare_set(self, key: str, expected: bytes, value: bytes) -> bytes:
        if self.silent.is_set():
            self.speaks.wait()
        if self.spoilt is not None and key.endswith("/view"):
            return self.spoilt(value) or b""
        return super().compare_set(key, expected, value)


@pytest.mark.parametrize(
    ("how", "kind", "text"),
    [
        ("forgets", RegisterLostError, "has forgotten it"),
        ("goes back", RegisterLostError, "has forgotten epoch"),
        ("forged", PeerError, "was not written with this job's secret"),
        ("silent", RegisterLostError, "no answer within"),
    ],
)
def test_a_register_that_lies_or_is_lost_ends_everybody_when_the_view_has_to_change(
    start: Callable[..., Worker], how: str, kind: type[HiveError], text: str
) -> None:
    store = Forgetful()
    members = trio(start, store)
    forged = encode(View(99, (members[0].group.member,), 0, bytes(16)))
    answers: dict[str, Callable[[bytes], bytes | None]] = {
        "forgets": lambda _held: None,
        "goes back": lambda _held: store.first,
        "forged": lambda held: held[:32] + forged,
    }
    store.spoilt = answers.get(how)
    if how == "silent":
        store.silent.set()
    for one in members[:2]:
        one.allow()
    members[2].kill()
    try:
        for one in members[:2]:
            error = one.wait()
            assert isinstance(error, kind), error
            assert text in str(error)
    finally:
        store.speaks.set()


def test_steps_go_on_without_the_register_as_long_as_nobody_is_lost_and_somebody_joins_when_it_is_back(
    start: Callable[..., Worker], caplog: pytest.LogCaptureFixture
) -> None:
    store = Forgetful()
    members = trio(start, store)
    store.silent.set()
    try:
        until(lambda: "nobody can join" in caplog.text)
        for one in members:
            one.allow()
        until(lambda: all(one.step == 2 for one in members))
    finally:
        store.silent.clear()
        store.speaks.set()
    began_s = time.monotonic()
    start("d", store)
    until(lambda: [one.allow() for one in members] and len(members[0].group.view.members) == 4)
    assert time.monotonic() - began_s < CONNECT_S


def test_two_jobs_of_one_name_and_different_secrets_do_not_meet(start: Callable[..., Worker]) -> None:
    store = MemoryStore()
    first = start("a", store)
    first.allow()
    until(lambda: first.step == 1)
    with pytest.raises(PeerError, match="give all members the same HIVE_JOB_SECRET"):
        VolatileGroup(
            Register(store, job="job", secret=b"another secret!!"),
            name="b",
            get_state=bytes,
            set_state=lambda _data: None,
            settings=Settings(listen="127.0.0.1", broker="off"),
        )
    first.allow()
    until(lambda: first.step == 2)


def test_a_learner_whose_workers_are_all_gone_ends(start: Callable[..., Worker]) -> None:
    store = MemoryStore()
    first = start("a", store)
    first.allow()
    until(lambda: first.step == 1)
    second = start("b", store)  # it waits for a state, which the first gives only when it next calls
    until(lambda: first.group is not None and first.group.view.joining)
    time.sleep(0.1)
    first.kill()
    assert isinstance(second.wait(), EvictedError)
