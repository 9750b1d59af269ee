"""What the kernel counted of the classes of one direction, as a decision reads it. Pure."""

from __future__ import annotations

from collections.abc import Mapping

from broker.model.values import ClassSample
from broker.policy.types import CLASS_NAMES
from shaping.model.observations import ClassCounters


def samples_of(counted: Mapping[str, ClassCounters]) -> tuple[ClassSample, ...]:
    """A sample of each class, in the order of `CLASS_NAMES`; all of them are there
    (`shaping.plan.counters.counters_of`)."""
    return tuple(
        ClassSample(
            name=name,
            sent_bytes=counted[name].sent_bytes,
            backlog_bytes=counted[name].backlog_bytes,
            dropped_packets=counted[name].dropped_packets,
        )
        for name in CLASS_NAMES
    )
