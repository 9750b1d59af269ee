"""What one class could send now if it wanted all that it may have: its jobs divide that.

Its share by water-filling would be the wrong figure: that is made of what it wants. So what others take is subtracted
from the capacity, by the kernel's rule: who goes first takes what it wants up to its ceiling, who comes after only what
it is promised. A class without a backlog takes 1.1 times what it sends now: nothing is kept for the silent, who have
their own rate in the kernel when they begin.
"""

from __future__ import annotations

from broker.law.sharing.demand import BACKLOG_BYTES_MIN, USAGE_HEADROOM
from broker.model.values import ClassAllocation, InterfaceAllocation


def offered_bits_per_s(interface: InterfaceAllocation, name: str) -> int:
    """What a class could send through an interface, on the wire: from its rate in the kernel to its ceiling there."""
    own = next(entry for entry in interface.classes if entry.name == name)
    taken = sum(_takes(entry, own) for entry in interface.classes if entry.name != name)
    return max(own.rate_bits_per_s, min(own.ceil_bits_per_s, interface.capacity_bits_per_s - taken))


def _takes(other: ClassAllocation, own: ClassAllocation) -> int:
    wants = other.demand_bits_per_s
    if other.throughput_bits_per_s is not None and (other.backlog_bytes or 0) < BACKLOG_BYTES_MIN:
        wants = min(wants, int(USAGE_HEADROOM * other.throughput_bits_per_s))
    if other.priority < own.priority:
        return min(wants, other.ceil_bits_per_s)
    if other.priority == own.priority:
        return min(wants, max(other.rate_bits_per_s, other.share_bits_per_s))
    return min(wants, other.rate_bits_per_s)
