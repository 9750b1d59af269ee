"""Processor priority of the daemon and its watchdog, so that a hold is not late on a busy host.

A hold has to be ready a few milliseconds after a burst was announced, and training encrypts on every core then. On a
saturated host it was ready after 35 to 64 ms with ordinary priority, after 9 to 13 ms with niceness -10
(docs/log/ablations.md).

Niceness counts among the programs of one control group; with autogroups, of one session (sched(7)). So the service has
a weight and a quota of its own (systemd/hive-qos.service), and a daemon that leads its session raises its autogroup.
Threads that answer requests run at ordinary priority: who asks for the status all day should not delay others.
Standard library only, as the watchdog has to be.
"""

from __future__ import annotations

import contextlib
import os
import sys

NICENESS = -10
"""Nine times the weight of an ordinary program: it wakes soon, and cannot starve one."""
SWITCH_S = 0.0003
"""How long a thread that answers a request keeps the interpreter from the loop; Python's own is 5 ms."""
_AUTOGROUP = "/proc/self/autogroup"


def take() -> str | None:
    """Raise the priority of this thread, and of threads and programs that it starts from now on.

    Returns:
        Why that is not allowed; None where it is done.
    """
    sys.setswitchinterval(SWITCH_S)
    try:
        if os.getpriority(os.PRIO_PROCESS, 0) > NICENESS:
            os.setpriority(os.PRIO_PROCESS, 0, NICENESS)
    except OSError as problem:
        return f"niceness {NICENESS}: {problem.strerror}; it needs CAP_SYS_NICE, or Nice={NICENESS} in its unit"
    if os.getsid(0) == os.getpid():
        with contextlib.suppress(OSError), open(_AUTOGROUP, "w", encoding="ascii") as file:
            file.write(str(NICENESS))
    return None


def give_up() -> None:
    """Run this thread, and those that it starts from now on, at ordinary priority."""
    if os.getpriority(os.PRIO_PROCESS, 0) < 0:
        os.setpriority(os.PRIO_PROCESS, 0, 0)
