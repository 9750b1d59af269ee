"""What members of AsyncDiLoCo bring to a merge, and what all of them make of the sums."""

from __future__ import annotations

import pytest
import torch

from hive_qos.errors import MisuseError
from integrations.volatile import AsyncDiLoCo
from integrations.volatile.asynchronous import _Merged, _Snapshot


def member(*, averaged: bool = False) -> AsyncDiLoCo:
    parameter = torch.nn.Parameter(torch.zeros(4))
    embeddings = [parameter] if averaged else []
    return AsyncDiLoCo(
        [parameter], every=1, fragments=1, embeddings=embeddings, outer_rate=1.0, outer_momentum=0.0, compression=""
    )


def snapshot(of: AsyncDiLoCo, change: list[float], *, steps: int, tokens: int) -> _Snapshot:
    base = of._global[0]
    return _Snapshot(base, base + torch.tensor(change), steps, tokens)


def merged(members: list[AsyncDiLoCo], snapshots: list[_Snapshot | None]) -> torch.Tensor:
    """What all hold after a merge: the same."""
    for one in members:
        one._times_s.append(0.0)
    parts = [one._contribution(0, taken) for one, taken in zip(members, snapshots, strict=True)]
    sums = [torch.stack(one).sum(0) for one in zip(*parts, strict=True)]
    for one in members:
        one._apply([part.clone() for part in sums])
    assert all(torch.equal(one._global[0], members[0]._global[0]) for one in members)
    return members[0]._global[0]


def test_a_member_weighs_by_its_tokens_times_its_tokens_a_step() -> None:
    members = [member(averaged=True) for _ in range(2)]
    fast = snapshot(members[0], [1.0, 0.0, 0.0, 0.0], steps=4, tokens=64)  # 64 * 16
    slow = snapshot(members[1], [0.0, 1.0, 0.0, 0.0], steps=1, tokens=16)  # 16 * 16
    torch.testing.assert_close(merged(members, [fast, slow]), torch.tensor([0.8, 0.2, 0.0, 0.0]))


def test_a_merge_keeps_the_norm_but_takes_the_mean_of_embeddings() -> None:
    for averaged, norm in ((False, 2.0), (True, 2.0**0.5)):
        members = [member(averaged=averaged) for _ in range(2)]
        one = snapshot(members[0], [2.0, 0.0, 0.0, 0.0], steps=1, tokens=8)
        two = snapshot(members[1], [0.0, 2.0, 0.0, 0.0], steps=1, tokens=8)
        torch.testing.assert_close(float(merged(members, [one, two]).norm()), norm)


def test_a_member_without_a_snapshot_changes_nothing_of_a_merge_and_a_merge_of_none_nothing_at_all() -> None:
    members = [member() for _ in range(2)]
    change = [1.0, -2.0, 3.0, 0.5]
    torch.testing.assert_close(
        merged(members, [snapshot(members[0], change, steps=3, tokens=5), None]), torch.tensor(change)
    )
    before = members[0]._global[0]
    assert torch.equal(merged(members, [None, None]), before)
    assert [one._rounds for one in members] == [2, 2]


@pytest.mark.parametrize(("change", "tokens"), [(1e-28, 1_000_000), (1e-40, 1)])
def test_a_change_counts_however_small_it_is_against_its_weight(change: float, tokens: int) -> None:
    of = member()
    taken = snapshot(of, [change, 0.0, 0.0, 0.0], steps=1, tokens=tokens)
    torch.testing.assert_close(merged([of], [taken])[0], torch.tensor(change), rtol=1e-4, atol=0.0)


@pytest.mark.parametrize("counted", [True, False])
def test_each_step_of_a_member_reaches_one_merge_also_those_during_one_and_those_that_none_has_taken(
    counted: bool,
) -> None:
    of = member()
    fragment, others = of._fragments[0], torch.tensor([0.0, 0.0, 0.0, 8.0])
    fragment.add(torch.tensor([1.0, 0.0, 0.0, 0.0]))
    of._steps, of._tokens = [3], [24]
    taken = _Snapshot(of._global[0], fragment.read(), 2, 16)
    fragment.add(torch.tensor([0.0, 1.0, 0.0, 0.0]))  # the third step, while the merge is under way
    merged = of._global[0] + others + (taken.values if counted else 0.0)
    of._take(0, _Merged(merged, taken if counted else None))
    assert fragment.read().tolist() == [1.0, 1.0, 0.0, 8.0]
    assert (of._steps, of._tokens) == (([1], [8]) if counted else ([3], [24]))
    assert (merged - fragment.read()).tolist() == ([0.0, -1.0, 0.0, 0.0] if counted else [-1.0, -1.0, 0.0, 0.0])


def test_a_step_without_tokens_is_refused() -> None:
    with pytest.raises(MisuseError, match="one token at least"), member().step(tokens=0):
        pass
