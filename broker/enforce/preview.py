"""What a policy would do to the kernel before it does it: the same shapes, trees and operations as the daemon's.

A running broker writes new rates ten times a second, whatever the policy. So two policies are compared under the same
conditions: the capacity of now, and every class wants its share. The way from one tree to the other is what the change
itself does. Without a broker the way begins at what the kernel has.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence, Set
from dataclasses import dataclass
from typing import Literal

from msgspec.structs import replace

from broker.enforce.shapes import rules_of, shape_of
from broker.law.capacity.evidence import OUTBOUND
from broker.law.decide import decide
from broker.law.state import State
from broker.model.values import InterfaceSample, Measurements, SchedulesNow
from broker.policy.types import InterfacePolicy, Policy
from shaping.model.names import CLASS_OF_LEAF, INNER_MINOR
from shaping.model.observations import Capabilities, PriorQdisc
from shaping.model.shapes import InterfaceShape, Rule
from shaping.model.tree import AddClass, AddRoot, ChangeClass, Operation, Tree, describe
from shaping.plan.desired_tree import desired_tree
from shaping.plan.diff import StructureError, diff

Action = Literal["unchanged", "change", "adopt", "build", "rebuild", "give back", "wait", "refused"]

ACTIONS: Mapping[Action, str] = {
    "unchanged": "nothing is written",
    "change": "queues stay: no packet is lost",
    "adopt": "takes over the classes that an ended broker left; queues stay: no packet is lost",
    "build": "builds its classes; packets that wait in the former queue are lost, and sent again by TCP and QUIC",
    "rebuild": "replaces another version's classes; packets that wait are lost, and sent again by TCP and QUIC",
    "give back": "puts back the former queueing discipline; packets that wait are lost, and sent again by TCP and QUIC",
    "wait": "is not there; it is shaped when it appears",
    "refused": "somebody configured its queueing discipline: remove that, or start with `hive-qos broker --take-over`",
}
"""What each means for who uses the line."""


@dataclass(frozen=True)
class InterfacePlan:
    """What happens to one interface. `operations` are the kernel's, in their order, in words."""

    interface: str
    action: Action
    operations: tuple[str, ...] = ()
    capacity_bits_per_s: int | None = None


@dataclass(frozen=True)
class Found:
    """What the kernel has on an interface: the tree of ours, or else the root of somebody; neither where it is gone."""

    tree: Tree | None = None
    root: PriorQdisc | None = None


def shapes_under(
    policy: Policy, samples: Sequence[InterfaceSample], schedules: SchedulesNow
) -> dict[str, InterfaceShape]:
    """The shape of each interface that a policy names while every class wants its share, as a broker's start has it."""
    measured = Measurements(interfaces=tuple(samples), schedules=schedules)
    decision = decide(now_s=0.0, state=State(), measurements=measured, policy=policy)
    rules = rules_of(policy)
    return {
        entry.name: shape_of(
            entry, rules=rules, gso_max_segs=None if entry.segments is None else entry.segments.gso_max_segs
        )
        for entry in decision.allocation.interfaces
    }


