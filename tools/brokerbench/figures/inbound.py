"""Figures of the way in that changes, from raw records alone: pure functions.

As of the capacity scenario (`changing`), where the one who follows is the receiver's broker, with what it takes
its way in for; and besides, in the settled time of each part and in the whole of it:

- of idle: the median step, divided by that of the same part of the idle block of the round; of rounds the median.
- storage: what its sink took, times 1514 for each 1448 bytes.
"""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from typing import Any

from tools.brokerbench.figures.blocks import WIRE_OF_PAYLOAD, Figures, series_of
from tools.brokerbench.figures.changing import PARTS, Span, capacity, settled, steps_s, whole
from tools.brokerbench.settings import IDLE
from tools.measure.records import Record

RECEIVER = "b"


def inbound(records: Sequence[Record]) -> dict[str, Figures]:
    """The figures, by condition."""
    found = capacity(records, host=RECEIVER, figure="inbound_bits_per_s")
    idle = {record["round"]: record for record in records if record["condition"] == IDLE}
    for condition, figures in found.items():
        blocks = [record for record in records if record["condition"] == condition]
        for place, name in enumerate(PARTS):
            figures["parts"][name] |= _of(blocks, place, idle, settled)
            figures["parts"][name]["whole"] |= _of(blocks, place, idle, whole)
    return found


def _of(blocks: Sequence[Any], place: int, idle: dict[int, Record], span: Span) -> Figures:
    ratios, bits, seconds = [], 0.0, 0.0
    for block in blocks:
        interval = span(block, place)
        alone = idle.get(block["round"])
        steps = steps_s(block, interval)
        undisturbed = steps_s(alone, settled(alone, place)) if alone is not None else []
        if steps and undisturbed:
            ratios.append(statistics.median(steps) / statistics.median(undisturbed))
        bits += 8 * WIRE_OF_PAYLOAD * series_of(block["sink"]).delta(interval)
        seconds += interval[1] - interval[0]
    return {
        "of_idle": statistics.median(ratios) if ratios else None,
        "storage_bits_per_s": bits / seconds if seconds > 0 else 0.0,
    }
