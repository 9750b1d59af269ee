"""What opening the ceilings makes of a tree: everything that was held back, and nothing else."""

from __future__ import annotations

import pytest
from shaping_contract import MBIT, make_shape

from shaping.failsafe import opened
from shaping.model.names import ROOT_MINOR
from shaping.model.observations import Capabilities
from shaping.model.tree import ChangeClass, QdiscSpec, Tree
from shaping.plan.desired_tree import desired_tree
from shaping.plan.diff import diff

TREE = desired_tree(make_shape("eth0"), Capabilities())


@pytest.mark.parametrize("line", [None, 1, 50 * MBIT, 100_000 * MBIT])
def test_every_class_may_use_the_line_and_keeps_its_rate_its_turn_and_its_queue(line: int | None) -> None:
    found = opened(TREE, line)
    root = next(spec for spec in TREE.classes if spec.minor == ROOT_MINOR)
    assert {spec.ceil_bits_per_s for spec in found.classes} == {max(line or 0, root.ceil_bits_per_s) // 8 * 8}
    for before, after in zip(TREE.classes, found.classes, strict=True):
        assert (before.minor, before.priority, before.quantum_bytes) == (
            after.minor,
            after.priority,
            after.quantum_bytes,
        )
        assert after.cburst_bytes >= before.cburst_bytes
        if before.minor == ROOT_MINOR:  # it has nobody to borrow from: only its rate lets more through
            assert after.rate_bits_per_s == after.ceil_bits_per_s
        else:
            assert (after.rate_bits_per_s, after.burst_bytes) == (before.rate_bits_per_s, before.burst_bytes)
    assert (found.leaves, found.filters) == (TREE.leaves, TREE.filters)


def test_it_is_done_by_changes_alone_from_the_root_down_and_doing_it_twice_changes_nothing() -> None:
    wide = opened(TREE, 50 * MBIT)
    operations = diff(TREE, wide)
    assert len(operations) == len(TREE.classes)
    assert all(isinstance(operation, ChangeClass) for operation in operations)
    first = operations[0]
    assert isinstance(first, ChangeClass)
    assert first.spec.minor == ROOT_MINOR
    assert diff(wide, opened(wide, 50 * MBIT)) == ()


def test_what_was_open_wider_stays_so() -> None:
    wide = opened(TREE, 1000 * MBIT)
    assert opened(wide, 10 * MBIT) == wide


def test_a_tree_that_was_cut_short_before_its_root_class_is_left_alone() -> None:
    assert opened(Tree(QdiscSpec(), (), ()), 10 * MBIT) == Tree(QdiscSpec(), (), ())
