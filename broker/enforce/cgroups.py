"""The cgroups into which programs are put that know nothing of us: one a class, below one directory of the v2 mount.

Each network namespace has a directory of its own, so that two brokers on one machine (a lab, a
container) do not share, or remove, each other's. Classification itself is `shaping`'s.
"""

from __future__ import annotations

import contextlib
import os
import re
from collections.abc import Iterator
from pathlib import Path

from broker.policy.types import CLASS_NAMES
from hive_qos.errors import KernelRejectedError, PrivilegeError
from hive_qos.text import printable
from shaping.classify.cgroup import find_mount, programs_of_others

_BASE = "hive-qos"
_NO_LIMIT = re.compile(r"(max( \d+)?|\S+( (\S+=)?max)+)?")
"""A line of a file *.max or *.high that limits nothing: `max`, `max 100000` (cpu), `8:0 rbps=max wbps=max` (io)."""
_SETTINGS = {"cpu.idle": "0", "cpuset.cpus": "", "cpuset.mems": "", "io.prio.class": "no-change"}
"""Other files that limit, each with what it says where it does not (Documentation/admin-guide/cgroup-v2.rst)."""
_WEIGHTS, _WEIGHT = ("cpu.weight", "io.weight", "io.bfq.weight"), 100
"""A process with more than the usual weight leaves no limit behind."""
_TASKS = "pids.max"
"""Counts in the process' own cgroup alone: systemd sets one for every user. Classes have one, too."""
_TASKS_PART = 8
"""A class may have an eighth of the host's tasks. systemd gives each service 15 %, and each program of a desktop: who
enters a class from there, or from a cron job, is freed of nothing. Somebody's smaller limit still counts."""


def mount_point() -> str | None:
    """Where cgroup v2 is mounted, None where it is not."""
    found = find_mount()
    return None if found is None else str(found)


def base_name() -> str:
    """Our directory below the mount: `hive-qos-` and the number of our network namespace.

    The host's own has its number there, too: a service without root's powers may not look which one process 1 is in,
    and a guess would let two brokers remove each other's.
    """
    return f"{_BASE}-{os.stat('/proc/self/ns/net').st_ino}"


def class_paths() -> tuple[tuple[str, str], ...]:
    """Each class with its cgroup, a path below the mount."""
    base = base_name()
    return tuple((name, f"{base}/{name}") for name in CLASS_NAMES)


def make(mount: str) -> None:
    """Make the cgroups of all classes, and bound their tasks where the host can. Harmless when they are there.

    Raises:
        PrivilegeError: we may not.
        KernelRejectedError: the kernel does not want another cgroup.
    """
    for _, path in class_paths():
        try:
            os.makedirs(os.path.join(mount, path), exist_ok=True)
        except PermissionError as problem:
            raise PrivilegeError(f"cannot make the cgroup {path}: {problem.strerror}") from problem
        except OSError as problem:
            raise KernelRejectedError(f"make cgroup {path}", errno_value=problem.errno or 0) from problem
    with contextlib.suppress(OSError, ValueError):  # without that controller in v2, limits of tasks keep processes out
        _set(os.path.join(mount, base_name(), "cgroup.subtree_control"), "+pids")
        for _, path in class_paths():
            _set(os.path.join(mount, path, _TASKS), str(_tasks_max()))


def _set(path: str, value: str) -> None:
    """Write into a file of the kernel's; none is made where there is none."""
    descriptor = os.open(path, os.O_WRONLY | os.O_CLOEXEC)
    try:
        os.write(descriptor, value.encode())
    finally:
        os.close(descriptor)


def _tasks_max() -> int:
    limits = (Path("/proc/sys/kernel", name).read_text(encoding="ascii") for name in ("pid_max", "threads-max"))
    return min(map(int, limits)) // _TASKS_PART


def cgroup_path_of(mount: str, traffic_class: str) -> str:
    """The file that takes the numbers of processes into a class."""
    return os.path.join(mount, dict(class_paths())[traffic_class], "cgroup.procs")


