"""A volatile group with a register or a member that is wrong, lies, or is lost."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable

import numpy as np
import pytest
from volatile_workers import SECRET, Forgetful, Worker, agree, trio, until, works

from hive_qos.errors import HiveError, MisuseError, PeerError, RegisterLostError
from transport.group import Group
from transport.settings import Settings
from transport.volatile.group import VolatileGroup
from transport.volatile.links.mesh import CONNECT_S
from transport.volatile.membership.succession import LATE_S
from transport.volatile.protocol import commit
from transport.volatile.protocol.view import View, encode
from transport.volatile.register.register import MemoryStore, Register


def test_what_is_not_finite_is_not_sent_and_its_member_named(start: Callable[..., Worker]) -> None:
    members = trio(start, MemoryStore())
    members[1].part[5] = np.nan
    for one in members:
        one.allow()
    assert isinstance(members[1].wait(), MisuseError)
    assert "tensor 0 holds nan at 5" in str(members[1].error)
    until(lambda: members[0].step == 2)
    assert [str(one) for one in members[0].met[-1].members] == ["a", "c"]


def test_a_range_of_ports_serves_all_members_of_a_host_as_they_come(start: Callable[..., Worker]) -> None:
    store, ports = MemoryStore(), range(23_000, 23_040)  # no other test's, and below those that the kernel chooses
    members = trio(start, store, ports=ports)
    members.append(start("d", store, ports=ports))
    until(lambda: [one.allow() for one in members] and all(one.group is not None for one in members))
    for one in members:
        assert one.group is not None
        own = one.group._control.links.present.group._runtime._endpoint.peers.own
        assert {own[0].port, own[0].bulk_port} < set(ports)


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
    until(lambda: any(one.error for one in members))  # the other may be waiting for a second one by then
    errors = [one.error for one in members]
    assert any(isinstance(one, PeerError) and "unequal results of step 1" in str(one) for one in errors)


@pytest.mark.parametrize(
    ("how", "kind", "text"),
    [
        ("forgets", RegisterLostError, "has forgotten it"),
        ("goes back", RegisterLostError, "has forgotten epoch"),
        ("forged", PeerError, "was not written with this job's secret"),
        ("silent", RegisterLostError, "it has not answered since"),
    ],
)
def test_a_register_that_lies_or_is_lost_ends_everybody_when_the_view_has_to_change(
    start: Callable[..., Worker], how: str, kind: type[HiveError], text: str
) -> None:
    store = Forgetful()
    members = trio(start, store, join_timeout_s=5.0)
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


def test_an_emptied_register_is_named_at_once_and_steps_go_on_until_the_view_has_to_change(
    start: Callable[..., Worker], caplog: pytest.LogCaptureFixture
) -> None:
    store = MemoryStore()
    members = trio(start, store)
    store._values.clear()
    store._counters.clear()
    until(lambda: "nobody can join" in caplog.text)
    assert "the register has forgotten this job; it was emptied, as by a new start: join anew" in caplog.text
    for one in members:
        one.allow()
    until(lambda: all(one.step == 2 for one in members))


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


def test_a_view_waits_for_a_register_that_comes_back(
    start: Callable[..., Worker], caplog: pytest.LogCaptureFixture
) -> None:
    store = Forgetful()
    members = trio(start, store)
    store.silent.set()
    for one in members[:2]:
        one.allow()
    members[2].kill()
    try:
        until(lambda: caplog.text.count("waits for the register") >= 2)
        time.sleep(LATE_S)  # after so long who decides would count as gone, had it not waited, too
    finally:
        store.silent.clear()
        store.speaks.set()
    until(lambda: all(works(one, "a", "b") and one.step == 2 for one in members[:2]))
    agree(*members)


class Own(Forgetful):
    """One member's way to the store of all, which may fall silent alone."""

    def __init__(self, store: MemoryStore) -> None:
        super().__init__()
        self._values, self._counters, self._lock = store._values, store._counters, store._lock


def test_a_member_that_alone_cannot_reach_the_register_gives_its_place_up_and_joins_again(
    start: Callable[..., Worker],
) -> None:
    store = MemoryStore()
    own = Own(store)
    stores: dict[str, MemoryStore] = {"a": store, "b": own, "c": store}
    members = trio(lambda name, _store, **wishes: start(name, stores[name], **wishes), store)
    own.silent.set()
    try:
        members[2].kill()
        members[0].allow()
        members[1].allow()
        until(lambda: works(members[0], "a"))
        until(lambda: members[0].step == 2)
    finally:
        own.silent.clear()
        own.speaks.set()
    until(lambda: members[0].allow() or works(members[1], "a", "b"))
    agree(*members)


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
            apply_result=lambda _step, _tensors: None,
            settings=Settings(listen="127.0.0.1", broker="off"),
        )
    first.allow()
    until(lambda: first.step == 2)


def test_an_exchange_goes_on_after_a_change_of_the_view_by_being_given_up(start: Callable[..., Worker]) -> None:
    """Also where it was in no call when its group was closed: the next call says that it is."""
    store = MemoryStore()
    with VolatileGroup(
        Register(store, job="job", secret=SECRET, timeout_s=0.5),
        name="a",
        get_state=bytes(4000).__bytes__,
        set_state=lambda _data: None,
        apply_result=lambda _step, _tensors: None,
        settings=Settings(listen="127.0.0.1", broker="off"),
    ) as group:

        def exchange(connected: Group, view: View) -> str:
            start("b", store)
            until(lambda: group.view is not view and group._control.connects(group.view))
            connected.allreduce(np.zeros(10, np.float32)).wait()
            return "it was done"

        assert group.aside(exchange) is None
        until(lambda: group.aside(lambda connected, _view: connected.size) == 2)
