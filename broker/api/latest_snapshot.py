"""Share one snapshot among readers; the loop makes it when a reader asks for it, and once a second besides.

A snapshot costs a tenth of a tick, and most ticks have no reader. Only the loop may read what is shown, so a reader
wakes it. Where the loop does not answer in time, the reader gets the last snapshot, and none from a loop that hangs.
All readers share one that is at most `SHARED_S` old: they wake the loop ten times a second at most.
"""

from __future__ import annotations

import threading
from collections.abc import Callable

from broker.api.documents.snapshot import Snapshot

WAIT_S = 0.5
"""A tick takes milliseconds."""
HANGS_S = 10.0
"""A loop that has shown nothing for so long hangs: an idle one ticks once a second."""
NOTHING = f"no decision yet, or none for {HANGS_S:g} s: then the broker hangs, and its log says more"
"""Why there is no snapshot."""
SHOW_S = 1.0
"""How often a snapshot is made without a request: while the loop hangs, readers get nothing older."""
SHARED_S = 0.1
"""A tick: what is shown is as old as that anyway."""


class LatestSnapshot:
    """Between the loop's thread and those that ask.

    Args:
        wake: wakes the loop; safe in any thread.
        clock: the loop's.
    """

    def __init__(self, wake: Callable[[], None], *, clock: Callable[[], float]) -> None:
        self._wake, self._clock = wake, clock
        self._changed = threading.Condition()
        self._snapshot: Snapshot | None = None
        self._outdated, self._wanted, self._shared = False, False, False
        self._shown_s = float("-inf")

    @property
    def last(self) -> Snapshot | None:
        """What was shown last, None before the first."""
        return self._snapshot

    def due(self, *, now_s: float) -> bool:
        """For the loop: whether to show what holds now."""
        return self._outdated and (self._wanted or not self._shared or now_s - self._shown_s >= SHOW_S)

    def outdate(self) -> None:
        """For the loop: there is a new decision, which no reader has seen."""
        self._outdated = True

    def invalidate(self) -> None:
        """For the loop: stop sharing the last snapshot, so that the next reader gets the next one."""
        self._outdated, self._shared = True, False

    def show(self, snapshot: Snapshot, *, now_s: float) -> None:
        """For the loop: this is what holds now."""
        with self._changed:
            self._snapshot, self._shown_s, self._shared = snapshot, now_s, True
            self._outdated = self._wanted = False
            self._changed.notify_all()

    @property
    def current(self) -> Snapshot | None:
        """What was shown last, None before the first and where the loop hangs."""
        return self._snapshot if self._clock() - self._shown_s < HANGS_S else None

    def ask(self) -> Snapshot | None:
        """For any other thread: what holds now, or held a tick ago; None as of `current`."""
        with self._changed:
            age_s = self._clock() - self._shown_s
            if (self._outdated and (not self._shared or age_s >= SHARED_S)) or age_s >= HANGS_S:
                self._wanted = True
                self._wake()
                self._changed.wait_for(lambda: not self._wanted, WAIT_S)
            return self.current
