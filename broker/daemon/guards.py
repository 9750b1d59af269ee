"""Guards that a dead daemon has left in this network namespace, and that hang: found by their command line, ended."""

from __future__ import annotations

import contextlib
import os
import select
import signal

MODULE = "broker.guard"
_END_MS = 2000
"""Who is killed is gone in milliseconds, unless the machine stands still."""


def end_all(namespace: str) -> None:
    """Kill every guard of ours in a network namespace. For whoever is sure that no daemon lives there.

    Args:
        namespace: its file, as `/proc/self/ns/net`.
    """
    here = os.stat(namespace)
    for pid in (int(name) for name in os.listdir("/proc") if name.isdigit()):
        with contextlib.suppress(OSError):  # it ended meanwhile, or is another user's
            process = os.pidfd_open(pid)
            try:
                if _is_guard(pid, here):
                    signal.pidfd_send_signal(process, signal.SIGKILL)
                    poll = select.poll()
                    poll.register(process, select.POLLIN)
                    poll.poll(_END_MS)
            finally:
                os.close(process)


def _is_guard(pid: int, namespace: os.stat_result) -> bool:
    with open(f"/proc/{pid}/cmdline", "rb") as file:
        words = file.read().split(b"\0")
    there = os.stat(f"/proc/{pid}/ns/net")
    return (
        MODULE.encode() in words
        and (there.st_dev, there.st_ino) == (namespace.st_dev, namespace.st_ino)
        and os.stat(f"/proc/{pid}").st_uid == os.geteuid()
    )
