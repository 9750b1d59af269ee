"""The account of a guarantee: storage lends its share to training's bursts and gets it back within its window.

The window has twelve parts; each holds promised minus received bits. Only time in which the class had something waiting
counts: who does not ask is owed nothing. What it got beyond its promise counts against what it is owed.

    owed > 2 % of the window's promise  ->  repay: HTB rate = guarantee + owed / (a tenth of the window)
    owed <= 0                           ->  lend again: HTB rate = floor

2 % of a 60 s window is 1.2 s without service: longer than a training burst, so that bursts do not meet a repayment.
A tenth of the window (6 s) repays it long before the window has passed. The promise counts 3 % higher than it is: the
law starts to repay only when something is owed, and the average over any window has to reach the guarantee.
Simulated with bursts in 55 to 74 % of the time and guarantees above what they leave (tests/unit/broker), the least
average over any window is 1.00 of the guarantee for windows of 60 s, 0.985 for 20 s, and 0.86 for 5 s.
"""

from __future__ import annotations

import math

from msgspec.structs import replace

from broker.law.inbound_state import Account

PARTS = 12
"""What was booked is forgotten a part at a time, 5 s of a minute: the strip does not grow with the ticks."""
AT_RISK = 0.02
REPAY_PART = 1 / 10
PROMISE_MARGIN = 1.03
"""The reasons for these three stand at the top."""


def account(
    state: Account, *, received_bits: float, guarantee_bits_per_s: int, window_s: float, elapsed_s: float,
    waiting: bool, now_s: float,
) -> Account:  # fmt: skip
    """Book one tick: what was promised against what came.

    Args:
        state: its account so far.
        received_bits: what it sent since the last tick.
        guarantee_bits_per_s: its guarantee at today's capacity.
        window_s: over which the guarantee is kept.
        elapsed_s: since the last tick.
        waiting: whether it had a backlog, so that the promise counts.
        now_s: the tick's time.
    """
    parts: tuple[float, ...] = state.owed_bits or (0.0,)
    end_s = state.owed_end_s
    if now_s >= end_s:
        parts, end_s = (0.0, *parts[: PARTS - 1]), now_s + window_s / PARTS
    promised = PROMISE_MARGIN * guarantee_bits_per_s * elapsed_s
    if waiting:
        parts = (parts[0] + promised - received_bits, *parts[1:])
    owed = math.fsum(parts)
    at_risk = owed > AT_RISK * guarantee_bits_per_s * window_s
    repaying = guarantee_bits_per_s > 0 and (at_risk or (state.repaying and owed > 0))
    return replace(state, owed_bits=parts, owed_end_s=end_s, repaying=repaying)


def owed_bits(state: Account) -> float:
    """What it is owed over its window; negative when it got more than its promise."""
    return math.fsum(state.owed_bits)


def repay_rate_bits_per_s(state: Account, *, guarantee_bits_per_s: int, window_s: float) -> int:
    """The HTB rate that keeps the guarantee: zero while nothing is at risk."""
    if not state.repaying:
        return 0
    return int(PROMISE_MARGIN * guarantee_bits_per_s + max(0.0, owed_bits(state)) / (REPAY_PART * window_s))
