"""The delay-bounded controller: it yields to everything else on its path. Arithmetic, without QUIC or a clock.

It is for bulk state that shares a link with training. It keeps the queue that it makes itself
near `target_s = max(2 ms, base RTT / 4)` (after LEDBAT, RFC 6817, and LEDBAT++), so that a 1 KB message to the same
peer does not wait behind it: at 40 Mbit/s, 2 ms are 10 kB or 7 packets.
- A round is a round trip, and at least `ROUND_SAMPLES` samples, which in slow start are enough. Its queue is the least
  round trip in it minus the base: a queue of ours delays every packet. Single late samples come from schedulers and
  interpreters, and what passes within a round (somebody's message of 64 KB is 5 ms at 100 Mbit/s) is not ours: giving
  way to each left a third of a link unused.
- Below the target the window grows, by up to an eighth a round after slow start; above it shrinks by an eighth for each
  target that the queue is too long, at most by half. The target is a quarter of the base or more, so what was decided
  before the last round showed overshoots by less than a target.
- The base is the least round trip in two spans of `BASE_SPAN_S`. Because a standing queue of our own would become part
  of it, the window is cut to four packets for a moment once a span (BBR's ProbeRTT, 2 % of the time).
"""

from __future__ import annotations

import math

from transport.engine.congestion.path_estimates import BASE_SPAN_S, RttWindow

WINDOW_PACKETS_MIN = 4
WINDOW_PACKETS_INITIAL = 10
TARGET_S_MIN = 0.002
ROUND_SAMPLES = 6
GAIN, CUT_MOST = 1 / 8, 0.5
SLOW_START_TARGETS = 0.75
"""Slow start doubles in a round trip, and what it has sent shows one later."""
DRAIN_S = 0.2


class DelayBound:
    """The window of the delay-bounded controller. See the top of this file."""

    def __init__(self, *, packet_bytes: int) -> None:
        self.packet_bytes = packet_bytes
        self.window_bytes = float(WINDOW_PACKETS_INITIAL * packet_bytes)
        self.slow_start = True
        self._base = RttWindow()
        self._began_s: float | None = None
        self._least_s, self._samples, self._rtt_s = math.inf, 0, 0.0
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
        self._least_s = min(self._least_s, rtt_s)
        self._samples += 1
        self._rtt_s = rtt_s
        if now_s - self._drained_at > BASE_SPAN_S:
            self._drained_at = now_s
            self._drain_until = now_s + max(DRAIN_S, 2 * rtt_s)
        if self._drain_until is not None and now_s >= self._drain_until:
            self._drain_until = None

    def on_acked(self, acked_bytes: int, *, now_s: float) -> None:
        """Grow in slow start, and end a round where it is over, for `acked_bytes` of a full window."""
        if self._drain_until is not None:
            self._begin_round(None)
            return
        if self._began_s is None:
            self._began_s = now_s
        if self._samples < ROUND_SAMPLES:
            self.window_bytes += acked_bytes if self.slow_start else 0
            return
        queue_s = self._least_s - self.base_s
        if self.slow_start:
            self.slow_start = queue_s < SLOW_START_TARGETS * self.target_s
            self.window_bytes += acked_bytes if self.slow_start else 0
            self._begin_round(now_s)
        elif now_s - self._began_s >= self._rtt_s:
            self._begin_round(now_s)
            self._judge(queue_s)

    def _begin_round(self, now_s: float | None) -> None:
        self._began_s, self._least_s, self._samples = now_s, math.inf, 0

    def _judge(self, queue_s: float) -> None:
        off_target = 1 - queue_s / self.target_s
        if off_target < 0:
            self.window_bytes *= 1 - min(-GAIN * off_target, CUT_MOST)
        else:
            self.window_bytes += off_target * max(self.packet_bytes, GAIN * self.window_bytes)
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
