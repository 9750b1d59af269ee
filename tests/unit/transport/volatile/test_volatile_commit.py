"""All members commit a step or none does, whatever is lost and when: every course of a small group, one by one."""

from __future__ import annotations

from types import SimpleNamespace
from typing import cast

import commit_search as search
import pytest

from transport.volatile.control import Control
from transport.volatile.protocol import commit
from transport.volatile.protocol.commit import Commit, Contributors, Differ, Frozen, Phase, Prepared, Send, Wish
from transport.volatile.protocol.view import DIGEST_BYTES, Member, View
from transport.volatile.steps import Steps

A, B, C = (Member(name, 1) for name in "abc")
VIEW = View(1, (A, B, C), 0, bytes(DIGEST_BYTES))
RESULT = b"r" * DIGEST_BYTES


@pytest.mark.parametrize(
    "start",
    [
        pytest.param(search.first_world(3, steps=2, crashes=1), id="3 members, 2 steps, a crash"),
        pytest.param(search.first_world(2, steps=2, crashes=1, suspicions=1), id="2 members, a crash, a broken link"),
        pytest.param(
            search.first_world(3, steps=1, suspicions=1), id="3 members, 1 step, a broken link", marks=pytest.mark.long
        ),
        pytest.param(search.first_world(3, steps=2, crashes=1, quorum=2), id="3 members, any 2 are enough, a crash"),
        pytest.param(search.first_world(3, steps=2, crashes=1, learners=1), id="2 members and a learner, a crash"),
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


@pytest.mark.parametrize("wrong", ["never commit", "commit what all survivors hold"])
def test_the_search_finds_a_wrong_rule(wrong: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Without sets of contributors the second rule is the right one."""

    def decide(stands: dict[Member, commit.Frozen]) -> tuple[int, bytes]:
        last = max(stands.values(), key=lambda one: one.committed)
        held = {one.prepared for one in stands.values()}
        if wrong != "never commit" and len(held) == 1 and (digest := held.pop()) is not None:
            return last.committed + 1, digest
        return last.committed, last.digest

    monkeypatch.setattr(commit, "_decide", decide)
    with pytest.raises(AssertionError, match="two results of one step were committed"):
        search.search(search.first_world(3, steps=1, crashes=1, quorum=2))


def test_messages_of_another_epoch_or_of_a_stranger_change_nothing() -> None:
    state, _ = commit.reduced(commit.begin(A, VIEW), 1, b"r" * DIGEST_BYTES)
    digest = commit.chained(bytes(DIGEST_BYTES), b"r" * DIGEST_BYTES)
    for sender, epoch in ((B, 2), (B, 0), (Member("b", 2), 1), (Member("d", 1), 1)):
        assert commit.received(state, sender, Prepared(epoch, 1, digest, (A, B, C))) == (state, [])


def test_unequal_results_are_named_and_nobody_commits() -> None:
    state, _ = commit.reduced(commit.begin(A, VIEW), 1, b"r" * DIGEST_BYTES)
    state, _ = commit.received(state, B, Prepared(1, 1, b"s" * DIGEST_BYTES, (A, B, C)))
    state, actions = commit.received(state, C, Prepared(1, 1, b"s" * DIGEST_BYTES, (A, B, C)))
    (differ,) = [one for one in actions if isinstance(one, Differ)]
    assert differ.step == 1
    assert differ.odd == {A}
    assert differ.digests[B] == differ.digests[C] != differ.digests[A]
    assert (state.committed, state.phase) == (0, Phase.FROZEN)


def test_a_view_without_this_member_ends_it_and_says_whether_it_is_behind() -> None:
    state = commit.begin(A, VIEW)
    for digest, behind in ((VIEW.digest, False), (b"x" * DIGEST_BYTES, True)):
        after, actions = commit.entered(state, View(2, (B, C), 0, digest))
        assert after.phase is Phase.OUT
        assert actions == [commit.Left(2, 0, behind=behind)]


def test_who_is_sent_away_before_it_has_heard_the_others_results_learns_that_its_own_was_another() -> None:
    state, _ = commit.reduced(commit.begin(A, VIEW), 1, b"r" * DIGEST_BYTES)
    others = commit.chained(VIEW.digest, b"s" * DIGEST_BYTES)
    for epoch, differs in ((2, 1), (3, None)):  # between two views the step may have been done again, by others
        _, actions = commit.entered(state, View(epoch, (B, C), 1, others))
        assert actions == [commit.Left(epoch, 1, behind=True, differs=differs)]


@pytest.mark.parametrize(
    ("left", "reduced", "committed", "known"),
    [
        (commit.Left(3, 5, behind=True), (2, 5), 4, True),
        (commit.Left(3, 6, behind=True), (2, 5), 4, True),
        (commit.Left(3, 4, behind=False), (2, 5), 4, False),
        (commit.Left(4, 5, behind=True), (2, 5), 4, False),
        (commit.Left(4, 5, behind=True), (2, 5), 5, True),
        (commit.Left(3, 5, behind=True), (0, 0), 4, False),
        (None, (2, 5), 4, False),
    ],
)
def test_a_part_counts_only_where_the_next_view_or_this_member_itself_has_committed_its_step(
    left: commit.Left | None, reduced: tuple[int, int], committed: int, known: bool
) -> None:
    steps = Steps.__new__(Steps)
    steps._control, steps._reduced = cast(Control, SimpleNamespace(left=left, step=committed)), reduced
    assert steps.is_in_their_result() is known


def test_who_leaves_is_not_waited_for() -> None:
    two = View(1, (A, B), 0, VIEW.digest)
    gone, (goodbye,) = commit.leave(commit.begin(B, two))
    assert isinstance(goodbye, Send)
    state, actions = commit.received(commit.begin(A, two), B, goodbye.message)
    assert gone.phase is Phase.OUT
    assert state.lost == {B}
    assert _next_view(actions).members == (A,)


def test_who_asks_to_join_learns_in_the_next_view_if_all_workers_are_connected_to_it() -> None:
    two = View(1, (A, B), 0, VIEW.digest)
    state, _ = commit.changed(commit.connected(commit.begin(A, two), 2)[0], joining=frozenset({C}), asked=4)
    for mesh, members in ((2, (A, B, C)), (1, (A, B))):
        stand = Frozen(1, 0, VIEW.digest, wish=Wish(mesh=mesh))
        view = _next_view(commit.received(state, B, stand)[1])
        assert view == View(2, members, 0, VIEW.digest, members[2:], 4, mesh)


def test_a_change_that_can_wait_comes_after_the_step_that_all_are_about_to_commit() -> None:
    view = View(1, (A, B, C), 0, VIEW.digest, (C,))
    first, other = commit.begin(A, view), commit.begin(B, view)
    first, actions = commit.changed(first, ready=frozenset({C}), at_boundary=True)
    assert (first.phase, actions) == (Phase.REDUCING, [])
    first, (said,) = commit.reduced(first, 1, RESULT)
    other, (heard,) = commit.reduced(other, 1, RESULT)
    assert isinstance(said, Send)
    assert isinstance(heard, Send)
    other, actions = commit.received(other, A, said.message)
    assert [type(one) for one in actions] == [Commit, Send]
    assert (other.committed, other.phase) == (1, Phase.FROZEN)
    first, actions = commit.received(first, B, heard.message)
    stand = dict(other.frozen)[B]
    assert _next_view(commit.received(first, B, stand)[1]) == View(2, (A, B, C), 1, first.digest)


@pytest.mark.parametrize("between_steps", [False, True])
def test_who_has_learnt_does_not_work_from_the_middle_of_a_round_on(between_steps: bool) -> None:
    """The others would have made a part of theirs, and wait until it has made a whole one."""
    view = View(1, (A, B, C), 0, VIEW.digest, (C,))
    state, _ = commit.changed(commit.begin(A, view), ready=frozenset({C}), at_boundary=True)
    state, actions = commit.changed(state, lost=frozenset({B}), between_steps=between_steps)
    assert _next_view(actions) == View(2, (A, C), 0, VIEW.digest, () if between_steps else (C,))


def test_a_learner_works_once_it_holds_what_its_view_begins_with() -> None:
    learns = View(1, (A, B), 4, b"s" * DIGEST_BYTES, (B,))
    state, _ = commit.learned(commit.begin_behind(B, learns), 4, learns.digest)
    assert (state.committed, state.phase) == (4, Phase.BEHIND)
    view = View(2, (A, B), 5, commit.chained(learns.digest, RESULT))
    state, actions = commit.entered(state, view)
    assert (actions, state.phase) == ([], Phase.BEHIND)
    state, actions = commit.followed(state, 5, RESULT)
    assert actions == [Commit(5, view.digest)]
    assert state.phase is Phase.REDUCING


def test_a_learner_with_other_results_is_out() -> None:
    learns = View(1, (A, B), 4, b"s" * DIGEST_BYTES, (B,))
    state, _ = commit.learned(commit.begin_behind(B, learns), 4, b"t" * DIGEST_BYTES)
    assert state.phase is Phase.OUT


def test_the_loss_of_a_learner_interrupts_no_step_and_that_of_all_workers_ends_it() -> None:
    view = View(1, (A, B, C), 0, VIEW.digest, (C,))
    state, actions = commit.changed(commit.begin(A, view), lost=frozenset({C}), at_boundary=True)
    assert (state.phase, actions) == (Phase.REDUCING, [])
    state, actions = commit.changed(commit.begin_behind(C, view), lost=frozenset({A, B}))
    assert actions == [commit.Left(1, 0, behind=True)]


def test_only_the_first_worker_announces_contributors_and_a_second_set_is_the_first() -> None:
    state, (said,) = commit.choose(commit.begin(A, VIEW), 1, (A, B))
    assert said == Send(Contributors(1, 1, (A, B)))
    assert commit.choose(state, 1, (A, C))[1] == [said]
    assert commit.choose(commit.begin(B, VIEW), 1, (A, B)) == (commit.begin(B, VIEW), [])
    late, _ = commit.received(commit.begin(C, VIEW), A, said.message)
    assert commit.reduced(late, 1, RESULT) == (late, [])
    assert commit.received(late, A, Contributors(1, 1, (A, C))) == (late, [])
    late, actions = commit.followed(late, 1, RESULT)
    assert actions == [Commit(1, commit.chained(VIEW.digest, RESULT))]


def test_who_was_no_contributor_has_no_say_in_whether_a_step_is_committed() -> None:
    stands = {one: Frozen(1, 0, VIEW.digest, RESULT, (A, B)) for one in (A, B)} | {C: Frozen(1, 0, VIEW.digest)}
    assert commit._decide(stands) == (1, RESULT)
    stands[B] = Frozen(1, 0, VIEW.digest)
    assert commit._decide(stands) == (0, VIEW.digest)


def _next_view(actions: list[commit.Action]) -> View:
    (advance,) = [one for one in actions if isinstance(one, commit.Advance)]
    return advance.view
