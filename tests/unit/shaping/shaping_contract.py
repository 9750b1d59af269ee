"""What every kernel behind `kernel_api.Kernel` must do: claims as functions, run against the fake and the real one.

Each takes a kernel and an interface whose root is the kernel's default, and leaves it however it likes.
"""

from __future__ import annotations

import errno
from collections.abc import Callable
from dataclasses import replace

import pytest

from hive_qos.errors import ConfigurationError, KernelRejectedError, ReadBackError
from shaping.kernel_api import Kernel
from shaping.model.names import LEAF_MINOR
from shaping.model.observations import DeviceSegments, PriorQdisc
from shaping.model.shapes import ClassShape, DestinationShape, InterfaceShape, JobShape, Rule
from shaping.model.tree import AddClass, AddFilter, AddLeaf, ChangeClass, DeleteFilter, Tree
from shaping.plan.desired_tree import desired_tree
from shaping.plan.destinations import leaf_of_address
from shaping.plan.diff import diff

MBIT = 1_000_000


def make_shape(
    interface: str,
    *,
    capacity: int = 40 * MBIT,
    control: int = 1 * MBIT,
    compute: int = 20 * MBIT,
    storage: int = 8 * MBIT,
    other: int = 4 * MBIT,
    storage_ceil: int | None = None,
    rules: tuple[Rule, ...] = (),
    gso_max_segs: int | None = None,
    destinations: tuple[DestinationShape, ...] = (),
    jobs: tuple[JobShape, ...] = (),
) -> InterfaceShape:
    """A shape with the given guarantees, ceilings at the capacity and the usual priorities."""
    return InterfaceShape(
        interface=interface,
        capacity_bits_per_s=capacity,
        classes=(
            ClassShape("control", control, capacity, 0),
            ClassShape("compute", compute, capacity, 1),
            ClassShape("storage", storage, storage_ceil or capacity, 3),
            ClassShape("other", other, capacity, 2),
        ),
        rules=rules,
        gso_max_segs=gso_max_segs,
        destinations=destinations,
        jobs=jobs,
    )


def make_tree(kernel: Kernel, interface: str, **kwargs: object) -> Tree:
    return desired_tree(make_shape(interface, **kwargs), kernel.capabilities())  # type: ignore[arg-type]  # the same keywords


DESTINATIONS = (
    DestinationShape("10.211.0.2", rate_bits_per_s=MBIT, ceil_bits_per_s=2 * MBIT),
    DestinationShape("fd21::2", rate_bits_per_s=MBIT, ceil_bits_per_s=MBIT),
    DestinationShape("::ffff:10.211.0.3", rate_bits_per_s=MBIT, ceil_bits_per_s=3 * MBIT),
)
RULES = (Rule("storage", port=873), Rule("storage", dscp=1), Rule("control", port=22))


def a_built_tree_reads_back_as_planned(kernel: Kernel, interface: str) -> None:
    tree = make_tree(kernel, interface, rules=RULES)
    kernel.apply(interface, diff(None, tree))
    assert kernel.observe(interface) == tree


def a_changed_tree_reads_back_as_planned_and_needs_nothing_more(kernel: Kernel, interface: str) -> None:
    first = make_tree(kernel, interface, rules=RULES)
    second = make_tree(kernel, interface, capacity=13 * MBIT, compute=5 * MBIT, storage=2 * MBIT, rules=RULES[1:])
    kernel.apply(interface, diff(None, first))
    kernel.apply(interface, diff(first, second))
    assert kernel.observe(interface) == second
    assert diff(kernel.observe(interface), second) == ()


def leaves_of_destinations_and_jobs_read_back_and_come_and_go(kernel: Kernel, interface: str) -> None:
    first = make_tree(
        kernel, interface, rules=RULES, destinations=DESTINATIONS[:2], jobs=(JobShape(0, MBIT, 2 * MBIT, 1),)
    )
    kernel.apply(interface, diff(None, first))
    assert kernel.observe(interface) == first
    shape = make_shape(
        interface, rules=RULES[1:], destinations=DESTINATIONS[1:], jobs=(JobShape(7, MBIT, MBIT, 2, 3.0),)
    )
    second = desired_tree(shape, kernel.capabilities(), kernel.observe(interface))
    kernel.apply(interface, diff(first, second))
    assert kernel.observe(interface) == second
    assert leaf_of_address(second)["fd21::2"] == leaf_of_address(first)["fd21::2"]
    assert set(leaf_of_address(second)) == {"fd21::2", "10.211.0.3"}


