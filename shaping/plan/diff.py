"""From what is there to what is wanted: the operations, in an order that is safe after every single one. Pure.

Rules of the order (there is no transaction over several classes)
- Queues first grow, then classes change, then queues shrink.
- A class whose rate falls is changed before its parent, one whose rate rises after its parent. So at every moment the
  rates of the children add up to at most the parent's rate: while rates fall, every child is at or below its smaller
  value; when the first one rises, every parent already has its final rate.
- Missing classes are made from the top down, each leaf with its queue at once.
- Nothing that holds a queue is ever deleted. A tree of ours that has something else than we would build is a
  `StructureError`: its owner builds it anew and loses the queues.
"""

from __future__ import annotations

from collections.abc import Iterable

from shaping.model.names import show_classid
from shaping.model.tree import (
    AddClass,
    AddFilter,
    AddLeaf,
    AddRoot,
    ChangeClass,
    ChangeLeaf,
    ClassSpec,
    DeleteFilter,
    FilterSpec,
    LeafSpec,
    Operation,
    Tree,
)


class StructureError(ValueError):
    """The observed tree cannot become the desired one without deleting a queue: build it anew."""


def diff(observed: Tree | None, desired: Tree) -> tuple[Operation, ...]:
    """Plan the way from `observed` (None: the root is not ours) to `desired`. Equal trees need nothing.

    Raises:
        StructureError: the observed tree has a class, a parent or a kind of queue that the desired one has not.
    """
    if observed is None:
        return (AddRoot(desired.qdisc), *_build(desired, have=frozenset()), *_filter_additions(desired.filters))
    _check_structure(observed, desired)
    have_class = {spec.minor: spec for spec in observed.classes}
    have_leaf = {spec.parent_minor: spec for spec in observed.leaves}
    grow: list[Operation] = []
    shrink: list[Operation] = []
    for leaf in desired.leaves:
        old_leaf = have_leaf.get(leaf.parent_minor)
        if old_leaf is not None and old_leaf.limit != leaf.limit:
            (grow if leaf.limit > old_leaf.limit else shrink).append(ChangeLeaf(leaf))
        elif old_leaf is None and leaf.parent_minor in have_class:
            grow.append(AddLeaf(leaf))
    pairs = [(have_class[spec.minor], spec) for spec in desired.classes if spec.minor in have_class]
    return (
        *grow,
        *_class_changes(pairs, desired),
        *_build(desired, have=frozenset(have_class)),
        *_filter_changes(observed, desired),
        *shrink,
    )


def _build(desired: Tree, *, have: frozenset[int]) -> list[Operation]:
    leaves = {leaf.parent_minor: leaf for leaf in desired.leaves}
    operations: list[Operation] = []
    for spec in sorted(desired.classes, key=lambda spec: (_depth(spec, desired), spec.minor)):
        if spec.minor in have:
            continue
        operations.append(AddClass(spec))
        if spec.minor in leaves:
            operations.append(AddLeaf(leaves[spec.minor]))
    return operations


def _class_changes(pairs: list[tuple[ClassSpec, ClassSpec]], desired: Tree) -> list[Operation]:
    changed = [(old, new) for old, new in pairs if old != new]
    falling = [new for old, new in changed if new.rate_bits_per_s < old.rate_bits_per_s]
    rising = [new for old, new in changed if new.rate_bits_per_s >= old.rate_bits_per_s]
    falling.sort(key=lambda spec: (-_depth(spec, desired), spec.minor))
    rising.sort(key=lambda spec: (_depth(spec, desired), spec.minor))
    return [ChangeClass(spec) for spec in (*falling, *rising)]


def _filter_changes(observed: Tree, desired: Tree) -> list[Operation]:
    """Filters hold no packets: what differs is removed, then added. In between its traffic takes the default class."""
    have = set(observed.filters)
    want = set(desired.filters)
    return [
        *(DeleteFilter(spec) for spec in observed.filters if spec not in want),
        *_filter_additions(spec for spec in desired.filters if spec not in have),
    ]


def _filter_additions(filters: Iterable[FilterSpec]) -> list[AddFilter]:
    """An inner node's filters before the root's, which may lead there, and its catch-all, asked last, first of all."""
    return [AddFilter(spec) for spec in sorted(filters, key=lambda spec: (-spec.parent_minor, -spec.preference))]


def _depth(spec: ClassSpec, tree: Tree) -> int:
    parents = {other.minor: other.parent_minor for other in tree.classes}
    depth, minor = 0, spec.parent_minor
    while minor:
        depth, minor = depth + 1, parents[minor]
    return depth


def _check_structure(observed: Tree, desired: Tree) -> None:
    if observed.qdisc != desired.qdisc:
        raise StructureError(f"the root has {observed.qdisc}, not {desired.qdisc}")
    want_class = {spec.minor: spec for spec in desired.classes}
    want_leaf: dict[int, LeafSpec] = {spec.parent_minor: spec for spec in desired.leaves}
    for spec in observed.classes:
        wanted = want_class.get(spec.minor)
        if wanted is None:
            raise StructureError(f"there is a class {show_classid(spec.minor)} that we would not make")
        if wanted.parent_minor != spec.parent_minor:
            raise StructureError(f"class {show_classid(spec.minor)} is under {show_classid(spec.parent_minor)}")
    for leaf in observed.leaves:
        wanted_leaf = want_leaf.get(leaf.parent_minor)
        if wanted_leaf is None:
            raise StructureError(f"there is a queue at {show_classid(leaf.parent_minor)} that we would not make")
        if (wanted_leaf.kind, wanted_leaf.handle_major) != (leaf.kind, leaf.handle_major):
            raise StructureError(
                f"the queue at {show_classid(leaf.parent_minor)} is {leaf.kind} {leaf.handle_major:x}:, "
                f"not {wanted_leaf.kind} {wanted_leaf.handle_major:x}:"
            )
