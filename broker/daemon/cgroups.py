"""The cgroups into which programs are put that know nothing of us: one a class, below one directory of the v2 mount.

Each network namespace has a directory of its own, so that two brokers on one machine (a lab, a
container) do not share, or remove, each other's. Classification itself is `shaping`'s.
"""

from __future__ import annotations

import contextlib
import os

from broker.policy import CLASS_NAMES
from hive_qos.errors import KernelRejectedError, PrivilegeError

_BASE = "hive-qos"
_LIMITS_INHERITED = ("memory.max", "cpu.max")
_LIMITS = (*_LIMITS_INHERITED, "pids.max")


def mount_point() -> str | None:
    """Where cgroup v2 is mounted (not at the top of /sys/fs/cgroup on hybrid hosts), None where it is not."""
    with open("/proc/self/mountinfo", encoding="utf-8") as mounts:
        for line in mounts:
            before, _, after = line.partition(" - ")
            if after.startswith("cgroup2 "):
                return before.split()[4].replace("\\040", " ")
    return None


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
    """Make the cgroups of all classes. Harmless when they are there.

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
    path = os.path.join(mount, dict(class_paths())[traffic_class], "cgroup.procs")
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


def limits_of(mount: str, *, pid: int, proc: str = "/proc") -> tuple[str, ...]:
    """The limits that a process would leave with its cgroup, each as "file = value (cgroup)".

    Memory and CPU count in its cgroup and in all above it; the number of processes in its own alone, because systemd
    sets one for every user.

    Raises:
        OSError: its cgroup cannot be read.
    """
    with open(f"{proc}/{pid}/cgroup", encoding="utf-8") as file:
        own = next((line[3:].rstrip("\n") for line in file if line.startswith("0::")), "/")
    parts = [part for part in own.split("/") if part]
    if ".." in parts:  # outside of our cgroup namespace: nothing there can be read
        return (f"a cgroup that cannot be seen from here ({own})",)
    found = []
    for depth in range(len(parts), 0, -1):
        place = "/".join(parts[:depth])
        for name in _LIMITS if depth == len(parts) else _LIMITS_INHERITED:
            with contextlib.suppress(FileNotFoundError):  # the controller is not in use there
                with open(os.path.join(mount, place, name), encoding="ascii") as file:
                    value = file.read().strip()
                if not value.startswith("max"):
                    found.append(f"{name} = {value} (/{place})")
    return tuple(found)


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