def rates_beyond_32_bits_read_back(kernel: Kernel, interface: str) -> None:
    tree = make_tree(kernel, interface, capacity=100_000 * MBIT, compute=60_000 * MBIT)
    kernel.apply(interface, diff(None, tree))
    assert kernel.observe(interface) == tree


def the_smallest_rates_read_back(kernel: Kernel, interface: str) -> None:
    tree = make_tree(kernel, interface, capacity=21_000, control=1_000, compute=10_000, storage=9_000, other=1_000)
    kernel.apply(interface, diff(None, tree))
    assert kernel.observe(interface) == tree


def a_root_that_is_not_ours_is_no_tree(kernel: Kernel, interface: str) -> None:
    assert kernel.observe(interface) is None
    assert kernel.root(interface).handle_major == 0


def deleting_the_root_brings_the_default_back(kernel: Kernel, interface: str) -> None:
    before = kernel.root(interface)
    kernel.apply(interface, diff(None, make_tree(kernel, interface)))
    kernel.delete_root(interface)
    assert kernel.observe(interface) is None
    assert kernel.root(interface) == before


def deleting_a_root_that_is_not_there_is_harmless(kernel: Kernel, interface: str) -> None:
    kernel.delete_root(interface)
    assert kernel.root(interface).handle_major == 0


def a_default_prior_is_restored_by_deleting(kernel: Kernel, interface: str) -> None:
    before = kernel.root(interface)
    kernel.apply(interface, diff(None, make_tree(kernel, interface)))
    assert kernel.restore_root(interface, PriorQdisc(kind="noqueue", handle_major=0)) == ()
    assert kernel.root(interface) == before


def every_class_of_ours_has_counters_and_they_start_at_nothing(kernel: Kernel, interface: str) -> None:
    tree = make_tree(kernel, interface)
    kernel.apply(interface, diff(None, tree))
    counters, direct_packets = kernel.counters(interface)
    assert set(counters) == {spec.minor for spec in tree.classes}
    assert all(found.sent_bytes == 0 and found.backlog_packets == 0 for found in counters.values())
    assert direct_packets == 0


def a_class_that_lands_elsewhere_than_under_its_parent_is_noticed(kernel: Kernel, interface: str) -> None:
    tree = make_tree(kernel, interface)
    kernel.apply(interface, diff(None, tree))
    orphan = replace(tree.classes[-1], minor=0x99, parent_minor=0x77)
    with pytest.raises(ReadBackError, match="ffe0:99"):  # HTB puts a child of nobody at the root, without a word
        kernel.apply(interface, [AddClass(orphan)])


def a_class_or_queue_or_filter_is_not_added_twice(kernel: Kernel, interface: str) -> None:
    tree = make_tree(kernel, interface, rules=RULES)
    kernel.apply(interface, diff(None, tree))
    for operation in (AddClass(tree.classes[0]), AddLeaf(tree.leaves[0]), AddFilter(tree.filters[0])):
        with pytest.raises(KernelRejectedError) as caught:
            kernel.apply(interface, [operation])
        assert caught.value.errno_value in (errno.EEXIST, errno.ENOSPC)
    assert kernel.observe(interface) == tree


def what_is_not_there_cannot_be_changed(kernel: Kernel, interface: str) -> None:
    tree = make_tree(kernel, interface, rules=RULES)
    kernel.apply(interface, diff(None, tree))
    unknown = replace(tree.filters[0], preference=999)
    for operation in (ChangeClass(replace(tree.classes[-1], minor=0x99)), DeleteFilter(unknown)):
        with pytest.raises(KernelRejectedError) as caught:
            kernel.apply(interface, [operation])
        assert caught.value.errno_value == errno.ENOENT


