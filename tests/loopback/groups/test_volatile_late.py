"""Steps of a volatile group that do not wait for a late part: with `quorum`."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
from volatile_workers import Worker, agree, step_together, trio, until, works

from transport.volatile.register import MemoryStore


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
