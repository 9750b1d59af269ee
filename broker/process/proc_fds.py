"""Which sockets a process holds, each with its inode (proc_pid_fd(5)). Standard library: the socket finder uses it.

A descriptor costs about 10 µs, so nobody asks without need. psutil's `net_connections` does not tell the inode, and
took 25 ms for 900 sockets where this took 9 ms.

Who may: the process' own user and root (CAP_SYS_PTRACE, and CAP_DAC_READ_SEARCH for `fd`). Without the second, `fdinfo`
says the same for twice the price (5.14).
"""

from __future__ import annotations

import os
import socket
from collections.abc import Iterator
from functools import cache


def sockets_of(pid: int) -> Iterator[tuple[int, int]]:
    """The descriptors of a process that are sockets, each with its inode. A process that ends meanwhile has none.

    Raises:
        PermissionError: we may not look into it.
    """
    try:
        with os.scandir(f"/proc/{pid}/fd") as entries:
            for entry in entries:
                try:
                    target = os.readlink(entry.path)
                except (FileNotFoundError, ProcessLookupError):
                    continue
                if target.startswith("socket:["):
                    yield int(entry.name), int(target[8:-1])
    except (FileNotFoundError, ProcessLookupError):
        return
    except PermissionError:
        yield from _by_fdinfo(pid)


def _by_fdinfo(pid: int) -> Iterator[tuple[int, int]]:
    try:
        with os.scandir(f"/proc/{pid}/fdinfo") as entries:
            for entry in entries:
                fields = _fields(entry.path)
                if fields.get("mnt_id") == _socket_mount() and fields.get("ino", "").isdecimal():
                    yield int(entry.name), int(fields["ino"])
    except (FileNotFoundError, ProcessLookupError):
        return


def _fields(path: str) -> dict[str, str]:
    try:
        with open(path, encoding="ascii", errors="replace") as file:
            lines = [line.partition(":") for line in file.read(1024).splitlines()]
    except (FileNotFoundError, ProcessLookupError):
        return {}
    return {key: value.strip() for key, _, value in lines}


@cache
def _socket_mount() -> str | None:
    """All sockets are on one mount of the kernel's own: it tells their inode numbers from those of files."""
    with socket.socket(socket.AF_UNIX) as probe:
        return _fields(f"/proc/self/fdinfo/{probe.fileno()}").get("mnt_id")