def enter(mount: str, *, traffic_class: str, pid: int) -> bool:
    """Move one process, and whatever it starts from now on, into the cgroup of a class.

    Returns:
        Whether the cgroups had to be made again, because somebody had removed them.

    Raises:
        ValueError: a number that names no process; the kernel would take 0 for ourselves.
        PrivilegeError, KernelRejectedError: as `make`; the process stays where it is.
    """
    if pid <= 0:
        raise ValueError(f"{pid} is not the number of a process")
    path = cgroup_path_of(mount, traffic_class)
    made = not os.path.exists(path)
    if made:
        make(mount)
    try:
        with open(path, "w", encoding="ascii") as file:
            file.write(str(pid))
    except PermissionError as problem:
        raise PrivilegeError(f"cannot move process {pid} into {path}: {problem.strerror}") from problem
    except OSError as problem:
        raise KernelRejectedError(f"move process {pid} into {path}", errno_value=problem.errno or 0) from problem
    return made


def left_behind(mount: str, *, pid: int, traffic_class: str, proc: str = "/proc") -> tuple[str, ...]:
    """What holds a process now and would not in a class' cgroup: each limit as "file = value (cgroup)", and each BPF
    program, such as a filter of devices or of addresses. A limit of tasks that the class undercuts is none.

    A cgroup of a class is at the top: so the process' own counts, and all above it. A controller that is there and
    limits nothing, as delegation leaves it, does not.

    Raises:
        OSError: its cgroup cannot be read.
        PrivilegeError, KernelRejectedError: the programs cannot be looked at.
    """
    with open(f"{proc}/{pid}/cgroup", encoding="utf-8", errors="surrogateescape") as file:
        own = next((line[3:].rstrip("\n") for line in file if line.startswith("0::")), "/")
    parts = [part for part in own.split("/") if part]
    if ".." in parts:  # outside of our cgroup namespace: nothing there can be read
        return (f"a cgroup that cannot be seen from here ({own})",)
    tasks_max = _number_in(os.path.join(mount, dict(class_paths())[traffic_class], _TASKS))
    found = []
    for depth in range(len(parts), 0, -1):
        place = "/".join(parts[:depth])
        here = (
            *_limits_at(os.path.join(mount, place), own=depth == len(parts), tasks_max=tasks_max),
            *programs_of_others(Path(mount, place)),
        )
        found += [f"{what} (/{printable(place)})" for what in here]
    return tuple(found)


def _limits_at(directory: str, *, own: bool, tasks_max: int | None) -> Iterator[str]:
    for name in sorted(os.listdir(directory)):
        if name == _TASKS and not (own and _looser(os.path.join(directory, name), tasks_max)):
            continue
        if name in _SETTINGS or name in _WEIGHTS or name.endswith((".max", ".high")):
            with open(os.path.join(directory, name), encoding="ascii") as file:
                value = file.read().strip()
            if _limits(name, value):
                yield f"{name} = {value.replace(chr(10), ', ')}"


def _looser(path: str, tasks_max: int | None) -> bool:
    """Whether the class lets a process have more tasks than it may have now."""
    now = _number_in(path)
    return now is not None and (tasks_max is None or tasks_max > now)


def _number_in(path: str) -> int | None:
    """The limit that a file has; None where it is `max`, or there is none."""
    try:
        return int(Path(path).read_text(encoding="ascii"))
    except (OSError, ValueError):
        return None


def _limits(name: str, value: str) -> bool:
    if name in _SETTINGS:
        return value != _SETTINGS[name]
    if name in _WEIGHTS:
        return any(int(line.split()[-1]) < _WEIGHT for line in value.splitlines())
    return not all(map(_NO_LIMIT.fullmatch, value.splitlines()))


def remove(mount: str) -> tuple[str, ...]:
    """Remove the cgroups that are empty; returns those in which programs still run (they stay, without effect).

    Raises:
        PrivilegeError: they are not ours to remove.
    """
    busy = []
    for _, path in class_paths():
        try:
            os.rmdir(os.path.join(mount, path))
        except FileNotFoundError:
            continue
        except PermissionError as problem:
            raise PrivilegeError(f"cannot remove the cgroup {path}: {problem.strerror}") from problem
        except OSError:
            busy.append(path)
    if not busy:
        with contextlib.suppress(OSError):
            os.rmdir(os.path.join(mount, base_name()))
    return tuple(busy)
