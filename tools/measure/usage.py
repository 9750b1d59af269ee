"""CPU seconds of each program of a run, so that it shows who had the machine."""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Mapping

import psutil


def cpu_seconds(groups: Mapping[str, Iterable[int]]) -> dict[str, float]:
    """User and system time so far of each group's processes, their living and their ended children included.

    Children that ended count as soon as their parent has waited for them; processes that are gone count nothing.
    """
    return {name: sum(_with_children(pid) for pid in pids) for name, pids in groups.items()}


def relays() -> list[int]:
    """The lab's relay, a child of this process where links have a delay and the kernel has no netem."""
    found = []
    for child in psutil.Process().children():
        with contextlib.suppress(psutil.Error):
            if any("relay" in word for word in child.cmdline()):
                found.append(child.pid)
    return found


def _with_children(pid: int) -> float:
    total = 0.0
    with contextlib.suppress(psutil.Error):
        process = psutil.Process(pid)
        for each in (process, *process.children(recursive=True)):
            with contextlib.suppress(psutil.Error):
                times = each.cpu_times()
                total += times.user + times.system + times.children_user + times.children_system
    return total
