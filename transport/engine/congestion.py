"""Pacing, rate measurement and two controllers: arithmetic on packets and times, without QUIC or a clock.

The third one, which follows a rate, is in `rate_following`.

`Cubic` carries gradients: CUBIC (RFC 9438) with HyStart++ (RFC 9406), and with two rules for traffic in bursts:
- The window is cut from what it was, not from what is in flight, which between bursts is nothing (RFC 9438, 4.6, allows
  it where a window that is not used does not grow).
- After a pause the window starts small again, but slow start knows how far it had come (RFC 2861, section 2.1): in an
  all-reduce the peer's own data delays our acknowledgements from the first packet on, which a search by round-trip time
  takes for a full path, and then a window grows for seconds that was known before the pause.

The delay-bounded controller is for bulk state that shares a link with training. It keeps the queue that it makes itself
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

WINDOW_PACKETS_MIN = 4
WINDOW_PACKETS_INITIAL = 10
WINDOW_PACKETS_MIN_LOSS = 2
CUBIC_C, CUBIC_BETA = 0.4, 0.7
RENO_INCREASE = 3 * (1 - CUBIC_BETA) / (1 + CUBIC_BETA)
"""RFC 9438: the constants of its section 5, and of its Reno-friendly region (4.3)."""
IDLE_S = 2.0
"""What is known of a path is old after that; a training step's gaps are shorter. RFC 2861 says one RTO."""
RTT_RISE_S_MIN, RTT_RISE_S_MAX, RTT_SAMPLES_MIN, CSS_DIVISOR, CSS_ROUNDS = 0.004, 0.016, 8, 4, 5
"""RFC 9406, section 4.3."""
TARGET_S_MIN = 0.002
ROUND_SAMPLES = 6
GAIN, CUT_MOST = 1 / 8, 0.5
SLOW_START_TARGETS = 0.75
"""Slow start doubles in a round trip, and what it has sent shows one later."""
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


class HyStart:
    """When to leave the first slow start, by the round trip's growth: RFC 9406, with its constants."""

    def __init__(self) -> None:
        self.conservative = False
        self.done = False
        self._last_least = math.inf
        self._least = math.inf
        self._samples = 0
        self._baseline = math.inf
        self._rounds = 0

    def on_round(self) -> None:
        """A round trip has passed."""
        self._last_least, self._least, self._samples = self._least, math.inf, 0
        if self.conservative:
            self._rounds += 1
            self.done = self._rounds >= CSS_ROUNDS

    def on_rtt(self, rtt_s: float) -> None:
        """Take a sample."""
        self._least = min(self._least, rtt_s)
        self._samples += 1
        if self._samples < RTT_SAMPLES_MIN or self._last_least == math.inf:
            return
        if self.conservative:
            self.conservative = self._least >= self._baseline
        elif self._least >= self._last_least + min(max(self._last_least / 8, RTT_RISE_S_MIN), RTT_RISE_S_MAX):
            self.conservative, self._baseline, self._rounds = True, self._least, 0


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
