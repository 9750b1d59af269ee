"""A member's control, as far as it needs no connections: what a learner makes of losing those it learns from."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

from hive_qos.errors import EvictedError
from transport import Settings
from transport.volatile.control import Control
from transport.volatile.protocol import commit
from transport.volatile.protocol.view import DIGEST_BYTES, Member, View
from transport.volatile.register.register import MemoryStore, Register, RegisterForgotError

WORKER, LEARNER = Member("a", 1), Member("b", 1)


def view(epoch: int, mesh: int) -> View:
    return View(epoch, (WORKER, LEARNER), 0, bytes(DIGEST_BYTES), (LEARNER,), mesh=mesh)


class TwoMeshes:
    """Connections of before, which the worker has left, and new ones."""

    def __init__(self) -> None:
        self.plan = None
        self.switch(1)

    def switch(self, number: int) -> bool:
        lost = frozenset({WORKER}) if number == 1 else frozenset()
        self.present = self.newest = SimpleNamespace(number=number, lost=lambda: lost)
        return True

    def give_up_plan(self) -> None:
        pass

    def forget_replaced(self) -> None:
        pass


@pytest.mark.parametrize("goes_on", [True, False])
def test_who_learns_looks_for_the_next_view_before_it_gives_all_others_up(goes_on: bool) -> None:
    register = Register(MemoryStore(), job="job")
    register.advance(view(1, mesh=1), None)
    control = Control(register, LEARNER, settings=Settings(), without_register_s=0.0)
    control.links = TwoMeshes()  # type: ignore[assignment]  # has what is asked here
    control.state = commit.begin_behind(LEARNER, view(1, mesh=1))
    if goes_on:
        register.advance(view(2, mesh=2), view(1, mesh=1))
    control._see_losses()
    assert control.view.epoch == (2 if goes_on else 1)
    assert isinstance(control.failure, EvictedError) is not goes_on


def test_a_register_that_was_emptied_and_has_another_run_at_the_same_epoch_has_forgotten_this_one() -> None:
    register = Register(MemoryStore(), job="job")
    others = View(1, (Member("c", 1), Member("d", 1)), 0, bytes(DIGEST_BYTES), run=2)
    register.advance(others, None)
    control = Control(register, WORKER, settings=Settings(), without_register_s=60.0)
    control.links = TwoMeshes()  # type: ignore[assignment]  # has what is asked here
    control.state = commit.begin(WORKER, view(1, mesh=1))
    with pytest.raises(RegisterForgotError, match="another epoch 1"):
        control.read_view()
