"""Going before other programs on the processor, within bounds: what is decided late is decided for nothing.

A hold has to stand a few milliseconds after a burst was announced, which is when training begins to encrypt on every
core. An ordinary thread that wakes then waits for its turn, once in the engine, once in the loop, on both hosts.

So the daemon and its watchdog run in SCHED_RR at the lowest real-time priority, 1 (sched(7)): before every ordinary
thread, behind everything else of real time. What keeps that from starving the host:

- They sleep nearly all the time. A thread that has not slept for `SPELL_S` is hanging: the kernel sends SIGXCPU
  (RLIMIT_RTTIME), and all threads of the process run like everybody else's from then on. One that goes on for
  `SPELL_S_MAX` in spite of that is killed, and the watchdog opens the ceilings.
- Strangers' packets are answered before any certificate is seen, so they could have a thread work on and on with short
  sleeps. What the daemon uses is counted (`spent_s`), and over a budget it loses it, too (`daemon.rt_budget`).
- The kernel leaves ordinary threads a twentieth of each second, unless somebody has set sched_rt_runtime_us to -1.
- Threads that answer requests do not have it (`give_up`): who asks for the status all day costs his own time. They run
  in SCHED_BATCH, which who they start inherits: so they are told apart from those that have only lost it.

Where SCHED_RR is not allowed, niceness -10 is tried; it counts among the programs of a control group (and, with
sched_autogroup_enabled, of a session) alone, so it is worth little. Standard library only, as the watchdog has to be.
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
"""The lowest of SCHED_RR: before ordinary programs, after whatever else an operator made real-time (sched(7))."""
NICENESS = -10
"""Of its session's group, where the kernel weighs these (autogroup, sched(7)): nine times an ordinary one."""
SPELL_S, SPELL_S_MAX = 0.5, 2.0
"""A tick takes milliseconds, a reload tens of them, a start of Python a few hundred."""
SWITCH_S = 0.0003
"""How long who answers a request keeps the interpreter from who decides; Python's own is 5 ms."""
_SPELLS = int(SPELL_S * 1e6), int(SPELL_S_MAX * 1e6)  # RLIMIT_RTTIME counts microseconds
_TICKS_PER_S = os.sysconf("SC_CLK_TCK")
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
        resource.setrlimit(resource.RLIMIT_RTTIME, _SPELLS)
        os.sched_setscheduler(0, os.SCHED_RR, os.sched_param(PRIORITY))
    except (OSError, ValueError) as problem:
        return _be_nice(str(problem))
    return None


def give_up() -> None:
    """Let this thread, and those that it starts from now on, run behind everybody else's, for good."""
    os.sched_setscheduler(0, os.SCHED_BATCH, os.sched_param(0))


def give_up_all() -> None:
    """Let all threads of this process run like everybody else's, until `take_again`."""
    for thread in _rt_budget():
        with contextlib.suppress(OSError):  # it has ended
            os.sched_setscheduler(thread, os.SCHED_OTHER, os.sched_param(0))


def take_again() -> None:
    """Let all threads go before ordinary ones again that have not given that up themselves. In the main thread.

    Raises:
        OSError, ValueError: it is not allowed any more.
    """
    resource.setrlimit(resource.RLIMIT_RTTIME, _SPELLS)  # the kernel adds a second to it with each SIGXCPU
    for thread in _rt_budget():
        with contextlib.suppress(ProcessLookupError):
            os.sched_setscheduler(thread, os.SCHED_RR, os.sched_param(PRIORITY))


def spent_s() -> dict[int, float]:
    """Processor time of each thread that goes before ordinary ones, or has only lost that; by thread, in seconds."""
    found = {}
    for thread in _rt_budget():
        with contextlib.suppress(OSError), open(f"/proc/self/task/{thread}/stat", encoding="ascii") as file:
            # proc_pid_stat(5): behind the name, which may hold anything, the 14th and 15th field are the 12th and 13th
            fields = file.read().rpartition(")")[2].split()
            found[thread] = (int(fields[11]) + int(fields[12])) / _TICKS_PER_S
    return found


def _rt_budget() -> list[int]:
    """This process' threads without those that answer requests."""
    found = []
    for thread in map(int, os.listdir("/proc/self/task")):
        with contextlib.suppress(OSError):  # it has ended
            if os.sched_getscheduler(thread) != os.SCHED_BATCH:
                found.append(thread)
    return found


def is_taken() -> bool:
    """Whether this thread goes before ordinary ones."""
    return os.sched_getscheduler(0) == os.SCHED_RR


@contextlib.contextmanager
def suspended() -> Iterator[None]:
    """For what this thread starts that is not to inherit it: a program that begins takes longer than a spell."""
    if not is_taken():
        yield
        return
    os.sched_setscheduler(0, os.SCHED_OTHER, os.sched_param(0))
    try:
        yield
    finally:
        with contextlib.suppress(OSError):  # not allowed any more: whoever looks will see it
            os.sched_setscheduler(0, os.SCHED_RR, os.sched_param(PRIORITY))


def _be_nice(why: str) -> str:
    try:
        os.setpriority(os.PRIO_PROCESS, 0, NICENESS)
    except OSError:
        return f"neither real-time scheduling nor niceness {NICENESS} is allowed ({why}): it needs {_NEEDS}"
    with contextlib.suppress(OSError), open(_AUTOGROUP, "w", encoding="ascii") as file:
        file.write(str(NICENESS))
    return f"niceness {NICENESS} instead of real-time scheduling, which is not allowed ({why}): it needs {_NEEDS}"
