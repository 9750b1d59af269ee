"""Tests of random behaviour: run every seed from 0 on, and state in which part of them a figure keeps its bound."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from typing import TypeVar

T = TypeVar("T")


def over_seeds(count: int, run: Callable[[int], T]) -> list[T]:
    """What a run gives with each of the seeds 0 to count - 1, in this order."""
    return [run(seed) for seed in range(count)]


def assert_most(
    figures: Iterable[float], share: float, *, at_least: float = -math.inf, at_most: float = math.inf
) -> None:
    """At least this share of the seeds keeps the bounds; a failure names every seed with its figure.

    Args:
        figures: in the order of the seeds.
        share: 1 means all.
    """
    found = list(figures)
    kept = sum(at_least <= figure <= at_most for figure in found)
    if not found or kept < share * len(found) - 1e-9:
        each = ", ".join(f"seed {seed}: {figure:.4g}" for seed, figure in enumerate(found))
        raise AssertionError(
            f"{kept} of {len(found)} are between {at_least:g} and {at_most:g}, at least {share:.0%} have to be: {each}"
        )
