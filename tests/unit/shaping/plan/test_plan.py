"""The planned tree keeps its promises for every shape, and the way from one tree to another is safe at every step."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from itertools import pairwise

import pytest
from fake_kernel import FakeKernel
from hypothesis import given
from hypothesis import strategies as st
from shaping_contract import MBIT, make_shape

from shaping.model.names import (
    BULK_NAME,
    CLASS_NAMES,
    CLASS_OF_LEAF,
    CLASS_OF_MARK,
    DESTINATION_MINOR,
    INNER_MINOR,
    JOB_MINOR,
    LEAF_MINOR,
    MAJOR,
    MARK_MINOR,
    ROOT_MINOR,
)
from shaping.model.observations import Capabilities
from shaping.model.shapes import ClassShape, DestinationShape, InterfaceShape, JobShape, Rule
from shaping.model.tree import AddClass, AddLeaf, ChangeClass, ChangeLeaf, DeleteFilter, Tree
from shaping.netlink.psched_ticks import burst_bytes_of, burst_ticks, round_burst_bytes
from shaping.plan.desired_tree import BURST_BYTES_MIN, desired_tree
from shaping.plan.diff import StructureError, diff
from shaping.plan.leaves import RATE_BITS_PER_S_MIN, rate_bits_per_s_min
from shaping.plan.packet_filters import check_rule

CAPABILITIES = Capabilities()
MODERN = Capabilities(fq_codel=True)
LEAST = rate_bits_per_s_min("compute")
ADDRESSES = (*(f"10.0.0.{number}" for number in range(1, 9)), *(f"fd00::{number:x}" for number in range(1, 9)))


@st.composite
def rules(draw: st.DrawFn) -> tuple[Rule, ...]:
    target = st.sampled_from(sorted(LEAF_MINOR))
    port = st.builds(Rule, target=target, port=st.integers(1, 65535))
    dscp = st.builds(Rule, target=target, dscp=st.integers(0, 63))
    return tuple(draw(st.lists(st.one_of(port, dscp), max_size=4)))


@st.composite
def shapes(draw: st.DrawFn) -> InterfaceShape:
    """Any shape that a policy may make: rates from the smallest to 400 Gbit/s, summing up to at most the capacity."""
    capacity = draw(st.integers(4 * LEAST, 400_000 * MBIT))
    weights = [draw(st.integers(1, 1000)) for _ in CLASS_NAMES]
    spare = capacity - 4 * LEAST
    classes = []
    for name, weight in zip(CLASS_NAMES, weights, strict=True):
        rate = LEAST + spare * weight // sum(weights)
        ceil = draw(st.integers(rate, 2 * capacity))
        classes.append(ClassShape(name, rate, ceil, draw(st.integers(0, 7))))
    if draw(st.booleans()):
        compute = classes[1]
        rate = draw(st.integers(RATE_BITS_PER_S_MIN, compute.rate_bits_per_s - LEAST + RATE_BITS_PER_S_MIN))
        classes.append(ClassShape(BULK_NAME, rate, max(rate, compute.ceil_bits_per_s // 2), 4))
        jobs = draw(slots(compute.rate_bits_per_s - LEAST - rate + RATE_BITS_PER_S_MIN))
    else:
        jobs = draw(slots(classes[1].rate_bits_per_s - LEAST))
    return InterfaceShape(
        "eth0",
        capacity,
        tuple(draw(st.permutations(classes))),
        draw(rules()),
        destinations=draw(destinations(classes[2].rate_bits_per_s - LEAST)),
        jobs=jobs,
    )


@st.composite
def destinations(draw: st.DrawFn, free: int) -> tuple[DestinationShape, ...]:
    """Any addresses of few, so that two shapes have some in common, with rates that fit into what a class has free."""
    found = []
    for address in draw(st.lists(st.sampled_from(ADDRESSES), max_size=len(DESTINATION_MINOR), unique=True)):
        above = draw(st.integers(0, free))
        free -= above
        rate = RATE_BITS_PER_S_MIN + above
        found.append(DestinationShape(address, "storage", rate, rate * draw(st.integers(1, 9))))
    return tuple(found)


@st.composite
def slots(draw: st.DrawFn, free: int) -> tuple[JobShape, ...]:
    found = []
    for slot in draw(st.lists(st.integers(0, len(JOB_MINOR) - 1), max_size=len(JOB_MINOR), unique=True)):
        above = draw(st.integers(0, free))
        free -= above
        rate = RATE_BITS_PER_S_MIN + above
        weight = draw(st.sampled_from((0.01, 1.0, 2.5, 1e9)))
        found.append(JobShape(slot, rate, rate * draw(st.integers(1, 9)), draw(st.integers(0, 7)), weight))
    return tuple(found)


def assert_rates_fit(tree: Tree) -> None:
    for parent in tree.classes:
        children = [spec.rate_bits_per_s for spec in tree.classes if spec.parent_minor == parent.minor]
        assert sum(children) <= parent.rate_bits_per_s, f"{parent} holds {children}"


@given(shapes())
def test_leaf_rates_never_add_up_to_more_than_their_parents_rate(shape: InterfaceShape) -> None:
    assert_rates_fit(desired_tree(shape, CAPABILITIES))


@given(shapes())
def test_every_class_has_a_ceiling_of_at_least_its_rate_and_at_most_the_capacity(shape: InterfaceShape) -> None:
    for spec in desired_tree(shape, CAPABILITIES).classes:
        assert spec.rate_bits_per_s <= spec.ceil_bits_per_s <= shape.capacity_bits_per_s
        assert min(spec.burst_bytes, spec.cburst_bytes) >= BURST_BYTES_MIN


@given(shapes(), shapes())
def test_the_structure_does_not_depend_on_the_rates(one: InterfaceShape, other: InterfaceShape) -> None:
    trees = [desired_tree(shape, CAPABILITIES) for shape in (one, other)]
    structures = [{(spec.minor, spec.parent_minor) for spec in tree.classes} for tree in trees]
    assert structures[0] == structures[1]
    assert [leaf.handle_major for leaf in trees[0].leaves] == [leaf.handle_major for leaf in trees[1].leaves]


@given(shapes())
def test_the_order_of_the_classes_in_a_shape_does_not_matter(shape: InterfaceShape) -> None:
    backwards = replace(shape, classes=tuple(reversed(shape.classes)))
    assert desired_tree(shape, CAPABILITIES) == desired_tree(backwards, CAPABILITIES)


@given(shapes(), st.sampled_from((CAPABILITIES, MODERN)))
def test_nothing_is_to_do_when_nothing_changed(shape: InterfaceShape, capabilities: Capabilities) -> None:
    tree = desired_tree(shape, capabilities)
    assert diff(tree, tree) == ()


@given(shapes(), shapes())
def test_applying_the_difference_leaves_no_difference_and_purges_nothing(
    one: InterfaceShape, other: InterfaceShape
) -> None:
    kernel = FakeKernel()
    kernel.apply("eth0", diff(None, desired_tree(one, CAPABILITIES)))
    for minor in CLASS_OF_LEAF:
        kernel.enqueue("eth0", minor, 5)
    wanted = desired_tree(other, CAPABILITIES, kernel.observe("eth0"))
    kernel.apply("eth0", diff(kernel.observe("eth0"), wanted))
    assert kernel.observe("eth0") == wanted
    assert diff(wanted, desired_tree(other, CAPABILITIES, wanted)) == ()
    assert kernel.purged_packets == 0
    assert [kernel.backlog("eth0", minor) for minor in CLASS_OF_LEAF] == [5] * len(CLASS_OF_LEAF)


@given(shapes(), shapes())
def test_rates_fit_after_every_single_step_of_a_change(one: InterfaceShape, other: InterfaceShape) -> None:
    kernel = FakeKernel()
    start = desired_tree(one, CAPABILITIES)
    kernel.apply("eth0", diff(None, start))
    for operation in diff(start, desired_tree(other, CAPABILITIES, start)):
        kernel.apply("eth0", [operation])
        observed = kernel.observe("eth0")
        assert observed is not None
        assert_rates_fit(observed)


@given(shapes())
def test_a_build_makes_parents_before_children_and_each_leaf_with_its_queue(shape: InterfaceShape) -> None:
    operations = diff(None, desired_tree(shape, CAPABILITIES))
    made = {0}
    for operation, following in pairwise(operations):
        if isinstance(operation, AddClass):
            assert operation.spec.parent_minor in made
            made.add(operation.spec.minor)
            if operation.spec.minor in CLASS_OF_LEAF:
                assert isinstance(following, AddLeaf)
                assert following.spec.parent_minor == operation.spec.minor


@given(shapes(), st.integers(1, 75))
def test_a_build_that_was_cut_short_is_completed(shape: InterfaceShape, steps: int) -> None:
    wanted = desired_tree(shape, CAPABILITIES)
    kernel = FakeKernel()
    kernel.apply("eth0", diff(None, wanted)[:steps])
    wanted = desired_tree(shape, CAPABILITIES, kernel.observe("eth0"))
    kernel.apply("eth0", diff(kernel.observe("eth0"), wanted))
    assert kernel.observe("eth0") == wanted


def test_queues_grow_before_classes_change_and_shrink_after() -> None:
    small = desired_tree(make_shape("eth0"), CAPABILITIES)
    large = desired_tree(make_shape("eth0", capacity=1000 * MBIT), CAPABILITIES)

    def kinds(observed: Tree, wanted: Tree) -> list[type]:
        return [type(operation) for operation in diff(observed, wanted)]

    up, down = kinds(small, large), kinds(large, small)
    assert up == sorted(up, key=[ChangeLeaf, ChangeClass].index)
    assert down == sorted(down, key=[ChangeClass, ChangeLeaf].index)
    assert {*up} == {*down} == {ChangeLeaf, ChangeClass}


def test_only_what_differs_is_changed() -> None:
    old = desired_tree(make_shape("eth0"), CAPABILITIES)
    new = desired_tree(make_shape("eth0", storage=7 * MBIT), CAPABILITIES)
    changed = [operation.spec.minor for operation in diff(old, new) if isinstance(operation, ChangeClass)]
    assert changed == [LEAF_MINOR["storage"], INNER_MINOR["storage"]]


def test_a_hold_does_not_shrink_the_queue_of_the_class_that_it_holds() -> None:
    free = desired_tree(make_shape("eth0"), CAPABILITIES)
    held = desired_tree(make_shape("eth0", storage=MBIT, storage_ceil=MBIT), CAPABILITIES)
    assert not [operation for operation in diff(free, held) if isinstance(operation, ChangeLeaf)]


def test_removed_rules_take_only_their_own_filters_with_them() -> None:
    old = desired_tree(make_shape("eth0", rules=(Rule("storage", port=873), Rule("storage", dscp=1))), CAPABILITIES)
    new = desired_tree(make_shape("eth0", rules=(Rule("storage", port=873),)), CAPABILITIES)
    operations = diff(old, new)
    assert {type(operation) for operation in operations} == {DeleteFilter}
    assert len(operations) == 2  # IPv4 and IPv6


def _without_bulk(tree: Tree) -> Tree:
    bulk = LEAF_MINOR[BULK_NAME]
    return replace(
        tree,
        classes=tuple(spec for spec in tree.classes if spec.minor != bulk),
        leaves=tuple(leaf for leaf in tree.leaves if leaf.parent_minor != bulk),
    )


def _moved_leaf(tree: Tree) -> Tree:
    return replace(
        tree,
        classes=tuple(
            replace(spec, parent_minor=INNER_MINOR["other"]) if spec.minor == LEAF_MINOR[BULK_NAME] else spec
            for spec in tree.classes
        ),
    )


@pytest.mark.parametrize(
    ("observed", "wanted", "words"),
    [
        (lambda tree: tree, _without_bulk, "class ffe0:220 that we would not make"),
        (_moved_leaf, lambda tree: tree, "class ffe0:220 is under ffe0:40"),
        (lambda tree: replace(tree, qdisc=replace(tree.qdisc, default_minor=0x310)), lambda tree: tree, "the root has"),
        (
            lambda tree: replace(tree, leaves=(replace(tree.leaves[0], kind="fq_codel"), *tree.leaves[1:])),
            lambda tree: tree,
            "the queue at ffe0:110 is fq_codel",
        ),
    ],
)
def test_what_would_cost_a_queue_is_refused(
    observed: Callable[[Tree], Tree], wanted: Callable[[Tree], Tree], words: str
) -> None:
    tree = desired_tree(make_shape("eth0"), CAPABILITIES)
    with pytest.raises(StructureError, match=words):
        diff(observed(tree), wanted(tree))


def test_leaves_are_fq_codel_where_the_kernel_has_it_and_their_limit_never_changes() -> None:
    small = desired_tree(make_shape("eth0"), MODERN)
    large = desired_tree(make_shape("eth0", capacity=10_000 * MBIT), MODERN)
    assert {leaf.kind for leaf in small.leaves} == {"fq_codel"}
    assert small.leaves == large.leaves


def test_a_mark_means_best_effort_wherever_nobody_shapes() -> None:
    """pfifo_fast, prio and mqprio map the lowest four bits of a priority (TC_PRIO_MAX): 1 and 2 come after all else."""
    assert {minor: minor & 15 for minor in CLASS_OF_MARK} == dict.fromkeys(CLASS_OF_MARK, 0)


def test_every_class_and_queue_has_a_handle_of_its_own_that_the_kernel_takes() -> None:
    tree = desired_tree(make_shape("eth0"), CAPABILITIES)
    minors = [spec.minor for spec in tree.classes]
    handles = [leaf.handle_major for leaf in tree.leaves]
    assert len({*minors}) == len(minors) == 26
    assert len({*handles, MAJOR}) == len(handles) + 1
    assert all(0x8000 < handle < 0xFFFF for handle in handles)
    assert tree.qdisc.default_minor == LEAF_MINOR["other"]


def test_without_u32_there_are_no_filters() -> None:
    shape = make_shape("eth0", rules=(Rule("storage", port=873),))
    assert desired_tree(shape, replace(CAPABILITIES, u32=False)).filters == ()


@pytest.mark.parametrize(
    ("address", "family", "words"),
    [
        ("10.88.0.0/16", 4, {((12, 0xFFFF0000, 0x0A580000),), ((16, 0xFFFF0000, 0x0A580000),)}),
        ("10.88.3.4/32", 4, {((12, 0xFFFFFFFF, 0x0A580304),), ((16, 0xFFFFFFFF, 0x0A580304),)}),
        ("fd00::/9", 6, {((8, 0xFF800000, 0xFD000000),), ((24, 0xFF800000, 0xFD000000),)}),
        (
            "fd00:1:2:3::/64",
            6,
            {
                ((8, 0xFFFFFFFF, 0xFD000001), (12, 0xFFFFFFFF, 0x00020003)),
                ((24, 0xFFFFFFFF, 0xFD000001), (28, 0xFFFFFFFF, 0x00020003)),
            },
        ),
    ],
)
def test_a_rule_on_an_address_compares_source_and_destination_as_far_as_its_prefix(
    address: str, family: int, words: set[object]
) -> None:
    planned = desired_tree(make_shape("eth0", rules=(Rule("storage", address=address),)), CAPABILITIES).filters
    filters = [entry for entry in planned if not entry.parent_minor]
    assert {(entry.family, entry.target_minor) for entry in filters} == {(family, MARK_MINOR["storage"])}
    assert {entry.matches for entry in filters} == words


def test_rules_on_cgroups_and_users_make_no_filters() -> None:
    shape = make_shape("eth0", rules=(Rule("storage", uid=7), Rule("storage", cgroup="hive-storage.slice")))
    assert desired_tree(shape, CAPABILITIES).filters == desired_tree(make_shape("eth0"), CAPABILITIES).filters


@pytest.mark.parametrize(
    ("classes", "words"),
    [
        ({"storage": 20 * MBIT}, "add up to 45000000 bit/s"),
        ({"other": 999}, "class other has 999 bit/s"),
        ({"storage": 8_999}, "class storage has 8999 bit/s, less than the 9000"),
        ({"compute": 9_999}, "class compute has 9999 bit/s, less than the 10000"),
        ({"storage_ceil": 1 * MBIT}, "class storage has a ceiling below its rate"),
    ],
)
def test_rates_that_cannot_be_kept_are_refused_with_the_numbers(classes: dict[str, int], words: str) -> None:
    with pytest.raises(ValueError, match=words):
        desired_tree(make_shape("eth0", **classes), CAPABILITIES)  # type: ignore[arg-type]  # the same keywords


def test_class_other_may_have_more_than_the_root_where_the_shape_says_so_and_no_other_class() -> None:
    shape = make_shape("eth0", capacity=10 * MBIT, compute=5 * MBIT, storage=3 * MBIT, other=1 * MBIT)
    wide = replace(shape.classes[3], rate_bits_per_s=31 * MBIT, ceil_bits_per_s=40 * MBIT)
    apart = replace(shape, classes=(*shape.classes[:3], wide), open_bits_per_s=40 * MBIT)
    found = {spec.minor: spec for spec in desired_tree(apart, CAPABILITIES).classes}
    assert (found[ROOT_MINOR].rate_bits_per_s, found[ROOT_MINOR].ceil_bits_per_s) == (10 * MBIT, 10 * MBIT)
    for minor in (INNER_MINOR["other"], LEAF_MINOR["other"]):
        assert (found[minor].rate_bits_per_s, found[minor].ceil_bits_per_s) == (31 * MBIT, 40 * MBIT)
    assert found[INNER_MINOR["storage"]].ceil_bits_per_s == 10 * MBIT
    beyond = (*shape.classes[:3], replace(wide, rate_bits_per_s=31 * MBIT + 1))
    with pytest.raises(ValueError, match="add up to 40000001 bit/s"):
        desired_tree(replace(apart, classes=beyond), CAPABILITIES)
    more = replace(shape.classes[1], rate_bits_per_s=7 * MBIT)
    crowded = (shape.classes[0], more, shape.classes[2], replace(wide, rate_bits_per_s=MBIT))
    with pytest.raises(ValueError, match="control, compute, storage add up to 11000000 bit/s"):
        desired_tree(replace(apart, classes=crowded), CAPABILITIES)


def test_a_missing_or_doubled_class_is_refused() -> None:
    shape = make_shape("eth0")
    for classes in (shape.classes[1:], (*shape.classes, shape.classes[0])):
        with pytest.raises(ValueError, match="each once"):
            desired_tree(replace(shape, classes=classes), CAPABILITIES)


@pytest.mark.parametrize(
    ("rule", "words"),
    [
        (Rule("storage"), "exactly one of"),
        (Rule("storage", port=1, uid=1), "exactly one of"),
        (Rule("disk", port=1), "unknown target 'disk'"),
        (Rule("storage", port=0), r"not in 1\.\.65535"),
        (Rule("storage", dscp=64), r"not in 0\.\.63"),
        (Rule("storage", uid=2**32 - 1), "not a user's number"),
        (Rule("storage", address="10.0.0.1/8"), "host bits"),
        (Rule("storage", cgroup="a\0b"), "control character"),
        (Rule("storage", cgroup="a/../b"), "control character or .."),
    ],
)
def test_rules_that_mean_nothing_are_refused(rule: Rule, words: str) -> None:
    with pytest.raises(ValueError, match=words):
        check_rule(rule)


def test_more_rules_than_the_bound_are_refused() -> None:
    shape = make_shape("eth0", rules=tuple(Rule("storage", port=1 + number) for number in range(65)))
    with pytest.raises(ValueError, match="more than 64 rules"):
        desired_tree(shape, CAPABILITIES)


@given(st.integers(1, 100 * 2**20), st.integers(1_000, 50_000_000_000))
def test_a_rounded_burst_is_what_the_kernel_gives_back_and_never_smaller(burst: int, rate: int) -> None:
    rounded = round_burst_bytes(burst, rate_bytes_per_s=rate)
    ticks = burst_ticks(burst, rate_bytes_per_s=rate)
    assert rounded == burst_bytes_of(ticks, rate_bytes_per_s=rate)
    assert round_burst_bytes(rounded, rate_bytes_per_s=rate) == rounded
    if ticks < 2**32 - 1:
        assert burst <= rounded <= burst + rate * 64 // 10**9 + 1
