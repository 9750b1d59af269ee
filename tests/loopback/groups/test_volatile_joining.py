"""Who joins a volatile group holds what the others hold, and keeps nobody up who can go on."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from patience import wait_until
from volatile_workers import SECRET, Forgetful, Worker, agree, alone, step_together, trio, until, works

from hive_qos.errors import EvictedError, MisuseError, TimedOutError
from transport.inspection import jobs
from transport.volatile.control import Control
from transport.volatile.following import Follower
from transport.volatile.links.mesh import CONNECT_S, Mesh
from transport.volatile.membership import restart
from transport.volatile.membership.succession import Succession
from transport.volatile.protocol.admission import Admission, LetIn, MakePlan
from transport.volatile.protocol.commit import Phase
from transport.volatile.protocol.view import Member, View
from transport.volatile.register.register import MemoryStore, Register
from transport.volatile.transfer.fetch import Fetch


@pytest.mark.parametrize("engine", ["auto", "aioquic"])
def test_who_joins_holds_the_same_weights_and_the_others_do_not_wait(start: Callable[..., Worker], engine: str) -> None:
    store = MemoryStore()
    first = start("a", store, engine=engine)
    first.allow(3)
    until(lambda: first.step == 3)
    second = start("b", store, engine=engine)
    until(lambda: first.group is not None and first.group.view.joining)
    assert first.group is not None
    assert not first.group.view.pause
    first.allow(1)
    until(lambda: works(first, "a", "b") and works(second, "a", "b"))
    assert first.step == 4
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
            found = [one.get("volatile", {}) for one in jobs.ask(path, jobs.GROUP)["members"]]
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


def test_who_fetches_a_state_for_longer_than_the_others_keep_it_is_waited_for(
    start: Callable[..., Worker], monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr("transport.volatile.transfer.shelf.RESULTS_MAX", 2)
    store, run = MemoryStore(), Fetch.run
    first = start("a", store)

    def slowly(fetch: Fetch, *holders: Any, **options: Any) -> bool:
        began = first.step
        wait_until(lambda: not fetch.state or first.group.view.pause or first.step > began + 4)
        return run(fetch, *holders, **options)

    monkeypatch.setattr(Fetch, "run", slowly)
    first.allow()
    until(lambda: first.step == 1)
    with caplog.at_level(logging.WARNING):
        second = start("b", store)
        until(lambda: first.allow() or works(second, "a", "b"))
    assert "its state takes longer to fetch than the others keep it" in caplog.text
    agree(first, second)


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


def test_who_joins_waits_for_a_register_that_falls_silent_meanwhile(
    start: Callable[..., Worker], caplog: pytest.LogCaptureFixture
) -> None:
    store = Forgetful()
    first = start("a", store)
    first.allow()
    until(lambda: first.step == 1)
    second = start("b", store)
    register = Register(store, job="job", secret=SECRET)
    until(register.asked)
    with caplog.at_level(logging.WARNING):
        store.silent.set()
        until(lambda: "b joins once the register answers again" in caplog.text or second.error)
        store.silent.clear()
        store.speaks.set()
    until(lambda: first.allow() or works(second, "a", "b"))
    agree(first, second)


def test_who_cannot_connect_to_a_member_hears_why_and_the_members_say_so_once(
    start: Callable[..., Worker], monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """As where a firewall lets TCP pass to the register, and no UDP between the members."""
    store, tries = MemoryStore(), []
    first = start("a", store)
    first.allow()
    until(lambda: first.step == 1)

    def failing(_: Register, number: int, some: object, me: Member, **named: object) -> Mesh:
        tries.append(me.name)
        raise TimedOutError("connecting: nothing from a host", timeout_s=10.0)

    monkeypatch.setattr(Mesh, "connect", failing)
    with caplog.at_level(logging.WARNING):
        second = start("b", store, join_timeout_s=6.0)
        assert "nothing from a host" in str(second.wait())
    assert tries.count("a") > 1
    assert caplog.text.count("could not all be connected") == 2, "each of the two says it once"


def test_who_closes_while_it_connects_to_somebody_who_is_not_there_leaves_no_thread_behind(
    start: Callable[..., Worker], caplog: pytest.LogCaptureFixture
) -> None:
    before, store = set(threading.enumerate()), MemoryStore()
    first = start("a", store)
    first.allow()
    until(lambda: first.step == 1)
    Register(store, job="job", secret=SECRET).ask_to_join(Member("dead", 1))

    def connecting() -> set[threading.Thread]:
        return {one for one in set(threading.enumerate()) - before if one.name == "hive-volatile-connect"}

    until(connecting)
    first.kill()
    began_s = time.monotonic()
    until(lambda: not connecting())
    assert time.monotonic() - began_s < CONNECT_S / 2
    assert "could not all be connected" not in caplog.text


def test_two_processes_of_one_name_train_as_two_members_and_the_newcomer_is_warned(
    start: Callable[..., Worker], caplog: pytest.LogCaptureFixture
) -> None:
    store = MemoryStore()
    first, second = start("a", store), start("a", store)
    with caplog.at_level(logging.WARNING):
        until(lambda: first.allow() or second.allow() or works(first, "a", "a") or works(second, "a", "a"))
    assert "another member of job job is called a: names should differ" in caplog.text
    agree(first, second)


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


def test_who_applies_a_result_while_the_view_changes_does_not_apply_it_again(
    start: Callable[..., Worker], monkeypatch: pytest.MonkeyPatch
) -> None:
    store = MemoryStore()
    members = trio(start, store)
    controls: list[Control] = []
    killed, frozen = threading.Event(), threading.Event()
    tell_ready, follow, advance = Follower._tell_ready, Worker._follow, Succession._advance

    def told(follower: Follower) -> None:
        if follower._control.member.name == "d":
            controls.append(follower._control)
        tell_ready(follower)

    def works_soon(control: Control) -> bool:
        """Whether its word that it is ready has come; it counts only where the others had not gone on meanwhile."""
        with suppress(AssertionError):
            return wait_until(lambda: control.member in control.view.workers, limit_s=1.0)
        return False

    def slowly(worker: Worker, step: int, tensors: Any) -> None:
        if worker.name == "d" and controls and not killed.is_set() and works_soon(controls[-1]):
            control = controls[-1]
            killed.set()
            members[2].kill()
            until(lambda: control.state.phase is Phase.FROZEN)
            frozen.set()
        follow(worker, step, tensors)

    def decide(succession: Succession, view: View) -> None:
        if killed.is_set():
            frozen.wait(10.0)
        advance(succession, view)

    monkeypatch.setattr(Follower, "_tell_ready", told)
    monkeypatch.setattr(Worker, "_follow", slowly)
    monkeypatch.setattr(Succession, "_advance", decide)
    joiner = start("d", store)

    def go_on() -> bool:
        for one in members:
            one.allow()
        time.sleep(0.1)
        return bool(controls) and works(members[0], "a", "b", "d") and joiner.group is not None

    until(go_on)
    joiner.allow(2)
    until(lambda: [one.allow() for one in members[:2]] and joiner.step > 0)
    assert frozen.is_set()
    agree(joiner, *members)


def test_a_newcomer_that_is_left_out_while_it_learns_joins_anew(
    start: Callable[..., Worker], monkeypatch: pytest.MonkeyPatch
) -> None:
    store = MemoryStore()
    members = trio(start, store)
    learn_state, left = Follower._learn_state, list[Member]()

    def cut_off(follower: Follower, *arguments: Any) -> Any:
        if not left:
            control = follower._control
            left.append(control.member)
            control.fail(EvictedError("the others go on without it"))
            control.links.close()
            until(lambda: control.member not in members[0].group.view.members)
            return None
        return learn_state(follower, *arguments)

    monkeypatch.setattr(Follower, "_learn_state", cut_off)
    joiner = start("d", store)
    until(lambda: [one.allow() for one in members] and works(members[0], "a", "b", "c", "d"))
    until(lambda: joiner.group is not None)
    assert left
    assert joiner.group.member != left[0]


def left_out(worker: Worker) -> None:
    """Its next step finds that the others go on without it."""
    assert worker.group is not None
    control = worker.group._control
    control.fail(EvictedError("the others go on without it"))
    control.close()


def test_who_was_left_out_does_not_go_on_in_another_run_of_the_job(start: Callable[..., Worker]) -> None:
    store = MemoryStore()
    members = trio(start, store)
    left_out(members[2])
    until(lambda: works(members[0], "a", "b"))
    for one in members[:2]:
        one.end()
        one.wait()
    other = start("d", store)
    other.allow()
    until(lambda: other.step == 1)
    members[2].allow()
    assert "has begun anew" in str(members[2].wait()) or "have left since" in str(members[2].error)


def test_members_that_all_fail_alike_go_on_from_what_they_hold(
    start: Callable[..., Worker], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(restart, "STANDS_S", 0.5)
    monkeypatch.setattr(restart, "connect_s", lambda members: 0.0)
    members = trio(start, MemoryStore())
    for one in members:
        assert one.group is not None
        one.group._control.fail(EvictedError("its part of a meeting was broken off"))
    seen = dict.fromkeys(members, 0)

    def work() -> bool:
        for one in members:
            if len(one.met) > seen[one]:
                seen[one] = len(one.met)
                one.allow()
        return all(len(one.met) > 1 and works(one, "a", "b", "c") for one in members)

    until(work)
    agree(*members)
    assert min(one.met[1].step for one in members) == 1, "the first one goes on after the step that it holds"


@pytest.mark.parametrize("holds_less", ["c", "d"])
def test_where_all_fail_alike_who_holds_the_last_step_goes_on_though_another_asks_earlier(
    start: Callable[..., Worker], monkeypatch: pytest.MonkeyPatch, holds_less: str
) -> None:
    """That one has not heard that the step was committed, or is new, and holds nothing."""
    monkeypatch.setattr(restart, "STANDS_S", 2.0)
    monkeypatch.setattr(restart, "connect_s", lambda members: 0.0)
    store, waiting = MemoryStore(), list[Member]()
    members, say = trio(start, store), Register.say_waiting

    def waits(register: Register, member: Member, *beat: int) -> None:
        say(register, member, *beat)
        waiting.append(member)

    before = members[2].group._control.state
    step_together(members, 1)
    for one in members:
        one.group._control.fail(EvictedError("its part of a meeting was broken off"))
    monkeypatch.setattr(Register, "say_waiting", waits)
    if holds_less == "c":
        control = members[2].group._control
        control.state = replace(control.state, committed=before.committed, digest=before.digest)
        members[2].allow()
    else:
        start("d", store)
    until(lambda: len(waiting) > 1)  # a second after the first time
    for one in members:
        one.allow()
    until(lambda: any(len(one.met) > 2 or one.error for one in members))
    assert [one.error for one in members] == [None] * 3
    assert [one.met[2].step for one in members if len(one.met) > 2] == [2]


def test_who_joins_again_can_be_closed_while_the_register_is_away(start: Callable[..., Worker]) -> None:
    store = Forgetful()
    members = trio(start, store)
    left_out(members[2])
    store.silent.set()
    try:
        members[2].allow()
        until(lambda: members[2].group is not None and members[2].group._joining is not None)
        members[2].kill()
        began_s = time.monotonic()
        assert isinstance(members[2].wait(), MisuseError)
        assert time.monotonic() - began_s < CONNECT_S
    finally:
        store.speaks.set()


def test_connections_that_come_to_stand_while_a_view_is_written_do_not_replace_those_that_it_names(
    start: Callable[..., Worker], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Two ask one after the other: the view lets the first one in while the members connect to the second one, too.

    A first worker begins with the second one later. But what it hears may be late, and another one may have begun.
    """
    members = trio(start, store := MemoryStore())
    connect, advance, following = Mesh.connect, Register.advance, Admission.next
    writing, asked, standing = threading.Event(), threading.Event(), [0]

    def early(admission: Admission, living: frozenset[Member], **named: Any) -> MakePlan | LetIn | None:
        found = following(admission, living, **named)
        both = {"x", "y"} <= {one.name for one in admission._candidates} and not asked.is_set()
        return MakePlan(living | admission._candidates.keys()) if both and isinstance(found, LetIn) else found

    def slowly(cls: type[Mesh], register: Register, number: int, some: Any, *rest: Any, **named: Any) -> Mesh:
        both = {"x", "y"} <= {one.name for one in some}
        if both:
            asked.set()
            assert writing.wait(60.0)
        mesh: Mesh = connect.__func__(cls, register, number, some, *rest, **named)  # type: ignore[attr-defined]  # a classmethod
        standing[0] += both
        return mesh

    def written(register: Register, view: View, before: View | None) -> View:
        if [one.name for one in view.joining] == ["x"] and not writing.is_set():
            writing.set()
            until(lambda: standing[0] == 5)
            time.sleep(0.2)  # until they know that it stands
        return advance(register, view, before)

    monkeypatch.setattr(Mesh, "connect", classmethod(slowly))
    monkeypatch.setattr(Register, "advance", written)
    monkeypatch.setattr(Admission, "next", early)
    for one in members[:2]:
        one.allow()  # a step that c has yet to make: until then the view stays
    newcomers = [start("x", store)]
    until(lambda: any("x" in str(one) for one in _wished(members[0])))
    newcomers.append(start("y", store))
    assert asked.wait(60.0)
    members[2].allow()
    everybody = [*members, *newcomers]
    run = members[0].group.view.run if members[0].group is not None else 0

    def all_work() -> bool:
        for one in everybody:
            one.allow()
        return works(members[0], "a", "b", "c", "x", "y")

    wait_until(all_work, limit_s=60.0, pause_s=0.05)
    until(lambda: all(one.group is not None for one in everybody))
    assert writing.is_set()
    for one in everybody:
        assert one.error is None
        assert one.group is not None
        assert one.group.view.run == run != 0
    assert [str(one.group.member) for one in members if one.group] == ["a", "b", "c"]
    assert all(one.met[-1].attempts for one in members), "nobody was left out"


