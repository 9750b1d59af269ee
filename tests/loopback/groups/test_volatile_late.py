"""Steps of a volatile group that do not wait for a late part: with `quorum`."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from volatile_workers import Worker, agree, step_together, trio, until, works

from hive_qos.errors import TransportError
from transport.group import Group
from transport.volatile.register.register import MemoryStore
from transport.volatile.steps import Steps


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


def test_what_compression_leaves_out_counts_later_also_in_steps_without_a_late_part(
    start: Callable[..., Worker],
) -> None:
    members = trio(start, MemoryStore(), quorum=2, size=16_384, compression="int4")
    step_together(members, 8)
    for one in members:
        one.part[::2] = 0.06  # too little for a level of 4 bits beside a part of 1
    before = members[0].weights.copy()
    for one in members[:2]:
        one.allow(4)
    until(lambda: all(one.step == 13 for one in members[:2]))
    assert all(len(met.members) == 2 for met in members[0].met[-4:])
    grown = members[0].weights - before
    assert grown[::2].mean() > 0.5 * 0.06 * grown[1::2].mean()
    agree(*members)


def catch_up(late: Worker, step: int) -> None:
    """In one call, or more where the view changes meanwhile."""
    while late.step < step:
        before = late.step
        late.allow()
        until(lambda: late.step > before)  # noqa: B023 - called at once


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
    catch_up(late, 9 + missed)
    assert not late.met[-1].contributed
    assert np.array_equal(late.weights, members[0].weights)
    agree(*members)


def test_who_is_always_late_learns_until_it_has_caught_up(start: Callable[..., Worker]) -> None:
    store = MemoryStore()
    members = trio(start, store, quorum=2)
    step_together(members, 8)
    for one in members[:2]:
        one.allow(6)
    until(lambda: all(one.step == 15 for one in members[:2]))
    until(lambda: works(members[0], "a", "b"))
    assert len(members[0].group.view.joining) == 1
    catch_up(members[2], 15)
    while not works(members[0], "a", "b", "c"):  # the others hear that it has, and take it up after a step
        step = members[0].step + 1
        for one in members:
            one.allow()
        until(lambda: all(one.step == step for one in members[:2]))  # noqa: B023 - called at once
    for one in members:
        one.allow()
    until(lambda: min(one.step for one in members) > 15)
    agree(*members)


def test_who_was_late_in_the_last_step_ends_with_what_the_others_have(start: Callable[..., Worker]) -> None:
    members = trio(start, MemoryStore(), quorum=2)
    late = members[2]
    step_together(members, 8)
    for one in members[:2]:
        one.allow()
    until(lambda: all(one.step == 10 for one in members[:2]))
    for one in members[:2]:
        one.end()
    assert members[1].wait() is None  # one of them stays
    late.allow()
    until(lambda: late.step == 10)
    late.end()
    assert [one.wait() for one in members] == [None] * 3
    assert not late.met[-1].contributed
    assert np.array_equal(late.weights, members[0].weights)


def test_who_is_always_late_ends_with_what_the_others_have(start: Callable[..., Worker]) -> None:
    members = trio(start, MemoryStore(), quorum=2)
    late = members[2]
    step_together(members, 8)
    for one in members[:2]:
        one.allow(5)
    until(lambda: all(one.step == 14 for one in members[:2]))
    until(lambda: works(members[0], "a", "b"))  # the late one learns
    for one in members[:2]:
        one.end()
    assert members[1].wait() is None
    catch_up(late, 14)
    late.end()
    assert [one.wait() for one in members] == [None] * 3
    assert np.array_equal(late.weights, members[0].weights)


def test_who_was_late_gets_the_result_of_another_that_was_once_those_who_made_it_are_gone(
    start: Callable[..., Worker],
) -> None:
    store = MemoryStore()
    members = [start(name, store, members_min=5, quorum=3) for name in "abcde"]
    step_together(members, 9)
    makers, follower, late = members[:3], members[3], members[4]
    for one in members:
        assert one.group is not None
        one.group.members_min = 1
    for one in makers:
        one.allow()
    until(lambda: all(one.step == 10 for one in makers))
    follower.allow()
    until(lambda: follower.step == 10)
    for one in makers:
        one.kill()
    late.allow()
    until(lambda: late.step == 10)
    assert np.array_equal(late.weights, makers[0].weights)


def test_a_part_counts_as_one_that_did_also_where_only_the_others_heard_that_it_is_committed(
    start: Callable[..., Worker], monkeypatch: pytest.MonkeyPatch
) -> None:
    members = trio(start, MemoryStore(), quorum=2)
    others, cut_off = members[:2], members[2]
    step_together(members, 8)
    exchange = Steps._exchange

    class Cut:
        """A group whose members hear of this one that it is prepared, and go on; it hears nothing of them."""

        def __init__(self, group: Group) -> None:
            self._group = group

        def all_gather(self, outputs: list[Any], said: Any) -> None:
            self._group.all_gather(outputs, said).wait()
            until(lambda: all(one.step == 12 for one in others))
            raise TransportError("the link was cut")

    def cut(steps: Steps, group: Any, *rest: Any) -> tuple[bool, bool]:
        is_cut = steps._member.name == "c" and steps._control.step == 9
        whole: Any = Cut(group) if is_cut else group
        return exchange(steps, whole, *rest)

    monkeypatch.setattr(Steps, "_exchange", cut)
    for one in others:
        one.allow(3)
    cut_off.allow()
    until(lambda: cut_off.step >= 10)
    assert "c" in [str(one) for one in members[0].met[9].members]
    assert cut_off.met[-1].attempts == 0
    assert cut_off.met[-1].contributed
    agree(*members)
