"""Whose queue it is: one that goes on standing while we send nothing is somebody else's.

A host whose link others flood has a queue in front of it, and what we begin to send waits there from the first packet
on. That looks like a bottleneck on our own way out, and what passed before it began, next to nothing, like what that
carries: one such cut took 97 Mbit/s to 19, and sixteen seconds of probing gave them back. So:

    A queue that nobody fills shrinks by a second a second. Between two packets before which we sent less than `SILENT`
    of our rate, a wait that shrinks by less than half of that is filled by others, and booked as theirs.
    From then on only what a wait exceeds it by counts. It goes as it came: no later wait is shorter than theirs. And
    it is theirs for `BELIEVED_S` after the last packet that showed it, no longer.

To send less would not shorten such a queue, and what we add to it shows, because then it grows. But a full buffer
cannot grow: there our queue replaces theirs, and the wait stays. So what we have sent into for long is ours.
"""

from __future__ import annotations

from collections.abc import Sequence

from broker.law.capacity.delivery_rate import Left
from broker.law.capacity.state import FlowState, TickState

QUEUE_S = 0.03
"""As bloat (broker.law.capacity.decrease): less is no reason for a cut, and noise, booked, comes off every queue of
ours. Two packets in a row have to wait so long, for one may have waited for a busy host; after a pause, one."""
SILENT, SILENT_S_MAX = 0.05, 0.3
"""Of our rate: acknowledgements of what comes in, and small messages, are less. Over at most three questions before a
packet: over a pause of seconds, in which nothing is asked, what a burst began with is little."""
BELIEVED_S = 1.0
"""As long as a burst of training. A second after we began, what stood there has passed: what stands has come since."""
APART_S_MIN = 0.05
"""Packets that left less apart tell no slope: waits of busy hosts are off by 5 to 10 ms."""
SHRINKS = 0.5
"""Of the second a second by which a queue shrinks that nobody fills: a wait that shrinks by less is filled."""


def others_s(
    before: FlowState, wait_s: float, *, left_s: float, ticks: Sequence[TickState], rate_bits_per_s: int
) -> tuple[float, float]:
    """Say how much of a packet's wait elsewhere is a queue of others, and when a packet left that showed it for theirs.

    Args:
        before: what is known of its connection, up to the packet before.
        wait_s: over the connection's baseline, not in our own queue.
        left_s: when it was sent.
        ticks: what left this host.
        rate_bits_per_s: that this host may send at.
    """
    apart_s = left_s - before.way_at_s if before.way_at_s is not None else 0.0
    silent_s = min(apart_s, SILENT_S_MAX)
    stood = apart_s > silent_s or before.way_wait_s >= QUEUE_S
    fills = stood and wait_s >= max(QUEUE_S, before.way_wait_s - SHRINKS * apart_s)
    if fills and apart_s >= APART_S_MIN and _is_silent(ticks, left_s, silent_s, rate_bits_per_s):
        return wait_s, left_s
    believed = left_s - before.others_at_s <= BELIEVED_S
    return min(before.others_s, wait_s) if believed else 0.0, before.others_at_s


def _is_silent(ticks: Sequence[TickState], left_s: float, silent_s: float, rate_bits_per_s: int) -> bool:
    return Left(ticks).between(left_s - silent_s, left_s) < SILENT * rate_bits_per_s * silent_s