def _wished(worker: Worker) -> frozenset[Member]:
    assert worker.group is not None
    return worker.group._control.state.wish.joining


@pytest.mark.parametrize("decided", [False, True])
def test_who_learned_a_state_that_the_only_worker_has_lost_ends_with_the_same_as_that_one(
    start: Callable[..., Worker], monkeypatch: pytest.MonkeyPatch, decided: bool
) -> None:
    weights, learned, lost = np.zeros(1000, np.float32), threading.Event(), threading.Event()
    advance, tell_ready = Succession._advance, Follower._tell_ready

    def lose() -> None:
        lost.set()
        weights[:] = -1.0
        group.lose_state("for this test")

    def lose_and_advance(succession: Succession, view: View) -> None:
        if len(view.workers) == 2 and not lost.is_set():
            lose()
        advance(succession, view)

    def learn(follower: Follower) -> None:
        learned.set()
        if decided or lost.is_set():  # else it does not become a worker before
            tell_ready(follower)

    def take(data: bytes) -> None:
        weights[:] = np.frombuffer(data, np.float32)

    def apply(_step: int, tensors: Sequence[memoryview]) -> None:
        weights[:] += np.frombuffer(tensors[0], np.float32)

    monkeypatch.setattr(Succession, "_advance", lose_and_advance)
    monkeypatch.setattr(Follower, "_tell_ready", learn)
    store = MemoryStore()
    with alone(store, weights.tobytes, set_state=take, apply_result=apply) as group, ThreadPoolExecutor(1) as threads:
        second = start("b", store)
        until(lambda: learned.is_set() or group.stepped(0))
        if decided:  # they are two workers by now, and the second one goes on alone
            until(lost.is_set)
            joined = threads.submit(group.all_reduce, np.ones(1000, np.float32))
            until(lambda: joined.done() or second.allow())
            assert joined.result().applied
            until(lambda: group.step in second.digests)
            assert second.digests[group.step] == weights.sum() > 0
        else:
            lose()
            until(lambda: works(second, "a", "b") or group.stepped(0))
            assert np.array_equal(second.weights, weights)
            assert weights[0] == -1.0
