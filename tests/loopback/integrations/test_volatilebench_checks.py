"""The checks of the benchmark of volatile training, with few steps: those that have to be exact are."""

from __future__ import annotations

import pytest

from tools.volatilebench.bounds import BY_NAME, CHECKS
from tools.volatilebench.programs import checks

STEPS = 10


def test_every_check_has_a_program() -> None:
    assert set(checks.CHECKS) == {check.name for check in CHECKS}


@pytest.mark.parametrize("name", ["merged norm", "sum"])
def test_what_has_to_be_exact_is(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(checks, "EVENTS", 2)
    checks.ring.cache_clear()
    assert checks.CHECKS[name](0, STEPS) <= BY_NAME[name].at_most


@pytest.mark.parametrize(("dropped", "is_same"), [(0.0, True), (0.5, False)])
def test_diloco_with_parts_dropped_differs_from_diloco_only_by_them(
    dropped: float, is_same: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(checks, "DROPPED", dropped)
    found = checks.loss_of(lambda model: checks.HalfDropped(model, every=5, seed=0, members=2), 2, 0, STEPS)
    assert (found == checks.diloco_loss(5, 2, 0, STEPS)) is is_same


@pytest.mark.long
def test_members_that_come_and_go_hold_the_same_bits(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(checks, "ROUNDS_BETWEEN", 2)
    differing, loss = checks.coming_and_going(0, 60)
    assert differing == 0
    assert 0.7 < loss < 1.5  # of few steps: no more than that it was trained
