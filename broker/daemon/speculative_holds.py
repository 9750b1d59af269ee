"""Asks other brokers the moment that a burst is announced, for what the last decision made ready.

The decision follows at once, and has the last word. A burst that was asked for ahead is seen by it, whatever its
program does meanwhile: who takes an announcement back at once is judged like everybody (`broker.law.bursts.credit`).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from broker.law.reading import COUNTERS_STALE_S
from broker.model.leases import Hold, PreparedHolds

READY_S_MAX = COUNTERS_STALE_S
"""As old as counters may be that a decision believes."""


class AskingAhead:
    """For the loop's thread.

    Args:
        ask: tells all that is wanted of others from now on.
        clock: monotonic seconds.
    """

    def __init__(self, ask: Callable[[Sequence[Hold]], None], *, clock: Callable[[], float]) -> None:
        self._ask, self._clock = ask, clock
        self._ready: Sequence[PreparedHolds] = ()
        self._made_s = float("-inf")

    def know(self, ready: Sequence[PreparedHolds], *, made_s: float) -> None:
        """Take in what a decision made ready; what the one before did is over."""
        self._ready, self._made_s = ready, made_s

    def announced(self, uid: int, job: str, bytes_by_interface: Mapping[str, int]) -> bool:
        """A burst begins; whether somebody was asked because of it.

        Args:
            uid: whose it is.
            bytes_by_interface: what it announces.
        """
        for one in self._ready:
            enough = bytes_by_interface.get(one.interface, 0) >= one.bytes_min
            if (one.uid, one.job) == (uid, job) and enough and self._clock() - self._made_s <= READY_S_MAX:
                self._ready = ()  # what comes next has the decision before it
                self._ask(one.holds)
                return True
        return False
