"""What a sender measures of its path: the least round trip, and the rate of delivery (after BBR)."""

from __future__ import annotations

import math

BASE_SPAN_S = 10.0
RATE_SPAN_S = 0.1


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
