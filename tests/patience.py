"""How tests wait and measure on a machine that stands still for a second now and then.

Noise only ever makes things late or slow. So what must come is waited for by looking again, with a limit that no stall
reaches; and a figure that noise can spoil is measured in windows until one is good, because a defect spoils them all.
What noise cannot do (a link faster than its rate, a lost packet, another order) is asserted at once and every time.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from typing import TypeVar

T = TypeVar("T")
LIMIT_S = 30.0 * float(os.environ.get("HIVE_TEST_PATIENCE", "1"))
"""For what must come: longer than any stall, shorter than what pytest gives a test (120 s). An emulated machine, on
which Python is 15 times slower, has more of both (`tools/kernels.sh`)."""


def wait_until(
    condition: Callable[[], T],
    *,
    what: Callable[[], object] = lambda: "it never came",
    limit_s: float = LIMIT_S,
    pause_s: float = 0.01,
) -> T:
    """Look again and again until `condition` gives something true, and give that; fail with `what` at the limit."""
    until_s = time.monotonic() + limit_s
    while not (found := condition()):
        assert time.monotonic() < until_s, what()
        time.sleep(pause_s)
    return found


def best_of(
    measure: Callable[[], T], good: Callable[[T], bool], *, windows: int = 10, limit_s: float = 2 * LIMIT_S
) -> T:
    """Measure until a window is good, and give that one; fail with all that was seen.

    Args:
        windows: at most so many, and none begins after `limit_s`.
    """
    seen: list[T] = []
    until_s = time.monotonic() + limit_s
    while len(seen) < windows and time.monotonic() < until_s:
        seen.append(measure())
        if good(seen[-1]):
            return seen[-1]
    raise AssertionError(f"none of {len(seen)} windows is good: {seen}")
