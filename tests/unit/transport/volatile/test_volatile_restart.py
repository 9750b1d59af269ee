"""A job begins anew where half of its workers are known to have died, and its view does not change."""

from __future__ import annotations

from dataclasses import replace

import pytest

from transport.volatile.links.mesh import connect_s
from transport.volatile.membership.restart import STANDS_S, Restart
from transport.volatile.protocol.admission import READ_BACK_MAX
from transport.volatile.protocol.view import DIGEST_BYTES, Member, View
from transport.volatile.register.register import MemoryStore, Register

VIEW = View(7, tuple(Member(name, 1) for name in "abcd"), 40, bytes(DIGEST_BYTES), joining=(Member("d", 1),))


class Asking:
    """Processes that ask to join and beat, unless they are silent; somebody looks once a second."""

    def __init__(self, *members: Member, silent: frozenset[Member] = frozenset(), held: int = -1) -> None:
        self._register = Register(MemoryStore(), job="j")
        self._silent, self._held = silent, held
        for one in members:
            self._register.ask_to_join(one)
            self._register.say_waiting(one, 0, held)
        self._members, self._restart = members, Restart(self._register)

    def due_s(self, *views: View) -> int | None:
        """When a new beginning is due, where each view stands for a minute."""
        for second in range(60 * len(views)):
            for one in self._members:
                if one not in self._silent:
                    self._register.say_waiting(one, second, self._held)
            if self._restart.is_due(views[second // 60], 1, float(second), self._held):
                return second
        return None


def again(names: str) -> list[Member]:
    """Processes that have the names of former ones."""
    return [Member(name, 2) for name in names]


@pytest.mark.parametrize("names", ["ab", "abc", "abcd", "bcx"])
def test_where_half_of_the_workers_are_started_again_a_new_beginning_is_due_when_the_view_has_stood(names: str) -> None:
    due_s = Asking(*again(names)).due_s(VIEW)
    assert due_s is not None
    stands_s = STANDS_S + connect_s(2 * len(VIEW.members))  # a living first worker has them connect in that time
    assert stands_s <= due_s < stands_s + 10


@pytest.mark.parametrize("names", ["", "a", "xyz", "d", "ad"])
def test_the_names_of_fewer_of_strangers_or_of_learners_are_no_reason(names: str) -> None:
    assert Asking(*again(names)).due_s(VIEW) is None


@pytest.mark.parametrize(("names", "due"), [("a", False), ("ab", True)])
def test_who_goes_on_from_a_step_needs_more_than_half(names: str, due: bool) -> None:
    """Of two, the other one may live without the register, and have committed the next step."""
    two = replace(VIEW, members=VIEW.members[:2], joining=())
    assert (Asking(*again(names), held=40).due_s(two) is not None) == due
    assert Asking(*again(names)).due_s(two) is not None, "who begins anew goes on from nothing"


def test_who_asked_and_died_since_is_no_reason_nor_is_a_member_that_asked_before_it_was_let_in() -> None:
    first, second = again("ab")
    assert Asking(first, second, silent=frozenset({second})).due_s(VIEW) is None
    assert Asking(*VIEW.members).due_s(VIEW) is None


def test_a_view_that_changes_lives() -> None:
    views = [replace(VIEW, epoch=epoch) for epoch in range(7, 10)]
    asking = Asking(*again("ab"))
    for second in range(300):
        for one in again("ab"):
            asking._register.say_waiting(one, second, -1)
        assert not asking._restart.is_due(views[second % 3], 1, float(second), -1)


def test_whoever_has_others_connect_lives() -> None:
    asking = Asking(*again("ab"))
    for second in range(300):
        for one in again("ab"):
            asking._register.say_waiting(one, second, -1)
        assert not asking._restart.is_due(VIEW, second // 10, float(second), -1)


def test_a_counter_that_is_forged_costs_a_bounded_number_of_reads(monkeypatch: pytest.MonkeyPatch) -> None:
    store, read = MemoryStore(), list[int]()
    store.add("hive/volatile/j/asked", 10**6)
    monkeypatch.setattr(Register, "request", lambda _register, number: read.append(number))
    restart = Restart(Register(store, job="j"))
    assert not restart.is_due(VIEW, 1, 0.0, -1)
    assert not restart.is_due(VIEW, 1, 1000.0, -1)
    assert read == list(range(10**6 - READ_BACK_MAX + 1, 10**6 + 1))
