"""Going before other programs on the processor, within bounds: what is decided late is decided for nothing.

A hold has to stand a few milliseconds after a burst was announced, which is when training begins to encrypt on every
core. An ordinary thread that wakes then waits for its turn, once in the engine, once in the loop, on both hosts.

So the daemon and its guard run in SCHED_RR at the lowest real-time priority, 1 (sched(7)): before every ordinary
thread, behind everything else of real time. What keeps that from starving the host:

- They sleep nearly all the time. A thread that has not slept for `SPELL_S` is hanging: the kernel sends SIGXCPU
  (RLIMIT_RTTIME), and all threads of the process run like everybody else's from then on. One that goes on for
  `SPELL_S_MAX` in spite of that is killed, and the guard opens the ceilings.
- The kernel leaves ordinary threads a twentieth of each second whatever happens (sched_rt_runtime_us, fair_server).
- Threads that answer requests do not have it (`give_up`): who asks for the status all day costs his own time.

Where SCHED_RR is not allowed, niceness -10 is tried; it counts among the programs of a control group (and, with
sched_autogroup_enabled, of a session) alone, so it is worth little. Standard library only, as the guard has to be.
"""

from __future__ import annotations

import contextlib
import os
import resource
import signal
import sys
import threading
from collections.abc import Iterator

PRIORITY = 1
NICENESS = -10
SPELL_S, SPELL_S_MAX = 0.5, 2.0
"""A tick takes milliseconds, a reload tens of them, a start of Python a few hundred."""
SWITCH_S = 0.001
"""How long who answers a request keeps the interpreter from who decides; Python's own is 5 ms."""
_AUTOGROUP = "/proc/self/autogroup"
_NEEDS = "CAP_SYS_NICE, or LimitRTPRIO=1 in its unit"


def take() -> str | None:
    """Let this thread, and those that it starts from now on, go before ordinary ones.

    In the main thread the bound is put in force as well; in another one nothing is done without it.

    Returns:
        Why it is not so, or only half; None where it is.
    """
    if threading.current_thread() is not threading.main_thread():
        return "not the main thread, so nothing would take the precedence back from a thread that hangs"
    sys.setswitchinterval(SWITCH_S)
    signal.signal(signal.SIGXCPU, lambda *_: give_up_all())
    try:
        resource.setrlimit(resource.RLIMIT_RTTIME, (int(SPELL_S * 1e6), int(SPELL_S_MAX * 1e6)))
        os.sched_setscheduler(0, os.SCHED_RR, os.sched_param(PRIORITY))
    except (OSError, ValueError) as problem:
        return _be_nice(str(problem))
    return None


def give_up() -> None:
    """Let this thread, and those that it starts from now on, run like everybody else's."""
    if is_taken():
        os.sched_setscheduler(0, os.SCHED_OTHER, os.sched_param(0))


def give_up_all() -> None:
    """The same for all threads of this process."""
    for name in os.listdir("/proc/self/task"):
        with contextlib.suppress(OSError):  # it has ended
            os.sched_setscheduler(int(name), os.SCHED_OTHER, os.sched_param(0))


def is_taken() -> bool:
    """Whether this thread goes before ordinary ones."""
    return os.sched_getscheduler(0) == os.SCHED_RR


@contextlib.contextmanager
def suspended() -> Iterator[None]:
    """For what this thread starts that is not to inherit it: a program that begins takes longer than a spell."""
    if not is_taken():
        yield
        return
    give_up()
    try:
        yield
    finally:
        os.sched_setscheduler(0, os.SCHED_RR, os.sched_param(PRIORITY))


def _be_nice(why: str) -> str:
    try:
        os.setpriority(os.PRIO_PROCESS, 0, NICENESS)
    except OSError:
        return f"neither real-time scheduling nor niceness {NICENESS} is allowed ({why}): it needs {_NEEDS}"
    with contextlib.suppress(OSError), open(_AUTOGROUP, "w", encoding="ascii") as file:
        file.write(str(NICENESS))
    return f"niceness {NICENESS} instead of real-time scheduling, which is not allowed ({why}): it needs {_NEEDS}"
