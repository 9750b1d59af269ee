"""The last results of a pure function, by the identity of what it was made of.

What a policy comes to at a capacity is asked for in every tick, and changes when either does. To compare policies by
value would take as long as to work it out anew; the one that is in force is the same object from tick to tick.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import wraps
from typing import TypeVar

Of = TypeVar("Of")
Result = TypeVar("Result")

REMEMBERED_MAX = 32
"""Both ways of sixteen interfaces, each with its capacity."""


def remembered(function: Callable[[Of, int], Result]) -> Callable[[Of, int], Result]:
    """Remember what a function of a frozen value and a rate gave, while the very same value is passed in."""
    known: dict[tuple[int, int], tuple[Of, Result]] = {}

    @wraps(function)
    def ask(of: Of, rate_bits_per_s: int) -> Result:
        key = (id(of), rate_bits_per_s)
        found = known.get(key)
        if found is not None and found[0] is of:
            return found[1]
        result = function(of, rate_bits_per_s)
        if len(known) >= REMEMBERED_MAX:
            known.clear()
        known[key] = (of, result)  # which keeps `of`, so that nothing else gets its number
        return result

    return ask
