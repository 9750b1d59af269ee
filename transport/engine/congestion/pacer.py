"""Pacing: a token bucket of bytes, without a clock."""

from __future__ import annotations

import math

RATE_VALID_S = 3.0
"""A rate that is not given again within this is forgotten: who gave it may have died. The broker's answers come once a
second at least."""


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
