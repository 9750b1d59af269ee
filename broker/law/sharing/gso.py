"""How many segments TCP may hand to an interface in one piece, by the rate that the interface is shaped to. Pure.

TCP builds super-frames of up to 64 KiB (GSO), and a shaper sends each whole: at 20 Mbit/s whoever comes next waits for
26 ms. So a piece may take at most `PIECE_S_MAX` at the rate, and at least one segment. The count is a power of two, so
that it changes seldom, and stands while a rate `STEADY` off would give it, so that a rate at an edge does not make it
swing. For frames of 1514 bytes:

    rate from, Mbit/s     0    12.1   24.2   48.4   96.9   193.8   262
    segments              1    2      4      8      16     32      the device's own
"""

from __future__ import annotations

import math

from broker.model.reasons import Because
from broker.model.values import SegmentAllocation

PIECE_S_MAX = 0.002
"""Smaller pieces cost CPU, each passing the stack by itself, and win little: a frame takes 0.6 ms at 20 Mbit/s."""
STEADY = 0.2
"""Part of the rate by which it has to pass an edge. A piece then takes at most 2.4 ms."""
HEADER_BYTES = 14
"""Of Ethernet, which the kernel counts beside the packet."""
MTU_BYTES = 1500
"""Of an interface that is not there yet."""
PIECE_BYTES_MAX = 65_536
"""What TCP builds unless a device says otherwise: where that passes within `PIECE_S_MAX`, no limit is needed."""


def follow(
    last: SegmentAllocation | None, *, wanted: bool, rate_bits_per_s: int, mtu_bytes: int | None
) -> SegmentAllocation:
    """Choose at a tick.

    Args:
        last: what was chosen before, None for the first time.
        wanted: by policy.
        rate_bits_per_s: what the interface is shaped to.
        mtu_bytes: its own, None where that is not known.
    """
    if not wanted:
        return SegmentAllocation(None, Because.GSO_OFF())
    return choose(rate_bits_per_s, frame_bytes=(mtu_bytes or MTU_BYTES) + HEADER_BYTES, last=last)


def choose(rate_bits_per_s: int, *, frame_bytes: int, last: SegmentAllocation | None) -> SegmentAllocation:
    """Choose for an interface.

    Args:
        rate_bits_per_s: what it is shaped to.
        frame_bytes: its full frame, MTU and link-layer header.
        last: what was chosen before; None for the first time.
    """
    segments = _segments_at(rate_bits_per_s, frame_bytes)
    if last is not None:
        low = _segments_at(rate_bits_per_s * (1 - STEADY), frame_bytes)
        high = _segments_at(rate_bits_per_s * (1 + STEADY), frame_bytes)
        if low <= (last.gso_max_segs or math.inf) <= high:
            segments = last.gso_max_segs or math.inf
    if segments == math.inf:
        return SegmentAllocation(
            None,
            Because.GSO_FAST_ENOUGH(piece_ms=PIECE_BYTES_MAX * 8e3 / rate_bits_per_s, rate_bits_per_s=rate_bits_per_s),
        )
    count = int(segments)
    return SegmentAllocation(
        count,
        Because.GSO_PIECE_TIME(
            segments=count, piece_ms=count * frame_bytes * 8e3 / rate_bits_per_s, rate_bits_per_s=rate_bits_per_s
        ),
    )


def _segments_at(rate_bits_per_s: float, frame_bytes: int) -> float:
    """Infinite where no limit is needed."""
    piece_bytes = rate_bits_per_s / 8 * PIECE_S_MAX
    if piece_bytes >= PIECE_BYTES_MAX:
        return math.inf
    return 2.0 ** math.floor(math.log2(max(1.0, piece_bytes / frame_bytes)))
