"""CUBIC (RFC 9438) with HyStart++ (RFC 9406) for gradients. Arithmetic on packets and times, without QUIC or a clock.

Two rules are for traffic in bursts:
- The window is cut from what it was, not from what is in flight, which between bursts is nothing (RFC 9438, 4.6, allows
  it where a window that is not used does not grow).
- After a pause the window starts small again, but slow start knows how far it had come (RFC 2861, section 2.1): in an
  all-reduce the peer's own data delays our acknowledgements from the first packet on, which a search by round-trip time
  takes for a full path, and then a window grows for seconds that was known before the pause.
"""

from __future__ import annotations

import math

from transport.engine.congestion.hystart import CSS_DIVISOR, HyStart

WINDOW_PACKETS_INITIAL = 10
WINDOW_PACKETS_MIN_LOSS = 2
CUBIC_C, CUBIC_BETA = 0.4, 0.7
RENO_INCREASE = 3 * (1 - CUBIC_BETA) / (1 + CUBIC_BETA)
"""RFC 9438: the constants of its section 5, and of its Reno-friendly region (4.3)."""
IDLE_S = 2.0
"""What is known of a path is old after that; a training step's gaps are shorter. RFC 2861 says one RTO."""


class Cubic:
    """The window of CUBIC. See the top of this file. Sizes in bytes, times in seconds."""

    def __init__(self, *, packet_bytes: int) -> None:
        self.packet_bytes = packet_bytes
        self.window_bytes = float(WINDOW_PACKETS_INITIAL * packet_bytes)
        self.threshold_bytes = math.inf
        self._most = 0.0
        self._epoch_s: float | None = None
        self._epoch_window = 0.0
        self._estimate = 0.0
        self._rtt_s = 0.0
        self._round_end_s = 0.0
        self._reduced_s = -math.inf
        self._active_s: float | None = None
        self._search: HyStart | None = HyStart()

    @property
    def slow_start(self) -> bool:
        """Whether the window still looks for the path's capacity."""
        return self.window_bytes < self.threshold_bytes

    def on_sent(self, *, now_s: float) -> None:
        """A packet goes out; after a pause the window starts again, up to three quarters of what it was."""
        if self._active_s is not None and now_s - self._active_s > IDLE_S:
            self.threshold_bytes = max(self.threshold_bytes, 0.75 * self.window_bytes)
            self.window_bytes = min(self.window_bytes, float(WINDOW_PACKETS_INITIAL * self.packet_bytes))
            self._epoch_s = None
        self._active_s = now_s

    def on_rtt(self, rtt_s: float, *, now_s: float) -> None:
        """Take a round trip, without the peer's acknowledgement delay."""
        self._rtt_s = rtt_s
        if self._search is None or not self.slow_start:
            return
        if now_s >= self._round_end_s:
            self._round_end_s = now_s + rtt_s
            self._search.on_round()
        self._search.on_rtt(rtt_s)
        if self._search.done:
            self.threshold_bytes = self.window_bytes

    def on_acked(self, acked_bytes: int, *, now_s: float) -> None:
        """Grow by `acked_bytes` of a full window."""
        self._active_s = now_s
        if self.slow_start:
            conservative = self._search is not None and self._search.conservative
            self.window_bytes += acked_bytes / (CSS_DIVISOR if conservative else 1)
            return
        self._search = None
        if self._epoch_s is None:
            self._epoch_s = now_s
            self._epoch_window = self._estimate = self.window_bytes
            self._most = max(self._most, self.window_bytes)
        self._estimate += RENO_INCREASE * self.packet_bytes * acked_bytes / self.window_bytes
        to_most_s = ((self._most - self._epoch_window) / self.packet_bytes / CUBIC_C) ** (1 / 3)
        at_s = now_s + self._rtt_s - self._epoch_s - to_most_s
        target = self._most + CUBIC_C * at_s**3 * self.packet_bytes
        target = min(max(target, self.window_bytes), 1.5 * self.window_bytes)
        self.window_bytes += (target - self.window_bytes) * acked_bytes / self.window_bytes
        self.window_bytes = max(self.window_bytes, self._estimate)

    def on_loss(self, *, now_s: float, sent_at_s: float) -> None:
        """Cut to 0.7, once for each round trip's losses, and make room for newcomers (fast convergence)."""
        if sent_at_s <= self._reduced_s:
            return
        self._reduced_s = now_s
        fast = self.window_bytes < self._most
        self._most = self.window_bytes * (1 + CUBIC_BETA) / 2 if fast else self.window_bytes
        self.window_bytes = max(self.window_bytes * CUBIC_BETA, WINDOW_PACKETS_MIN_LOSS * self.packet_bytes)
        self.threshold_bytes = self.window_bytes
        self._most = max(self._most, self.window_bytes)
        self._epoch_s = None
        self._search = None

    def on_persistent_congestion(self) -> None:
        """Nothing arrived for so long that nothing is known of the path (RFC 9002, 7.6)."""
        self.window_bytes = float(WINDOW_PACKETS_MIN_LOSS * self.packet_bytes)
        self._epoch_s = None

    def allowed_bytes(self) -> int:
        """What may be in flight now."""
        return int(self.window_bytes)
