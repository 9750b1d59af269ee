"""Pacing, rate measurement and the delay-bounded controller: arithmetic on packets and times, without QUIC or a clock.

The delay-bounded controller is for bulk state that shares a link with training. It keeps the queue that it makes itself
near `target_s = max(2 ms, base RTT / 4)` (after LEDBAT, RFC 6817, and LEDBAT++), so that a 1 KB message to the same
peer does not wait behind it: at 40 Mbit/s, 2 ms are 10 kB or 7 packets.
- The queueing delay is the least of the last `FILTER_SAMPLES` round trips minus the base: single late samples come from
  schedulers and interpreters, a queue delays every packet.
- Below the target the window grows, by up to one packet a round trip after slow start; above it shrinks in proportion,
  at most halving in a round trip.
- The base is the least round trip in two spans of `BASE_SPAN_S`. Because a standing queue of our own would become part
  of it, the window is cut to four packets for a moment once a span (BBR's ProbeRTT, 2 % of the time).
"""

from __future__ import annotations

import math
from collections import deque

WINDOW_PACKETS_MIN = 4
WINDOW_PACKETS_INITIAL = 10
TARGET_S_MIN = 0.002
FILTER_SAMPLES = 6
BASE_SPAN_S = 10.0
DRAIN_S = 0.2
RATE_SPAN_S = 0.1


class Pacer:
    """Spreads packets over time: a bucket of bytes that fills at the pacing rate.

    Args:
        burst_s: the bucket holds so much time of the rate; wake-ups are 1 ms apart at best, so 2 ms keep up with them.
            Half of it is what goes out at once.
        burst_bytes_min: and at least so much, so that slow links can send two packets at once.
    """

    def __init__(self, *, burst_s: float, burst_bytes_min: int) -> None:
        self.burst_s = burst_s
        self.burst_bytes_min = burst_bytes_min
        self.rate_bytes_per_s = math.inf
        self._tokens = float(burst_bytes_min)
        self._filled_at = 0.0

    def set_rate(self, rate_bytes_per_s: float) -> None:
        """Change the rate; what is in the bucket stays."""
        self.rate_bytes_per_s = max(rate_bytes_per_s, 1000.0)

    def next_send_at(self, *, now_s: float) -> float | None:
        """When packets may go again, or None for now.

        That is when half a bucket has come together: a wake-up for every packet would cost more than the packets.
        """
        if self.rate_bytes_per_s == math.inf:
            return None
        size = max(self.burst_bytes_min, self.rate_bytes_per_s * self.burst_s)
        self._tokens = min(size, self._tokens + (now_s - self._filled_at) * self.rate_bytes_per_s)
        self._filled_at = now_s
        if self._tokens > 0:
            return None
        return now_s + (size / 2 - self._tokens) / self.rate_bytes_per_s

    def on_sent(self, sent_bytes: int) -> None:
        """Take a packet's bytes out; the bucket may go below zero by one packet."""
        self._tokens -= sent_bytes


class RttWindow:
    """The least round trip of the last one to two spans."""

    def __init__(self, *, span_s: float = BASE_SPAN_S) -> None:
        self.span_s = span_s
        self._previous = math.inf
        self._current = math.inf
        self._since = -math.inf

    def add(self, rtt_s: float, *, now_s: float) -> None:
        """Take a sample."""
        if now_s - self._since > self.span_s:
            self._previous = self._current if now_s - self._since <= 2 * self.span_s else math.inf
            self._current = math.inf
            self._since = now_s
        self._current = min(self._current, rtt_s)

    @property
    def least_s(self) -> float:
        """Infinite before the first sample."""
        return min(self._previous, self._current)