def the_first_refusal_is_told_and_the_rest_of_the_batch_is_done(kernel: Kernel, interface: str) -> None:
    tree = make_tree(kernel, interface)
    kernel.apply(interface, diff(None, tree))
    leaf = next(spec for spec in tree.classes if spec.minor == LEAF_MINOR["storage"])
    wrong = replace(leaf, minor=0x99)
    right = replace(leaf, rate_bits_per_s=leaf.rate_bits_per_s // 2)
    with pytest.raises(KernelRejectedError, match="ffe0:99"):
        kernel.apply(interface, [ChangeClass(wrong), ChangeClass(right)])
    observed = kernel.observe(interface)
    assert observed is not None
    assert right.rate_bits_per_s in {spec.rate_bits_per_s for spec in observed.classes if spec.minor == right.minor}


def an_interface_that_is_not_there_is_named(kernel: Kernel, interface: str) -> None:
    for call in (kernel.observe, kernel.root, kernel.counters, kernel.segments):
        with pytest.raises(ConfigurationError, match="nope0") as caught:
            call("nope0")
        assert interface in caught.value.reason


def a_limit_of_segments_reads_back_and_the_default_stays(kernel: Kernel, interface: str) -> None:
    before = kernel.segments(interface)
    assert before.limit == before.default > 2
    kernel.set_segments(interface, 2)
    assert kernel.segments(interface) == DeviceSegments(limit=2, default=before.default)
    kernel.set_segments(interface, before.limit)
    assert kernel.segments(interface) == before


IFB = "hqifb9999"


def an_ifb_is_made_started_shaped_and_deleted_and_is_no_interface(kernel: Kernel, interface: str) -> None:
    before = kernel.interfaces(), kernel.numbers()
    kernel.delete_ifb(IFB)
    assert kernel.running_number(IFB) is None
    for _ in range(2):
        kernel.make_ifb(IFB)
        assert kernel.ifbs() == (IFB,)
        assert kernel.running_number(IFB) is None
    tree = make_tree(kernel, interface, rules=RULES)
    kernel.apply(IFB, diff(kernel.observe(IFB), tree))
    kernel.start_ifb(IFB)
    assert kernel.running_number(IFB) not in (None, *before[1].values())
    assert kernel.observe(IFB) == tree
    assert (kernel.interfaces(), kernel.numbers()) == before
    kernel.delete_ifb(IFB)
    assert kernel.ifbs() == ()
    assert kernel.running_number(IFB) is None


def a_redirection_is_made_seen_and_removed_and_survives_its_ifb(kernel: Kernel, interface: str) -> None:
    assert kernel.redirection(interface) is None
    kernel.stop_redirecting(interface)
    kernel.remove_empty_hook(interface)
    kernel.make_ifb(IFB)
    kernel.start_ifb(IFB)
    number = kernel.running_number(IFB)
    for _ in range(2):
        kernel.redirect(interface, IFB)
        found = kernel.redirection(interface)
        assert found is not None
        assert (found.kind, found.to_indexes, len(found.preferences), found.others) == ("ingress", (number,), 2, 0)
    kernel.remove_empty_hook(interface)
    assert kernel.redirection(interface) == found
    kernel.delete_ifb(IFB)
    lost = kernel.redirection(interface)
    assert lost is not None
    assert (lost.to_indexes, lost.preferences) == ((0,), found.preferences)
    kernel.stop_redirecting(interface)
    assert kernel.redirection(interface) is None


def what_arrives_is_not_redirected_to_nowhere(kernel: Kernel, interface: str) -> None:
    with pytest.raises(ConfigurationError):
        kernel.redirect(interface, IFB)
    assert kernel.redirection(interface) is None


def more_segments_than_the_driver_takes_are_refused(kernel: Kernel, interface: str) -> None:
    before = kernel.segments(interface)
    with pytest.raises(KernelRejectedError) as caught:
        kernel.set_segments(interface, before.default + 1)
    assert caught.value.errno_value == errno.EINVAL
    assert kernel.segments(interface) == before


CLAIMS: tuple[Callable[[Kernel, str], None], ...] = (
    a_built_tree_reads_back_as_planned,
    a_changed_tree_reads_back_as_planned_and_needs_nothing_more,
    leaves_of_destinations_and_jobs_read_back_and_come_and_go,
    rates_beyond_32_bits_read_back,
    the_smallest_rates_read_back,
    a_root_that_is_not_ours_is_no_tree,
    deleting_the_root_brings_the_default_back,
    deleting_a_root_that_is_not_there_is_harmless,
    a_default_prior_is_restored_by_deleting,
    every_class_of_ours_has_counters_and_they_start_at_nothing,
    a_class_that_lands_elsewhere_than_under_its_parent_is_noticed,
    a_class_or_queue_or_filter_is_not_added_twice,
    what_is_not_there_cannot_be_changed,
    the_first_refusal_is_told_and_the_rest_of_the_batch_is_done,
    an_interface_that_is_not_there_is_named,
    a_limit_of_segments_reads_back_and_the_default_stays,
    more_segments_than_the_driver_takes_are_refused,
    an_ifb_is_made_started_shaped_and_deleted_and_is_no_interface,
    a_redirection_is_made_seen_and_removed_and_survives_its_ifb,
    what_arrives_is_not_redirected_to_nowhere,
)
