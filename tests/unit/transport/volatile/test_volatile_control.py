"""A member's control, as far as it needs no connections: what a learner makes of losing those it learns from."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

from hive_qos.errors import EvictedError
from transport import Settings
from transport.volatile.control import Control
from transport.volatile.protocol import commit
from transport.volatile.protocol.view import DIGEST_BYTES, Member, View
from transport.volatile.register.register import MemoryStore, Register

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
    control.links = TwoMeshes()  # type: ignore[assignment]
    control.state = commit.begin_behind(LEARNER, view(1, mesh=1))
    if goes_on:
        register.advance(view(2, mesh=2), view(1, mesh=1))
    control._see_losses()
    assert control.view.epoch == (2 if goes_on else 1)
    assert isinstance(control.failure, EvictedError) is not goes_on
