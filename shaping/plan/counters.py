"""From the counters of single classes to those of a direction of an interface. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache

from hive_qos.errors import ShapingError
from shaping.model.names import BULK_NAME, CLASS_NAMES, INNER_MINOR, JOB_MINOR, LEAF_MINOR, show_classid
from shaping.model.observations import ClassCounters, InterfaceCounters, TreeCounters
from shaping.model.shapes import Direction
from shaping.model.tree import Tree
from shaping.plan.destinations import leaf_of_address
from shaping.plan.leaves import leaves_by_class


def counters_of(interface: str, found: TreeCounters, *, tree: Tree, direction: Direction) -> InterfaceCounters:
    """Sum up one reading.

    Args:
        tree: what the kernel has; its filters tell which address has which leaf.

    Raises:
        ShapingError: classes of ours are missing.
    """
    by_minor, direct_packets = found
    needed, leaves = _needed(direction)
    if not by_minor.keys() >= needed:
        names = ", ".join(map(show_classid, sorted(needed - by_minor.keys())))
        raise ShapingError(f"{interface} has lost classes of ours ({names}); somebody changed its tree")
    return InterfaceCounters(
        interface=interface,
        classes=_by_class(by_minor, leaves),
        direct_packets=direct_packets,
        destinations={address: by_minor[minor] for address, minor in leaf_of_address(tree).items()},
        jobs={slot: by_minor[minor] for slot, minor in enumerate(JOB_MINOR) if minor in needed},
    )


@cache
def _needed(direction: Direction) -> tuple[frozenset[int], Mapping[str, tuple[int, ...]]]:
    """The minors that have to be there, and those of each class' leaves."""
    owners = leaves_by_class(direction)
    leaves = {name: tuple(minor for minor, owner in owners.items() if owner == name) for name in CLASS_NAMES}
    return frozenset((*INNER_MINOR.values(), *owners)), leaves


def _by_class(by_minor: Mapping[int, ClassCounters], leaves: Mapping[str, tuple[int, ...]]) -> dict[str, ClassCounters]:
    """Bytes of an inner node are those of all below it; what waits and was dropped is only counted at the leaves."""
    found = {BULK_NAME: by_minor[LEAF_MINOR[BULK_NAME]]}
    for name, minors in leaves.items():
        sent_bytes, sent_packets, *_ = by_minor[INNER_MINOR[name]]
        dropped = waiting_bytes = waiting = 0
        for minor in minors:
            _, _, drops, backlog_bytes, backlog = by_minor[minor]
            dropped, waiting_bytes, waiting = dropped + drops, waiting_bytes + backlog_bytes, waiting + backlog
        found[name] = ClassCounters(sent_bytes, sent_packets, dropped, waiting_bytes, waiting)
    return found
