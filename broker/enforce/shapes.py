"""From an allocation to what the kernel side shall build. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from types import MappingProxyType

from broker.model.values import DestinationAllocation, InterfaceAllocation, JobKey
from broker.policy.known_programs import rules_of_class
from broker.policy.types import Policy
from shaping.model.names import DESTINATION_MINOR, UNHELD_NAME
from shaping.model.shapes import ClassShape, DestinationShape, InterfaceShape, JobShape, Rule
from shaping.plan.leaves import rate_bits_per_s_min

RATE_BITS_PER_S_MIN = 10_000
"""Of a class: a full frame in 1.2 s, and what compute's ten leaves need. Less would be silence to whoever waits."""
LEAF_BITS_PER_S_MIN = 1_000
"""Of one leaf among a class': the least that the kernel side takes; its ceiling is what counts."""
CAPACITY_BITS_PER_S_MIN = 64_000
"""Of an interface: room for four such classes and as much to lend. Configured ones have more (`broker.policy.toml`),
but an estimate may fall lower, on a link that is all but dead; then this is what the kernel gets."""


def rules_of(policy: Policy, *, class_cgroups: tuple[tuple[str, str], ...] = ()) -> tuple[Rule, ...]:
    """The rules of a policy, and those of the cgroups (class, path) into which `hive-qos run` puts programs."""
    written = tuple(
        Rule(
            target=entry.name,
            port=rule.port,
            dscp=rule.dscp,
            uid=rule.uid,
            cgroup=rule.cgroup,
            address=rule.address,
            may_be_absent=rule not in entry.match,  # few hosts have all units of a program
        )
        for entry in policy.classes
        for rule in rules_of_class(entry)
    )
    return written + tuple(Rule(target=name, cgroup=path) for name, path in class_cgroups)


def shape_of(
    allocation: InterfaceAllocation,
    *,
    rules: tuple[Rule, ...],
    slots: Mapping[JobKey, int] = MappingProxyType({}),
    gso_max_segs: int | None = None,
    line_bits_per_s: int | None = None,
) -> InterfaceShape:
    """The shape of one interface: the allocation, made to fit what the kernel side can keep.

    Every class gets at least `RATE_BITS_PER_S_MIN`; what that adds is taken from the others in proportion to what they
    have above it, so that the rates still add up to at most the capacity. A class that is not held to it has its own.

    Args:
        slots: the jobs of compute that have a leaf of their own.
    """
    capacity, classes = classes_of(allocation)
    return InterfaceShape(
        interface=allocation.name,
        capacity_bits_per_s=capacity,
        classes=classes,
        jobs=tuple(job for entry in classes if entry.name == "compute" for job in _jobs(entry, allocation, slots)),
        rules=rules,
        gso_max_segs=gso_max_segs,
        line_bits_per_s=line_bits_per_s,
        open_bits_per_s=allocation.open_bits_per_s,
        destinations=_destinations(allocation.destinations, {one.name: one.rate_bits_per_s for one in classes}),
    )


def classes_of(allocation: InterfaceAllocation) -> tuple[int, tuple[ClassShape, ...]]:
    """The capacity of one interface and direction, and its classes within it."""
    capacity = max(allocation.capacity_bits_per_s, CAPACITY_BITS_PER_S_MIN)
    held = [entry for entry in allocation.classes if entry.name != UNHELD_NAME or allocation.open_bits_per_s is None]
    fitted = _fitted([entry.rate_bits_per_s for entry in held], capacity_bits_per_s=capacity)
    rates = {entry.name: rate for entry, rate in zip(held, fitted, strict=True)}
    if allocation.open_bits_per_s is not None:
        left = max(allocation.open_bits_per_s, capacity) - sum(fitted)
        own = next(entry.rate_bits_per_s for entry in allocation.classes if entry.name == UNHELD_NAME)
        rates[UNHELD_NAME] = max(RATE_BITS_PER_S_MIN, min(own, left))
    return capacity, tuple(
        ClassShape(
            name=entry.name,
            rate_bits_per_s=rates[entry.name],
            ceil_bits_per_s=max(
                rates[entry.name], entry.ceil_bits_per_s * capacity // max(1, allocation.capacity_bits_per_s)
            ),
            priority=entry.priority,
        )
        for entry in allocation.classes
    )


def _destinations(wanted: Sequence[DestinationAllocation], rates: Mapping[str, int]) -> tuple[DestinationShape, ...]:
    """Leaves of single addresses: together they keep at most half of what their class can spare; each leaf, spare ones
    and the class' own included, keeps the least."""
    shapes = []
    for entry in wanted:
        spare = rates[entry.traffic_class] - (len(DESTINATION_MINOR) + 1) * LEAF_BITS_PER_S_MIN
        rate = LEAF_BITS_PER_S_MIN + max(0, min(entry.rate_bits_per_s, spare // (2 * len(wanted))))
        shapes.append(DestinationShape(entry.address, entry.traffic_class, rate, max(rate, entry.ceil_bits_per_s)))
    return tuple(shapes)


def _fitted(rates_bits_per_s: Sequence[int], *, capacity_bits_per_s: int) -> list[int]:
    rates = [max(RATE_BITS_PER_S_MIN, rate) for rate in rates_bits_per_s]
    if sum(rates) <= capacity_bits_per_s:
        return rates
    above = sum(rates) - RATE_BITS_PER_S_MIN * len(rates)  # > 0: the capacity holds the minimum of all of them
    left = capacity_bits_per_s - RATE_BITS_PER_S_MIN * len(rates)
    return [RATE_BITS_PER_S_MIN + (rate - RATE_BITS_PER_S_MIN) * left // above for rate in rates]


def _jobs(compute: ClassShape, allocation: InterfaceAllocation, slots: Mapping[JobKey, int]) -> list[JobShape]:
    """The leaves of compute's jobs, in the order of their slots: their rates fit into what the class really has."""
    mine = [one for one in allocation.jobs if one.traffic_class == compute.name and one.key in slots]
    above = [max(0, one.rate_bits_per_s - LEAF_BITS_PER_S_MIN) for one in mine]
    left = compute.rate_bits_per_s - rate_bits_per_s_min(compute.name)
    if sum(above) > left:
        above = [rate * left // sum(above) for rate in above]
    made = []
    for one, rate in zip(mine, above, strict=True):
        rate += LEAF_BITS_PER_S_MIN
        ceil = max(rate, min(one.ceil_bits_per_s, compute.ceil_bits_per_s))
        made.append(JobShape(slots[one.key], rate, ceil, compute.priority, one.class_weight))
    return sorted(made, key=lambda job: job.slot)
