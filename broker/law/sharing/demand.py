"""How much each class wants: from what it used, from what waits in its queue, and from what training announced.

Usage says what a class got, not what it wanted: a class with a backlog wants more than it gets, so its demand counts as
unlimited. Without a backlog it is 1.1 times the highest use of the last seconds, so that a growing flow finds room.
A maximum over a window would reserve a training burst's peak between bursts too; so the window is short, and a declared
burst counts with the rate that it needs: bytes left by the time left.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from msgspec.structs import replace

from broker.law.state import ClassState
from broker.model.values import ClassSample

USAGE_SLOT_S = 1.0
USAGE_SLOTS = 5
"""Five seconds: longer than the gaps within a step, shorter than a person waits for a rate to be given back."""
USAGE_HEADROOM = 1.1
"""Room to grow within one window (the usual figure of usage-based allocators): 1.1 doubles in seven windows."""
BACKLOG_BYTES_MIN = 2250
"""One and a half full frames: one packet on its way through the queue at the instant of reading is not a backlog, but
two are, down to an MTU of 1125 (PPPoE has 1492, WireGuard 1420, the least of IPv6 is 1280)."""
SENDING_BITS_PER_S = 10_000
"""Below this a class, a job or a connection counts as idle: a few packets a second are keep-alives."""
THROUGHPUT_SMOOTHING_S = 0.5
"""Time constant of the throughput that people see: ticks alone show the tick's own grain."""


def observe(before: ClassState, sample: ClassSample, *, elapsed_s: float | None, now_s: float) -> ClassState:
    """Take in one reading of a class' counters.

    Args:
        before: the class at its last reading.
        sample: this reading.
        elapsed_s: time between the two readings, None where there was no earlier one.
        now_s: the tick's time.
    """
    rate = rate_of(before, sample, elapsed_s=elapsed_s)
    if rate is None or elapsed_s is None:
        return replace(before, sent_bytes=sample.sent_bytes, dropped_packets=sample.dropped_packets)
    smooth = rate
    if before.throughput_bits_per_s is not None:
        part = min(1.0, elapsed_s / THROUGHPUT_SMOOTHING_S)
        smooth = before.throughput_bits_per_s + part * (rate - before.throughput_bits_per_s)
    slots = before.usage_bits_per_s or (0.0,)
    slot_end_s = before.slot_end_s
    if now_s >= slot_end_s:
        slots, slot_end_s = (0.0, *slots[: USAGE_SLOTS - 1]), now_s + USAGE_SLOT_S
    slots = (max(slots[0], smooth), *slots[1:])
    return replace(
        before, sent_bytes=sample.sent_bytes, dropped_packets=sample.dropped_packets, throughput_bits_per_s=smooth,
        usage_bits_per_s=slots, slot_end_s=slot_end_s,
    )  # fmt: skip


def rate_of(before: ClassState, sample: ClassSample, *, elapsed_s: float | None) -> float | None:
    """The throughput between two readings; None without an earlier one or when the counter went back (a new tree)."""
    if elapsed_s is None or elapsed_s <= 0 or sample.sent_bytes < before.sent_bytes:
        return None
    return (sample.sent_bytes - before.sent_bytes) * 8 / elapsed_s


def demand_bits_per_s(
    observed: ClassState, *, backlog_bytes: int | None, ceiling_bits_per_s: int, floor_bits_per_s: int,
    announced: Sequence[tuple[int, float]] = (), declared_bits_per_s: int | None = None,
) -> int:  # fmt: skip
    """Say what a class wants.

    Args:
        observed: the class after `observe`.
        backlog_bytes: what waits in its queues; None where that is not known, and then its use counts, if any was seen.
        ceiling_bits_per_s: what stands for "unlimited".
        floor_bits_per_s: what it counts as wanting at least.
        announced: bytes left and seconds left of each declared burst.
        declared_bits_per_s: what it says that it needs; then its backlog says nothing more, but its use counts, for
            some of it may declare nothing.
    """
    if declared_bits_per_s is not None:
        usage = USAGE_HEADROOM * max(observed.usage_bits_per_s, default=0.0)
        return int(min(ceiling_bits_per_s, max(usage, declared_bits_per_s, floor_bits_per_s)))
    known = backlog_bytes is not None or observed.usage_bits_per_s
    if not known or (backlog_bytes or 0) >= BACKLOG_BYTES_MIN:
        return ceiling_bits_per_s
    usage = USAGE_HEADROOM * max(observed.usage_bits_per_s, default=0.0)
    declared = math.fsum(left_bytes * 8 / max(left_s, 0.001) for left_bytes, left_s in announced)
    return int(min(ceiling_bits_per_s, max(usage, declared, floor_bits_per_s)))
