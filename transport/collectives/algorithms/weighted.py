"""Shards by link rates, for the direct algorithm: a slow link carries less.

An owner of the share w sends [1 + (n-2) w] M bytes: its contributions to the other shards and its result to n-1 ranks.
All links are done at the same time T where [1 + (n-2) w_i] M = T b_i. No link can be done before its own tensor has
left it, nor all before 2 (n-1) M bytes have: T = max(M / b_min, 2 (n-1) M / sum(b)), and from it

    w_i = max(0, (T b_i / M - 1) / (n - 2)), scaled to a sum of 1.

With links of 100, 100, 100 and 25 Mbit/s the slow one owns nothing, and T is two thirds of that of equal shares.
"""

from __future__ import annotations

import statistics
from collections.abc import Sequence

FAST_MAX = 4
"""A link counts for at most so many times the median one. Faster ones gain little by more: of eight ranks, where one is
faster than all others together, T is 1.3 M / b instead of M / b; equal shares need 1.75 M / b. And a rank that claims a
rate that it has not costs the others at most so many times what equal shares would."""
WEIGHT_MAX = 1000
"""Weights are whole numbers, so that ranks cannot differ in a float's last bit. Steps of 0.1 % cost less than that."""


def weights_of(rates_bits_per_s: Sequence[int]) -> tuple[int, ...]:
    """Each rank's share, the largest being WEIGHT_MAX; () where equal shares are as good.

    Args:
        rates_bits_per_s: the lower of up and down of each rank, all positive.
    """
    size = len(rates_bits_per_s)
    fastest = FAST_MAX * statistics.median_low(rates_bits_per_s)
    rates = [min(rate, fastest) for rate in rates_bits_per_s]
    slowest, total = min(rates), sum(rates)
    if size <= 2 or slowest == max(rates):
        return ()
    # T / M = 1 / slowest or 2 (n-1) / total, whichever is longer; multiplied by both, to stay with whole numbers.
    time = max(total, 2 * (size - 1) * slowest)
    left = [max(time * rate - total * slowest, 0) for rate in rates]
    return tuple(WEIGHT_MAX * one // max(left) for one in left)
