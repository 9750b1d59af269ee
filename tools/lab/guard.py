"""The guard process: waits until a lab's owner is dead, however it died, and takes the lab down.

`python -m tools.lab.guard ID OWNER_PID`, in a session of its own, so that Ctrl-C does not reach it. A detached lab
(`hive-lab up`) has the guard itself as its owner. SIGTERM makes the guard take the lab down at once. Who takes down a
lab of which nothing can be read does not know its guard: so the guard of a detached lab ends with what is written, too.
"""

from __future__ import annotations

import os
import select
import signal
import sys
import time

from tools.lab import state
from tools.lab.kernel import LabError

_SETTLE_S = 0.1
_LOOK_AGAIN_S = 1.0
_READ_AGAIN_S = 0.1
_READS_MAX = 10
"""Somebody may just be writing the state; one that cannot be read for a second never will."""


class _Asked(BaseException):
    """SIGTERM came."""


def main() -> None:
    """Wait and take down; ends when the lab is gone."""
    lab_id, owner_pid = sys.argv[1], int(sys.argv[2])
    signal.signal(signal.SIGTERM, _ask)
    try:
        _wait_for_end_of(owner_pid)
        now = _state_of(lab_id)
        if now is not None and now.owner.pid == os.getpid():
            _wait_for_end_of_what_is_written(lab_id)
    except _Asked:
        pass
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    # A command that the owner had started when it died may still be making something: before the first, or after it.
    time.sleep(_SETTLE_S)
    state.tear_down(lab_id)
    time.sleep(_SETTLE_S)
    state.tear_down(lab_id)


def _wait_for_end_of(pid: int) -> None:
    try:
        fd = os.pidfd_open(pid)
    except ProcessLookupError:
        return
    try:
        # The number may have been given away before the descriptor was there: then we are nobody's child any more.
        if os.getppid() == pid:
            select.select([fd], (), ())
    finally:
        os.close(fd)


def _wait_for_end_of_what_is_written(lab_id: str) -> None:
    while os.path.exists(state.directory_of(lab_id)):
        time.sleep(_LOOK_AGAIN_S)


def _state_of(lab_id: str) -> state.LabState | None:
    """What is written about the lab; None where it is gone, or stays unreadable: then only its id is left to go by."""
    for left in reversed(range(_READS_MAX)):
        try:
            return state.read(lab_id)
        except LabError:
            if left:
                time.sleep(_READ_AGAIN_S)
    return None


def _ask(*_: object) -> None:
    raise _Asked


if __name__ == "__main__":
    main()
