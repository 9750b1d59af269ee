"""How the load's programs end: with their standard input, so that none outlives its controller, or with their time."""

from __future__ import annotations

import os
import sys
import time

SECONDS_MAX = 3600.0
"""Longer than any scenario may take (`settings.Settings`): 40 minutes until its last block begins, and that block. With
15 minutes the receiver's sink ended in the fourth round of five."""


class Ending:
    """When this program is to end.

    Args:
        seconds_max: it ends after so long in any case.
    """

    def __init__(self, seconds_max: float) -> None:
        self.descriptor = sys.stdin.fileno()
        self._due_s = time.monotonic() + seconds_max

    @property
    def in_time(self) -> bool:
        """Whether there is time left."""
        return time.monotonic() < self._due_s

    def closed(self) -> bool:
        """Whether standard input has ended; to be asked when it can be read."""
        return not os.read(self.descriptor, 4096)
