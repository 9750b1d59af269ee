"""Keeping a rate: a token bucket, without a clock."""

from __future__ import annotations

import math

RATE_VALID_S = 3.0
"""A rate that is not given again within this is forgotten: who gave it may have died. The broker's answers come once a
second at least."""
HEADROOM = 0.95
"""Acknowledgements of what comes the other way are not held, and take up to 2.7 % (82 bytes for two of 1494)."""
HEADER_BYTES = 62
"""Ethernet, IPv6 and UDP of a datagram: the rate is one of the wire, and so HTB counts."""
BURST_S = 0.004
BURST_BYTES_MIN = 6000
"""The bucket holds 4 ms of the rate, so that a thread that wakes each millisecond keeps up; and four packets."""


class Pacer:
    """What an endpoint may send under a rate that was given, all its connections together."""

    def __init__(self) -> None:
        self._rate_bytes_per_s = math.inf
        self._until_s = -math.inf
        self._tokens = 0.0
        self._filled_s = 0.0

    def give(self, bits_per_s: int | None, *, now_s: float) -> None:
        """Keep this rate for `RATE_VALID_S`; None: no rate."""
        self._fill(now_s)
        self._rate_bytes_per_s = math.inf if bits_per_s is None else HEADROOM * bits_per_s / 8
        self._until_s = now_s + RATE_VALID_S

    def allowance(self, *, now_s: float) -> float:
        """Bytes that may go now; infinite without a rate, below zero after more than the bucket held."""
        self._fill(now_s)
        return self._tokens if self._limits(now_s) else math.inf

    def next_send_at(self, *, now_s: float) -> float:
        """When half a bucket has come together: a wake-up for every packet would cost more than the packets."""
        if not self._limits(now_s):
            return now_s
        return min(now_s + max(self._size / 2 - self._tokens, 0) / self._rate_bytes_per_s, self._until_s)

    def on_sent(self, *, datagrams: int, payload_bytes: int) -> None:
        """Take datagrams out, with their headers."""
        self._tokens -= payload_bytes + datagrams * HEADER_BYTES

    @property
    def _size(self) -> float:
        return max(self._rate_bytes_per_s * BURST_S, BURST_BYTES_MIN)

    def _limits(self, now_s: float) -> bool:
        return self._rate_bytes_per_s < math.inf and now_s <= self._until_s

    def _fill(self, now_s: float) -> None:
        if self._limits(now_s):
            self._tokens = min(self._size, self._tokens + (now_s - self._filled_s) * self._rate_bytes_per_s)
        else:
            self._tokens = 0.0
        self._filled_s = now_s
