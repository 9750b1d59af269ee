"""Whether what a caller passes can be what it is to be: asked before anything begins, whose errors would come later."""

from __future__ import annotations

import math


def is_index(value: object, size: int) -> bool:
    """Whether it is a whole number, also one of numpy's, from 0 to `size` - 1."""
    return hasattr(value, "__index__") and 0 <= value.__index__() < size


def is_seconds(value: object) -> bool:
    """Whether it is a time that passes: a number from 0, not NaN. Infinity is one."""
    return isinstance(value, int | float) and not math.isnan(value) and value >= 0
