"""Who stays when members leave, and for whom."""

from __future__ import annotations

import dataclasses

import pytest

from transport.volatile.protocol.commit import Phase, State, begin
from transport.volatile.protocol.hand_over import HEAR_S, HandOver
from transport.volatile.protocol.view import DIGEST_BYTES, Member, View

A, B, C = (Member(name, 1) for name in "abc")


def standing(me: Member, *, joining: tuple[Member, ...] = (), lost: frozenset[Member] = frozenset()) -> State:
    """After step 7 of a view of all three."""
    view = View(1, (A, B, C), 7, bytes(DIGEST_BYTES), joining)
    return dataclasses.replace(begin(me, view), lost=lost)


def test_nobody_stays_where_all_have_made_the_last_step() -> None:
    for one in (A, B, C):
        hand_over = HandOver(one)
        hand_over.committed((A, B, C))
        assert hand_over.needed_by(standing(one), expects_somebody=False) == []


def test_the_first_of_those_who_made_the_last_step_hears_who_else_leaves_and_stays_where_all_do() -> None:
    first, second = HandOver(A), HandOver(B)
    for one in (first, second):
        one.committed((A, B))
    assert second.needed_by(standing(B), expects_somebody=False) == []
    assert first.needed_by(standing(A), expects_somebody=False) == ["c"]
    assert first.needed_by(standing(A, lost=frozenset({B})), expects_somebody=False) == ["c"]


def test_the_first_goes_where_another_one_that_holds_it_does_not(monkeypatch: pytest.MonkeyPatch) -> None:
    now_s = 100.0
    monkeypatch.setattr("transport.volatile.protocol.hand_over.time.monotonic", lambda: now_s)
    hand_over = HandOver(A)
    hand_over.committed((A, B))
    assert hand_over.needed_by(standing(A), expects_somebody=False) == ["c"]
    now_s += HEAR_S
    assert hand_over.needed_by(standing(A), expects_somebody=False) == []


def test_nobody_stays_for_who_says_that_it_holds_the_step_or_is_gone() -> None:
    hand_over = HandOver(A)
    hand_over.committed((A, B))
    alone = standing(A, lost=frozenset({B}))
    assert hand_over.in_doubt(alone) == [C]
    hand_over.holds(C, 6)
    assert hand_over.needed_by(alone, expects_somebody=False) == ["c"]
    hand_over.holds(C, 7)
    assert hand_over.needed_by(alone, expects_somebody=False) == []
    assert hand_over.needed_by(standing(A, lost=frozenset({B, C})), expects_somebody=False) == []


def test_the_last_stays_for_a_learner_until_it_works_and_for_who_is_about_to_learn() -> None:
    hand_over = HandOver(A)
    hand_over.committed((A, B, C))
    hand_over.holds(C, 7)
    alone = standing(A, joining=(C,), lost=frozenset({B}))
    assert hand_over.needed_by(alone, expects_somebody=False) == ["c"]
    nobody = standing(A, lost=frozenset({B, C}))
    assert hand_over.needed_by(nobody, expects_somebody=True) == ["somebody who joins"]


def test_who_learns_or_is_behind_or_out_can_help_nobody() -> None:
    hand_over = HandOver(C)
    hand_over.committed((A, B))
    gone = frozenset({A})
    assert hand_over.needed_by(standing(C, joining=(C,), lost=gone), expects_somebody=False) == []
    for phase in (Phase.BEHIND, Phase.OUT):
        state = dataclasses.replace(standing(C, lost=gone), phase=phase)
        assert hand_over.needed_by(state, expects_somebody=False) == []
