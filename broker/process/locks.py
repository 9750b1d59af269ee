"""What a daemon holds alone: its directories, its network namespace, its lock file and its listening sockets."""

from __future__ import annotations

import contextlib
import fcntl
import os
import socket
import stat
import time
from collections.abc import Set
from typing import Self

import psutil

from broker.process.namespace_claim import NAME, Claim, claim, claims
from broker.process.proc_fds import sockets_of
from broker.process.watchdog import MODULE as WATCHDOG
from hive_qos.errors import BrokerRejectedError, ConfigurationError, PrivilegeError

WATCHDOG_S_MAX = 1.0
"""The watchdog of a dead daemon is done within milliseconds; longer on a machine that stands still, or it hangs."""
KILL_S_MAX = 2.0
"""A killed process is gone in milliseconds, unless the machine stands still."""

_RUN_AS_SERVICE = "run it as root or as the service does, or name another directory"
_BACKLOG = 64  # connections that wait to be accepted: as many as one user may have sessions
_PATH_BYTES_MAX = 107  # sun_path of unix(7), with its closing NUL


def directory(path: str, *, key: str, mode: int) -> None:
    """Make a directory, and be sure that we can write there and that nobody else can.

    Its contents are trusted: sockets by clients, the journal by a later start, which runs as root.

    Raises:
        PrivilegeError: we may not make it or write there.
        ConfigurationError: it cannot be made, or is somebody else's; names the key under which it is configured.
    """
    try:
        os.makedirs(os.path.dirname(path) or ".", mode=0o755, exist_ok=True)
        with contextlib.suppress(FileExistsError):
            os.mkdir(path, 0o700)
            os.chmod(path, mode)  # whatever the umask
        found = os.lstat(path)
    except PermissionError as problem:
        raise PrivilegeError(f"{key}: may not make {path}; {_RUN_AS_SERVICE}") from problem
    except OSError as problem:
        raise ConfigurationError(key, path, f"cannot be made: {problem.strerror}") from problem
    if not stat.S_ISDIR(found.st_mode):
        raise ConfigurationError(key, path, "is no directory (a link to one is not taken either)")
    if found.st_uid not in (0, os.geteuid()):
        raise ConfigurationError(key, path, f"belongs to user {found.st_uid}; it has to be root's or the broker's own")
    if found.st_mode & (stat.S_IWGRP | stat.S_IWOTH):
        raise ConfigurationError(
            key, path, f"others may write there (mode {found.st_mode & 0o7777:o}); name one of the broker's own"
        )
    if not os.access(path, os.W_OK | os.X_OK):
        raise PrivilegeError(f"{key}: may not write in {path}; {_RUN_AS_SERVICE}")


class NamespaceLock:
    """Held for the life of a daemon: one for each network namespace, whatever directories it was given.

    Two would shape the same interfaces, and the first to stop would take the other's tree away. Only root or our own
    user can make such a claim (`broker.process.namespace_claim`), and the kernel ends it with its last holder. The
    watchdog of a dead daemon holds it until it has opened the ceilings. We wait for that, and kill one that hangs.

    Two that start in the same moment see each other, and neither goes on.

    Raises:
        BrokerRejectedError: another process holds it.
        ShapingError: this kernel does not tell.
    """

    def __init__(self, name: str = NAME) -> None:
        self._sock = claim(name)
        try:
            others = self._others(name)
            until_s = time.monotonic() + WATCHDOG_S_MAX
            while others and not any(map(_lives, others)) and time.monotonic() < until_s:
                time.sleep(0.01)
                others = self._others(name)
            if others and not any(map(_lives, others)):
                _kill_watchdogs({one.inode for one in others})
                others = self._others(name)
            if others:
                who = "of another pid namespace" if others[0].pid is None else f"pid {others[0].pid}"
                raise BrokerRejectedError(
                    f"another broker ({who}, user {others[0].uid}) works in this network namespace; stop it first "
                    "(one broker shapes all interfaces of a namespace)"
                )
        except BaseException:
            self.close()
            raise

    def _others(self, name: str) -> list[Claim]:
        own = os.fstat(self._sock.fileno()).st_ino
        return [one for one in claims(name) if one.inode != own]

    def fileno(self) -> int:
        """The claim's socket, for a process that shall hold it with us."""
        return self._sock.fileno()

    def close(self) -> None:
        """Give the claim up, as far as it is ours."""
        self._sock.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def _lives(one: Claim) -> bool:
    """Whether the process that made a claim still holds it. Where we cannot look, it does."""
    try:
        return one.pid is None or _holds(one.pid, {one.inode})
    except PermissionError:
        return True


