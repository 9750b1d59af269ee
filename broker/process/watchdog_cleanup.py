"""Watchdogs that a dead daemon has left in this network namespace, and that hang: found by what they hold, ended."""

from __future__ import annotations

import contextlib
import os
import select
import signal
from collections.abc import Set

from broker.process.proc_fds import processes, sockets_of

MODULE = "broker.process.watchdog"
_END_MS = 2000
"""Who is killed is gone in milliseconds, unless the machine stands still."""


def end_all(inodes: Set[int]) -> None:
    """Kill every watchdog of ours that holds one of these sockets. For whoever is sure that no daemon holds them."""
    for pid in processes():
        with contextlib.suppress(OSError):  # it ended meanwhile, or is another user's
            process = os.pidfd_open(pid)
            try:
                if _is_watchdog(pid) and holds(pid, inodes):
                    signal.pidfd_send_signal(process, signal.SIGKILL)
                    poll = select.poll()
                    poll.register(process, select.POLLIN)
                    poll.poll(_END_MS)
            finally:
                os.close(process)


def holds(pid: int, inodes: Set[int]) -> bool:
    """Whether a process has a descriptor of one of these sockets.

    Raises:
        PermissionError: we may not look into it.
    """
    return any(inode in inodes for _, inode in sockets_of(pid))


def _is_watchdog(pid: int) -> bool:
    with open(f"/proc/{pid}/cmdline", "rb") as file:
        words = file.read().split(b"\0")
    return MODULE.encode() in words and os.stat(f"/proc/{pid}").st_uid == os.geteuid()
