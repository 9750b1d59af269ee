"""HyStart++ (RFC 9406): when to leave slow start."""

from __future__ import annotations

import math

RTT_RISE_S_MIN, RTT_RISE_S_MAX, RTT_SAMPLES_MIN, CSS_DIVISOR, CSS_ROUNDS = 0.004, 0.016, 8, 4, 5
"""RFC 9406, section 4.3."""


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
