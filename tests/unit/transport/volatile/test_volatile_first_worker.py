"""What every member keeps for the case that it is the first: which connections the next view is to work on."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from transport.volatile.membership.first_worker import FirstWorker
from transport.volatile.protocol import commit
from transport.volatile.protocol.commit import Phase
from transport.volatile.protocol.view import DIGEST_BYTES, Member, View
from transport.volatile.register.register import MemoryStore, Register

A, B, LEARNER, NEW = (Member(name, 1) for name in "abcd")


class Stand:
    """The control of `B`, which is not the first, or of another one: its newest connections have the number 2."""

    in_step = is_idle = False

    def __init__(self, member: Member = B) -> None:
        self.member = member
        self.lost: frozenset[Member] = frozenset()
        self.links = SimpleNamespace(
            newest=SimpleNamespace(number=2, lost=frozenset),
            plan=None,
            present=SimpleNamespace(number=1, lost=lambda: self.lost),
            give_up_plan=lambda: None,
            forget_replaced=lambda: None,
        )
        self.enter(View(1, (A, B, LEARNER), 0, bytes(DIGEST_BYTES), (LEARNER,)))

    def enter(self, view: View) -> None:
        self.state = commit.begin(self.member, view)

    def apply(self, rule: Any, *args: Any, **named: Any) -> None:
        self.state, _ = rule(self.state, *args, **named)

    def look_soon(self) -> None:
        pass


def first_worker(stand: Stand) -> FirstWorker:
    return FirstWorker(Register(MemoryStore(), job="job"), stand)  # type: ignore[arg-type]  # has what is asked here


def test_the_next_view_works_on_new_connections_once_all_who_learn_have_them_and_no_view_forgets_it() -> None:
    stand = Stand()
    first = first_worker(stand)
    for member in (A, NEW, B):
        first.connected(member, 2)
    assert stand.state.wish.mesh == 1, "who learns could not go on with the others"
    first.connected(LEARNER, 2)
    assert stand.state.wish.mesh == 2
    stand.enter(View(2, (A, B, LEARNER), 0, bytes(DIGEST_BYTES)))  # for another reason, before others had them
    first.entered(stand.state.view)
    assert stand.state.wish.mesh == 2, "else who is let in next would be in a view of other connections than its own"


@pytest.mark.parametrize("in_the_next_view", [False, True])
def test_who_learns_and_is_lost_holds_nobody_up(in_the_next_view: bool) -> None:
    stand = Stand()
    first = first_worker(stand)
    first.connected(B, 2)
    assert stand.state.wish.mesh == 1
    if in_the_next_view:
        stand.enter(View(2, (A, B), 0, bytes(DIGEST_BYTES)))
        first.entered(stand.state.view)
    else:
        stand.lost = frozenset({LEARNER})
        first.admit()  # as each member does now and then
    assert stand.state.wish.mesh == 2


def test_connections_that_others_have_replaced_are_no_more_wished_for() -> None:
    """Else the next view would work on what nobody has, and all would be sent away."""
    stand = Stand()
    first = first_worker(stand)
    for member in (B, LEARNER):
        first.connected(member, 2)
    stand.state, _ = commit.changed(stand.state, joining=frozenset({NEW}), at_boundary=True)
    assert (stand.state.wish.mesh, stand.state.wish.joining) == (2, {NEW})
    stand.links.newest = SimpleNamespace(number=3)
    first.connected(B, 3)
    assert (stand.state.wish.mesh, stand.state.wish.joining) == (1, frozenset()), "who learns lacks them"
    first.connected(LEARNER, 3)
    assert stand.state.wish.mesh == 3


def test_no_step_that_others_make_without_the_first_worker_is_undone_to_let_somebody_in() -> None:
    stand, register = Stand(A), Register(MemoryStore(), job="job")
    register.ask_to_join(NEW)
    first = FirstWorker(register, stand)  # type: ignore[arg-type]  # has what is asked here
    for member in (A, B, LEARNER, NEW):
        first.connected(member, 2)
    first.admit()
    assert stand.state.wish.joining == {NEW}
    stand.apply(commit.choose, 1, {B})
    first.admit()
    assert stand.state.phase is Phase.REDUCING
    stand.apply(commit.followed, 1, bytes(DIGEST_BYTES))
    first.admit()
    assert stand.state.phase is Phase.FROZEN
