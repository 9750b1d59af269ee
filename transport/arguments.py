"""What callers pass, held against what it has to be before anything begins: else an error comes later, elsewhere."""

from __future__ import annotations

import math

from hive_qos.errors import MisuseError


def is_index(value: object, size: int) -> bool:
    """Whether it is a whole number, also one of numpy's, from 0 to `size` - 1."""
    return hasattr(value, "__index__") and 0 <= value.__index__() < size


def check_rank(rank: object, *, group: str, size: int) -> None:
    """Raises: MisuseError: it is no rank of a group of that size."""
    if not is_index(rank, size):
        raise MisuseError(f"group {group} has ranks 0 to {size - 1}, not {rank!r}")


def check_count(name: str, value: object) -> None:
    """Raises: MisuseError: it is no whole number from 1."""
    if not hasattr(value, "__index__") or value.__index__() < 1:
        raise MisuseError(f"{name} is {value!r}: it is a whole number, at least 1")


def check_seconds(name: str, value: object) -> None:
    """Raises: MisuseError: it is no time that passes: a number from 0, also infinity, and not NaN."""
    if not (isinstance(value, int | float) and not math.isnan(value) and value >= 0):
        raise MisuseError(f"{name} is {value!r}: it is a number of seconds, at least 0")
