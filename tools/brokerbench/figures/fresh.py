"""Figures of each fresh start, from raw records alone: pure functions.

- The flood begins with the first byte that storage's sink took, and ends with the record's `end_s`.
- idle: the median step of those that ended before the flood, without the first `SETTLING_STEPS`.
- of idle: of the steps that ended during the flood, the one included that it began in; rank 0's.
- storage of left: as in `figures`, over the flood, whose first bytes are the slow start of TCP.
"""

from __future__ import annotations

import statistics
from collections.abc import Sequence

from tools.brokerbench.figures.blocks import WIRE_OF_PAYLOAD, Figures, counter_of, series_of
from tools.measure.fixed import SHAPED_SHARE
from tools.measure.records import Record
from tools.measure.series import percentile

SETTLING_STEPS = 6


def fresh(records: Sequence[Record]) -> dict[str, Figures]:
    """The figures, by start."""
    return {f"start {record['round'] + 1}": _start(record) for record in records}


def _start(record: Record) -> Figures:
    sink = series_of(record["sink"])
    came = [t_s for t_s, taken in zip(sink.times_s, sink.values, strict=True) if taken > sink.values[0]]
    interval = (came[0] if came else record["end_s"], record["end_s"])
    steps = [step for step in record["steps"]["training"] if step["rank"] == 0]
    quiet = [step["step_s"] for step in steps[SETTLING_STEPS:] if step["end_s"] <= interval[0]]
    flooded = [step["step_s"] for step in steps if interval[0] < step["end_s"] <= interval[1]]
    stored = WIRE_OF_PAYLOAD * sink.delta(interval)
    trained = counter_of(record, record["counters"]["compute"]).delta(interval)
    left = SHAPED_SHARE * record["rate_bits_per_s"] / 8 * (interval[1] - interval[0]) - trained
    known = bool(quiet and flooded)
    idle_s = statistics.median(quiet) if quiet else None
    return {
        "idle_s": idle_s,
        "of_idle": statistics.median(flooded) / idle_s if known and idle_s else None,
        "p95": percentile(flooded, 0.95) / idle_s if known and idle_s else None,
        "storage_of_left": stored / left if left > 0 else 0.0,
        "steps": len(flooded),
    }