def _holds(pid: int, inodes: Set[int]) -> bool:
    """Whether a process has a descriptor of one of these sockets.

    Raises:
        PermissionError: we may not look into it.
    """
    return any(inode in inodes for _, inode in sockets_of(pid))


def _kill_watchdogs(inodes: Set[int]) -> None:
    """Kill every watchdog of ours that holds one of these sockets: no daemon holds them, so it hangs."""
    for process in psutil.process_iter():
        with contextlib.suppress(psutil.Error, OSError):  # it ended meanwhile, or is another user's
            ours = process.uids().effective == os.geteuid() and WATCHDOG in process.cmdline()
            if ours and _holds(process.pid, inodes):
                process.kill()
                process.wait(KILL_S_MAX)


class Lock:
    """Held for the life of a daemon: at most one for each directory, from whatever network namespace.

    An exclusive lock on a file that nobody else can open, which the kernel releases when the process dies. The file
    stays, so that one that waits and one that is new meet at the same file.

    Raises:
        BrokerRejectedError: another daemon holds it; names its pid.
        ConfigurationError: the lock file cannot be made.
    """

    def __init__(self, path: str) -> None:
        try:
            self._descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
            os.fchmod(self._descriptor, 0o600)  # who can open a file can lock it
        except OSError as problem:
            raise ConfigurationError("lock", path, f"cannot be opened: {problem.strerror}") from problem
        try:
            fcntl.flock(self._descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            holder = _holder(self._descriptor)
            self.close()
            raise BrokerRejectedError(f"another broker ({holder}) holds {path}; stop it first") from None

    def close(self) -> None:
        """Release the lock."""
        os.close(self._descriptor)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def _holder(descriptor: int) -> str:
    """Who has locked a file, from proc_locks(5); unknown when he is of another pid namespace."""
    found = os.fstat(descriptor)
    place = f"{os.major(found.st_dev):02x}:{os.minor(found.st_dev):02x}:{found.st_ino}"
    with open("/proc/locks", encoding="ascii") as locks:
        for line in locks:
            fields = line.split()
            if fields[1] == "FLOCK" and fields[5] == place:
                with contextlib.suppress(psutil.Error, ValueError):
                    return f"pid {fields[4]}, user {psutil.Process(int(fields[4])).uids().effective}"
    return "pid unknown"


def listen(path: str, *, kind: socket.SocketKind, mode: int, group: int | None) -> socket.socket:
    """Listen at a Unix socket; the lock makes sure that a socket file already there is a dead daemon's.

    Raises:
        ConfigurationError: the path is too long, or something else than a socket stands there, or it is not writable.
    """
    if len(os.fsencode(path)) > _PATH_BYTES_MAX:
        raise ConfigurationError("socket", path, f"longer than {_PATH_BYTES_MAX} bytes, which unix(7) does not allow")
    with contextlib.suppress(FileNotFoundError):
        if not stat.S_ISSOCK(os.lstat(path).st_mode):
            raise ConfigurationError("socket", path, "there is something else than a socket")
        os.unlink(path)
    sock = socket.socket(socket.AF_UNIX, kind)
    try:
        before = os.umask(0o177)  # nobody connects before mode and group are right
        try:
            sock.bind(path)
        finally:
            os.umask(before)
        if group is not None and os.geteuid() == 0:
            os.chown(path, -1, group)
        os.chmod(path, mode)
        sock.listen(_BACKLOG)
        sock.setblocking(False)
    except OSError as problem:
        sock.close()
        raise ConfigurationError("socket", path, f"cannot listen there: {problem.strerror}") from problem
    return sock