def at_capacity(policy: Policy, capacities_bits_per_s: Mapping[str, int]) -> Policy:
    """The same policy at what its interfaces are known to carry now, where that is known."""

    def measured(entry: InterfacePolicy) -> InterfacePolicy:
        capacity = capacities_bits_per_s.get(entry.name)
        if capacity is None:
            return entry
        return replace(entry, egress_bits_per_s=-(-capacity * 1000 // int(1000 * OUTBOUND.headroom)))

    return replace(policy, interfaces=tuple(map(measured, policy.interfaces)))


def change(
    before: Mapping[str, InterfaceShape], after: Mapping[str, InterfaceShape], *, present: frozenset[str],
    found: Mapping[str, Found], capabilities: Capabilities, unshaped: Set[str] = frozenset(), take_over: bool = False,
) -> tuple[InterfacePlan, ...]:  # fmt: skip
    """What a running broker does when another policy replaces its own.

    Args:
        before, after: the shapes of the two.
        present: the interfaces that are there.
        found: what they have, so that addresses keep their leaves.
        unshaped: those on which the broker wants its classes, and has none.
        take_over: it replaces what somebody configured.
    """
    plans = []
    for name in dict.fromkeys((*before, *after)):
        old, new = before.get(name), after.get(name)
        if name not in present:
            plans.append(InterfacePlan(name, "wait"))
        elif new is None:
            plans.append(InterfacePlan(name, "give back", ("restore the root, gso_max_segs and ingress of before",)))
        elif not take_over and _is_foreign(found.get(name)):
            plans.append(InterfacePlan(name, "refused"))
        elif old is None or name in unshaped:
            plans.append(_built(new, capabilities))
        else:
            tree = desired_tree(old, capabilities, found.get(name, Found()).tree)
            operations = _operations(diff(tree, desired_tree(new, capabilities, tree)))
            operations += _segments(old, new) + _rules(old.rules, new.rules)
            action: Action = "change" if operations else "unchanged"
            plans.append(InterfacePlan(name, action, operations, new.capacity_bits_per_s))
    return tuple(plans)


def start(
    after: Mapping[str, InterfaceShape], *, found: Mapping[str, Found], capabilities: Capabilities
) -> tuple[InterfacePlan, ...]:
    """What a broker does that starts, to what the kernel has now."""
    plans = []
    for name, shape in after.items():
        there = found.get(name)
        if there is None:
            plans.append(InterfacePlan(name, "wait"))
        elif there.tree is None:
            refused = _is_foreign(there)
            plans.append(InterfacePlan(name, "refused") if refused else _built(shape, capabilities))
        else:
            plans.append(_adopted(shape, there.tree, capabilities))
    return tuple(plans)


def _is_foreign(found: Found | None) -> bool:
    return found is not None and found.root is not None and found.root.handle_major != 0


def _built(shape: InterfaceShape, capabilities: Capabilities) -> InterfacePlan:
    operations = _operations(diff(None, desired_tree(shape, capabilities)))
    operations += _segments(None, shape) + _rules((), shape.rules)
    return InterfacePlan(shape.interface, "build", operations, shape.capacity_bits_per_s)


def _adopted(shape: InterfaceShape, tree: Tree, capabilities: Capabilities) -> InterfacePlan:
    try:
        operations = diff(tree, desired_tree(shape, capabilities, tree))
    except StructureError:
        return InterfacePlan(shape.interface, "rebuild", _built(shape, capabilities).operations)
    return InterfacePlan(shape.interface, "adopt", _operations(operations), shape.capacity_bits_per_s)


def _operations(operations: Sequence[Operation]) -> tuple[str, ...]:
    return tuple(_text(one) for one in operations)


def _text(operation: Operation) -> str:
    """As the log has it, with the class' name."""
    match operation:
        case AddRoot():
            return describe(operation)
        case AddClass(spec) | ChangeClass(spec):
            return f"{describe(operation)}{_named(spec.minor)}"
    return describe(operation)


def _named(minor: int) -> str:
    inner = next((name for name, own in INNER_MINOR.items() if own == minor), "")
    name = inner or CLASS_OF_LEAF.get(minor, "")
    return f", {name}" if name else ""


def _segments(old: InterfaceShape | None, new: InterfaceShape) -> tuple[str, ...]:
    before = None if old is None else old.gso_max_segs
    if before == new.gso_max_segs:
        return ()
    wanted = "the device's own" if new.gso_max_segs is None else str(new.gso_max_segs)
    return (f"set gso_max_segs of {new.interface} to {wanted}",)


def _rules(old: Sequence[Rule], new: Sequence[Rule]) -> tuple[str, ...]:
    """Rules that are no filters: programs at socket creation."""

    def told(rule: Rule) -> str:
        return f"cgroup {rule.cgroup}" if rule.cgroup is not None else f"user {rule.uid}"

    by_socket = [[one for one in rules if one.cgroup is not None or one.uid is not None] for rules in (old, new)]
    gone = [f"stop classifying sockets of {told(one)}" for one in by_socket[0] if one not in by_socket[1]]
    come = [f"classify sockets of {told(one)} as {one.target}" for one in by_socket[1] if one not in by_socket[0]]
    return (*gone, *come)
