"""What all members do alike with a merged change: the outer optimiser, and the merge that keeps its norm. Pure.

Members hold the same bits only if they reckon the same way. So this is numpy's, one IEEE operation at a time: torch
fuses a product and a sum where a processor can, and adds in an order that follows its vectors' width. numpy's sum of
float64 has one order on all of them, and the square of a float32 is exact in float64.
"""

from __future__ import annotations

from typing import TypeAlias

import numpy as np
import numpy.typing as npt

Vector: TypeAlias = npt.NDArray[np.float32]


def nesterov(mean: Vector, gradient: Vector, buffer: Vector, *, rate: float, momentum: float) -> Vector:
    """The global values after a step of SGD with Nesterov momentum, as torch has it; `buffer` is changed.

    Args:
        mean: of the members' values, which is the global value minus `gradient`.
        gradient: global value minus mean: what the members have learned, with the sign of a gradient.

    The new value is mean + (1 - rate) * gradient - rate * momentum * buffer. In this form a rate of 1 without momentum
    gives the mean itself, to the bit.
    """
    with np.errstate(all="ignore"):  # a run that diverges has infinities, which are values like others
        np.multiply(buffer, np.float32(momentum), out=buffer)
        np.add(buffer, gradient, out=buffer)
        stepped: Vector = mean + gradient * np.float32(1.0 - rate)
        stepped -= buffer * np.float32(rate * momentum)
    return stepped


def norm(values: Vector) -> float:
    """The Euclidean norm, the same on every machine."""
    wide = values.astype(np.float64)  # so nothing overflows
    return float(np.sqrt(np.add.reduce(wide * wide)))


def unit(values: Vector) -> Vector:
    """`values` at norm 1; zeros stay zeros."""
    length = norm(values)
    return values / np.float32(length) if length > 0 else np.zeros_like(values)


def radial_directional(direction: Vector, length: float, weight: float) -> Vector:
    """The merge of several members' changes v of one tensor, with weights w (Decoupled DiLoCo, arXiv 2604.21428).

    Changes of members that train apart are nearly orthogonal, so the norm of their mean falls with their number. This
    one has the mean norm in the mean direction. Where no direction is left, there is no change.

    Args:
        direction: the sum of w * unit(v).
        length: the sum of w * norm(v).
        weight: the sum of w.
    """
    return unit(direction) * np.float32(length / weight) if weight > 0 else np.zeros_like(direction)


def weighted_mean(total: Vector, weight: float) -> Vector:
    """The sum of w * v by the sum of w."""
    return total / np.float32(weight) if weight > 0 else np.zeros_like(total)
