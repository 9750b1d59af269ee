"""From the counters of single classes to those of a direction of an interface. Pure."""

from __future__ import annotations

from collections.abc import Mapping

from hive_qos.errors import ShapingError
from shaping.destinations import leaf_of_address
from shaping.leaves import leaves_by_class
from shaping.model import (
    BULK_NAME,
    CLASS_NAMES,
    INNER_MINOR,
    JOB_MINOR,
    LEAF_MINOR,
    ClassCounters,
    Direction,
    InterfaceCounters,
    Tree,
    show_classid,
)


def counters_of(
    interface: str,
    by_minor: Mapping[int, ClassCounters],
    direct_packets: int | None,
    *,
    tree: Tree,
    direction: Direction,
) -> InterfaceCounters:
    """Sum up one reading.

    Args:
        tree: what the kernel has; its filters tell which address has which leaf.

    Raises:
        ShapingError: classes of ours are missing.
    """
    leaves = leaves_by_class(direction)
    missing = [minor for minor in (*INNER_MINOR.values(), *leaves) if minor not in by_minor]
    if missing:
        names = ", ".join(map(show_classid, missing))
        raise ShapingError(f"{interface} has lost classes of ours ({names}); somebody changed its tree")
    return InterfaceCounters(
        interface=interface,
        classes=_by_class(by_minor, leaves),
        direct_packets=direct_packets,
        destinations={address: by_minor[minor] for address, minor in leaf_of_address(tree).items()},
        jobs={slot: by_minor[minor] for slot, minor in enumerate(JOB_MINOR) if minor in leaves},
    )


def _by_class(by_minor: Mapping[int, ClassCounters], owners: Mapping[int, str]) -> dict[str, ClassCounters]:
    """Bytes of an inner node are those of all below it; what waits and was dropped is only counted at the leaves."""
    found = {BULK_NAME: by_minor[LEAF_MINOR[BULK_NAME]]}
    for name in CLASS_NAMES:
        leaves = [by_minor[minor] for minor, owner in owners.items() if owner == name]
        found[name] = by_minor[INNER_MINOR[name]]._replace(
            dropped_packets=sum(leaf.dropped_packets for leaf in leaves),
            overlimits=sum(leaf.overlimits for leaf in leaves),
            backlog_bytes=sum(leaf.backlog_bytes for leaf in leaves),
            backlog_packets=sum(leaf.backlog_packets for leaf in leaves),
        )
    return found
