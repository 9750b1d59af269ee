"""The time of a run and its parts."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tools.collectivesbench.budget import Budget


class Clock:
    now_s = 100.0

    def __call__(self) -> float:
        return self.now_s


@given(weights=st.lists(st.floats(0.1, 100.0), min_size=1, max_size=20), used=st.floats(0.0, 1.0))
def test_parts_that_keep_to_their_time_end_within_the_whole(weights: list[float], used: float) -> None:
    clock = Clock()
    for _, part in Budget(60.0, clock).parts(weights, lambda weight: weight):
        assert part.left_s() >= 0
        clock.now_s += used * part.left_s()
    assert clock.now_s <= 160.0 + 1e-6


def test_what_one_part_does_not_use_the_next_ones_have() -> None:
    clock, found = Clock(), []
    for _, part in Budget(60.0, clock).parts(["a", "b", "c"]):
        found.append(part.left_s())
        clock.now_s += 5.0
    assert found == pytest.approx([20.0, 27.5, 50.0])


def test_a_part_that_took_too_long_leaves_the_others_less_and_never_less_than_nothing() -> None:
    clock, found = Clock(), []
    for _, part in Budget(60.0, clock).parts(["a", "b", "c"]):
        found.append(part.left_s())
        clock.now_s += 50.0
    assert found == pytest.approx([20.0, 5.0, 0.0])
