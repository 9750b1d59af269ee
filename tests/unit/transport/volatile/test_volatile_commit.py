"""All members commit a step or none does, whatever is lost and when: every course of a small group, one by one."""

from __future__ import annotations

import commit_search as search
import pytest

from transport.volatile import commit
from transport.volatile.commit import Differ, Phase, Prepared
from transport.volatile.view import DIGEST_BYTES, Member, View

A, B, C = (Member(name, 1) for name in "abc")
VIEW = View(1, (A, B, C), 0, bytes(DIGEST_BYTES))


@pytest.mark.parametrize(
    "start",
    [
        pytest.param(search.first_world(3, steps=2, crashes=1), id="3 members, 2 steps, a crash"),
        pytest.param(search.first_world(2, steps=2, crashes=1, suspicions=1), id="2 members, a crash, a broken link"),
        pytest.param(search.first_world(3, steps=1, suspicions=1), id="3 members, 1 step, a broken link"),
    ],
)
def test_whatever_happens_all_survivors_commit_the_same_steps(start: search.World) -> None:
    count, ends = search.search(start)
    assert count > 1000
    for world in ends:
        living = [one for place, one in enumerate(world.states) if place not in world.crashed]
        inside = [one for one in living if one.phase is not Phase.OUT]
        assert {one.committed for one in inside} <= {world.steps}
        assert inside or (world.crashed and world.suspected)
        assert world.suspected or inside == living
        assert len({one.digest for one in inside}) <= 1


@pytest.mark.parametrize("wrong", ["never commit", "always commit"])
def test_the_search_finds_a_wrong_rule(wrong: str, monkeypatch: pytest.MonkeyPatch) -> None:
    def decide(stands: dict[Member, commit.Frozen]) -> tuple[int, bytes]:
        first = next(iter(stands.values()))
        if wrong == "always commit" and first.prepared is not None:
            return first.committed + 1, first.prepared
        return first.committed, first.digest

    monkeypatch.setattr(commit, "_decide", decide)
    with pytest.raises(AssertionError):
        _nobody_is_left_out(search.search(search.first_world(3, steps=2, crashes=1))[1])


def _nobody_is_left_out(ends: list[search.World]) -> None:
    for world in ends:
        assert all(one.phase is not Phase.OUT for place, one in enumerate(world.states) if place not in world.crashed)


def test_messages_of_another_epoch_or_of_a_stranger_change_nothing() -> None:
    state, _ = commit.reduced(commit.begin(A, VIEW), 1, b"r" * DIGEST_BYTES)
    digest = commit.chained(bytes(DIGEST_BYTES), b"r" * DIGEST_BYTES)
    for sender, epoch in ((B, 2), (B, 0), (Member("b", 2), 1), (Member("d", 1), 1)):
        assert commit.received(state, sender, Prepared(epoch, 1, digest)) == (state, [])


def test_unequal_results_are_named_and_nobody_commits() -> None:
    state, _ = commit.reduced(commit.begin(A, VIEW), 1, b"r" * DIGEST_BYTES)
    state, _ = commit.received(state, B, Prepared(1, 1, b"s" * DIGEST_BYTES))
    state, actions = commit.received(state, C, Prepared(1, 1, b"s" * DIGEST_BYTES))
    (differ,) = [one for one in actions if isinstance(one, Differ)]
    assert differ.step == 1
    assert differ.digests[B] == differ.digests[C] != differ.digests[A]
    assert (state.committed, state.phase) == (0, Phase.FROZEN)


def test_a_view_without_this_member_ends_it_and_says_whether_it_is_behind() -> None:
    state = commit.begin(A, VIEW)
    for digest, behind in ((VIEW.digest, False), (b"x" * DIGEST_BYTES, True)):
        after, actions = commit.entered(state, View(2, (B, C), 0, digest))
        assert after.phase is Phase.OUT
        assert actions == [commit.Left(2, behind=behind)]


def test_who_leaves_is_not_waited_for() -> None:
    state, _ = commit.received(
        commit.begin(A, View(1, (A, B), 0, VIEW.digest)), B, commit.leaving(commit.begin(B, VIEW))
    )
    (advance,) = [
        one
        for one in commit.changed(commit.begin(A, View(1, (A, B), 0, VIEW.digest)), lost=frozenset({B}))[1]
        if isinstance(one, commit.Advance)
    ]
    assert state.lost == {B}
    assert advance.view.members == (A,)


def test_who_asks_to_join_is_in_the_next_view_and_marked_as_without_state() -> None:
    alone = View(1, (A,), 0, VIEW.digest)
    _, actions = commit.changed(commit.begin(A, alone), joining=frozenset({B}), asked=4)
    (advance,) = [one for one in actions if isinstance(one, commit.Advance)]
    assert advance.view == View(2, (A, B), 0, VIEW.digest, (B,), 4)
