"""Waiting for an event in such a way that a signal is never lost."""

from __future__ import annotations

import threading
import time

SLICE_S = 0.5
"""Longest wait in one go. A signal that arrives just before a thread blocks is noticed only when it next runs: without
slices a Ctrl-C at that moment would be lost until the wait ends."""


def wait_until(event: threading.Event, give_up_s: float) -> bool:
    """Wait for `event` until `give_up_s` of the monotonic clock (infinity for ever); whether it was set."""
    while not event.wait(min(max(give_up_s - time.monotonic(), 0.0), SLICE_S)):
        if time.monotonic() >= give_up_s:
            return False
    return True
