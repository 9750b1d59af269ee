"""The outer step is torch's, and the radial-directional merge keeps the norm of what it merges."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from integrations.volatile import outer
from integrations.volatile.outer import Vector

ELEMS = 4096


def test_the_outer_step_is_that_of_torchs_sgd_with_nesterov_momentum() -> None:
    source = np.random.default_rng(0)
    held: Vector = source.standard_normal(ELEMS).astype(np.float32)
    buffer = np.zeros_like(held)
    expected = torch.nn.Parameter(torch.from_numpy(held.copy()))
    reference = torch.optim.SGD([expected], lr=0.7, momentum=0.9, nesterov=True)
    for _ in range(5):
        mean: Vector = held + source.standard_normal(ELEMS).astype(np.float32)
        expected.grad = expected.detach() - torch.from_numpy(mean)
        reference.step()
        held = outer.nesterov(mean, held - mean, buffer, rate=0.7, momentum=0.9)
        np.testing.assert_allclose(held, expected.detach().numpy(), rtol=1e-4, atol=1e-5)


def test_a_rate_of_1_without_momentum_takes_the_mean_to_the_bit() -> None:
    source = np.random.default_rng(1)
    mean, gradient = (source.standard_normal(ELEMS).astype(np.float32) for _ in range(2))
    assert np.array_equal(outer.nesterov(mean, gradient, np.zeros_like(mean), rate=1.0, momentum=0.0), mean)


def merged(changes: list[Vector], weights: list[float]) -> Vector:
    """What all members get from the sums of theirs."""
    direction = np.sum([weight * outer.unit(one) for weight, one in zip(weights, changes, strict=True)], axis=0)
    length = sum(weight * outer.norm(one) for weight, one in zip(weights, changes, strict=True))
    return outer.radial_directional(direction.astype(np.float32), length, sum(weights))


@pytest.mark.parametrize("members", range(2, 17))
def test_the_norm_of_merged_orthogonal_changes_does_not_fall_with_their_number(members: int) -> None:
    changes: list[Vector] = []
    for place in range(members):
        changes.append(np.zeros(ELEMS, np.float32))
        changes[-1][place * 16 : place * 16 + 16] = 0.5
    weights = [1.0 + place for place in range(members)]
    assert abs(outer.norm(merged(changes, weights)) / outer.norm(changes[0]) - 1.0) < 0.05
    mean: Vector = sum(changes, np.zeros(ELEMS, np.float32)) / np.float32(members)
    assert outer.norm(mean) / outer.norm(changes[0]) < 0.75  # which is what it is there for


def test_a_merge_has_the_weighted_mean_norm_and_leans_to_the_member_of_more_weight() -> None:
    left, right = np.zeros(ELEMS, np.float32), np.zeros(ELEMS, np.float32)
    left[0], right[1] = 2.0, 8.0
    found = merged([left, right], [3.0, 1.0])
    np.testing.assert_allclose(outer.norm(found), (3 * 2.0 + 8.0) / 4, rtol=1e-6)
    np.testing.assert_allclose(found[0] / found[1], 3.0, rtol=1e-6)


def test_the_change_of_one_member_is_merged_as_it_is_and_none_is_none() -> None:
    change = np.random.default_rng(2).standard_normal(ELEMS).astype(np.float32)
    np.testing.assert_allclose(merged([change], [7.0]), change, rtol=1e-5, atol=1e-7)
    assert not merged([np.zeros(ELEMS, np.float32)], [1.0]).any()
    assert not merged([change, -change], [1.0, 1.0]).any()
