"""What a reduction does with the values of the ranks. Values are always taken in rank order."""

from __future__ import annotations

import enum


class ReduceOp(enum.Enum):
    """How the ranks' values become one.

    `MEAN` divides the sum by the number of ranks, in the accumulator's precision. Of integers it is cut toward zero,
    of bool there is none. `MIN` and `MAX` need an ordered dtype (not complex). The bitwise three need integers or bool.
    For bool, `SUM` and `MAX` are "or", `PRODUCT` and `MIN` are "and".
    """

    SUM = "sum"
    MEAN = "mean"
    PRODUCT = "product"
    MIN = "min"
    MAX = "max"
    BAND = "band"
    BOR = "bor"
    BXOR = "bxor"