class DeliveryRate:
    """Acknowledged bytes per second over the last `RATE_SPAN_S` or longer, and whether the sender was the limit."""

    def __init__(self) -> None:
        self.delivered_bytes = 0
        self.rate_bits_per_s = 0
        self.application_limited = True
        self._span_bytes = 0
        self._span_at: float | None = None
        self._limited = True

    def on_acked(self, acked_bytes: int) -> None:
        """Count bytes."""
        self.delivered_bytes += acked_bytes

    def on_limited(self) -> None:
        """The sender ran out of things to send within its window."""
        self._limited = True

    def update(self, *, now_s: float) -> None:
        """Close the span if it is long enough."""
        if self._span_at is None:
            self._span_at, self._span_bytes = now_s, self.delivered_bytes
            return
        span_s = now_s - self._span_at
        if span_s < RATE_SPAN_S:
            return
        self.rate_bits_per_s = int((self.delivered_bytes - self._span_bytes) * 8 / span_s)
        self.application_limited = self._limited
        self._limited = False
        self._span_at, self._span_bytes = now_s, self.delivered_bytes


class DelayBound:
    """The window of the delay-bounded controller. See the top of this file."""

    def __init__(self, *, packet_bytes: int) -> None:
        self.packet_bytes = packet_bytes
        self.window_bytes = float(WINDOW_PACKETS_INITIAL * packet_bytes)
        self.slow_start = True
        self.queue_s = 0.0
        self._base = RttWindow()
        self._recent: deque[float] = deque(maxlen=FILTER_SAMPLES)
        self._drain_until: float | None = None
        self._drained_at: float | None = None
        self._reduced_at = -math.inf

    @property
    def base_s(self) -> float:
        """The round trip without a queue, as far as it is known."""
        return self._base.least_s

    @property
    def target_s(self) -> float:
        """How much queue of our own we allow."""
        return max(TARGET_S_MIN, self.base_s / 4) if self.base_s < math.inf else TARGET_S_MIN

    def on_rtt(self, rtt_s: float, *, now_s: float) -> None:
        """Take a round trip, without the peer's acknowledgement delay."""
        if self._drained_at is None:
            self._drained_at = now_s
        self._base.add(rtt_s, now_s=now_s)
        self._recent.append(rtt_s)
        self.queue_s = min(self._recent) - self.base_s
        if now_s - self._drained_at > BASE_SPAN_S:
            self._drained_at = now_s
            self._drain_until = now_s + max(DRAIN_S, 2 * rtt_s)
        if self._drain_until is not None and now_s >= self._drain_until:
            self._drain_until = None

    def on_acked(self, acked_bytes: int, *, now_s: float) -> None:
        """Grow or shrink by what the queue says, for `acked_bytes` of a full window."""
        if self._drain_until is not None or len(self._recent) < FILTER_SAMPLES:
            if self.slow_start:
                self.window_bytes += acked_bytes
            return
        if self.slow_start:
            if self.queue_s < 0.75 * self.target_s:
                self.window_bytes += acked_bytes
                return
            self.slow_start = False
        share = acked_bytes / self.window_bytes
        if self.queue_s <= self.target_s:
            off_target = 1 - self.queue_s / self.target_s
            # At most one packet a round trip, or a 32nd of the window where that is more: links differ by 1000.
            self.window_bytes += share * off_target * max(self.packet_bytes, self.window_bytes / 32)
        else:
            excess = min(self.queue_s / self.target_s - 1, 1.0)
            self.window_bytes -= share * excess * self.window_bytes / 2
        self.window_bytes = max(self.window_bytes, WINDOW_PACKETS_MIN * self.packet_bytes)

    def on_loss(self, *, now_s: float, sent_at_s: float) -> None:
        """Halve, once for each round trip's losses."""
        if sent_at_s <= self._reduced_at:
            return
        self._reduced_at = now_s
        self.slow_start = False
        self.window_bytes = max(self.window_bytes / 2, WINDOW_PACKETS_MIN * self.packet_bytes)

    def allowed_bytes(self) -> int:
        """What may be in flight now."""
        if self._drain_until is not None:
            return WINDOW_PACKETS_MIN * self.packet_bytes
        return int(self.window_bytes)
