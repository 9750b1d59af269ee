"""What the daemon needs of the file system: its directories, locks against a second daemon, and its socket files."""

from __future__ import annotations

import contextlib
import fcntl
import os
import socket
import stat
import time
from types import TracebackType
from typing import Self

from broker.daemon import guards
from hive_qos.errors import BrokerRejectedError, ConfigurationError

NAMESPACE = "/proc/self/ns/net"
"""The network namespace of this process, as a file that can be locked."""

GUARD_S_MAX = 1.0
"""The guard of a dead daemon is done within milliseconds; longer on a machine that stands still, or it hangs."""

_BACKLOG = 64  # connections that wait to be accepted: as many as one user may have sessions
_UNKNOWN = "pid unknown"
_PATH_BYTES_MAX = 107  # sun_path of unix(7), with its closing NUL


def directory(path: str, *, key: str, mode: int) -> None:
    """Make a directory, and be sure that we can write there and that nobody else can.

    What stands in it is believed: sockets by clients, the journal by a later start, which runs as root.

    Raises:
        ConfigurationError: it cannot be made or written, or is somebody else's; names the key under which it is
            configured.
    """
    try:
        os.makedirs(os.path.dirname(path) or ".", mode=0o755, exist_ok=True)
        with contextlib.suppress(FileExistsError):
            os.mkdir(path, 0o700)
            os.chmod(path, mode)  # whatever the umask
        found = os.lstat(path)
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
        raise ConfigurationError(key, path, "cannot be written; run as the service does, or name another directory")


class _Held:
    """An exclusive lock on an open file, which the kernel releases when the process dies."""

    def __init__(self, descriptor: int) -> None:
        self._descriptor = descriptor

    def taken(self) -> bool:
        """Lock it; False when another process has."""
        try:
            fcntl.flock(self._descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return False
        return True

    def fileno(self) -> int:
        """The open file, for a process that shall hold the lock with us."""
        return self._descriptor

    def close(self) -> None:
        """Release the lock; the file stays, so that a waiting one and a new one meet at the same file."""
        os.close(self._descriptor)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, problem: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


class NamespaceLock(_Held):
    """Held for the life of a daemon: one for each network namespace, whatever directories it was given.

    Two would shape the same interfaces, and the first to stop would take the other's tree away. The lock is on the
    namespace itself, so that it needs no directory that both can write. Any program of the namespace can take it, and
    so keep a broker from starting: the error names its pid and its user. The guard of a dead daemon holds it until it
    has opened the ceilings: that is waited for, and a guard that hangs is ended.

    Raises:
        BrokerRejectedError: another process holds it.
    """

    def __init__(self, path: str = NAMESPACE) -> None:
        super().__init__(os.open(path, os.O_RDONLY | os.O_CLOEXEC))
        if not self.taken() and not self._taken_from_the_dead(path):
            holder = _holder(self._descriptor)
            self.close()
            raise BrokerRejectedError(
                f"another broker ({holder}) works in this network namespace; stop it first "
                "(one broker shapes all interfaces of a namespace)"
            )

    def _taken_from_the_dead(self, path: str) -> bool:
        """Wait for the guard of a daemon that has died; False when the lock is somebody else's."""
        until_s = time.monotonic() + GUARD_S_MAX
        while _holder(self._descriptor) == _UNKNOWN and time.monotonic() < until_s:
            if self.taken():
                return True
            time.sleep(0.01)
        if _holder(self._descriptor) == _UNKNOWN:
            guards.end_all(path)
        return self.taken()


class Lock(_Held):
    """Held for the life of a daemon: at most one for each directory, from whatever network namespace.

    Raises:
        BrokerRejectedError: another daemon holds it; names its pid.
        ConfigurationError: the lock file cannot be made.
    """

    def __init__(self, path: str) -> None:
        try:
            super().__init__(os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o644))
        except OSError as problem:
            raise ConfigurationError("lock", path, f"cannot be opened: {problem.strerror}") from problem
        if not self.taken():
            holder = _holder(self._descriptor)
            self.close()
            raise BrokerRejectedError(f"another broker ({holder}) holds {path}; stop it first")


def _holder(descriptor: int) -> str:
    """Who has locked a file, from proc_locks(5); unknown when he has died and somebody who holds it with him lives, or
    when he is of another pid namespace."""
    found = os.fstat(descriptor)
    place = f"{os.major(found.st_dev):02x}:{os.minor(found.st_dev):02x}:{found.st_ino}"
    with open("/proc/locks", encoding="ascii") as locks:
        for line in locks:
            fields = line.split()
            if fields[1] == "FLOCK" and fields[5] == place:
                with contextlib.suppress(FileNotFoundError, ProcessLookupError):
                    with open(f"/proc/{fields[4]}/stat", encoding="utf-8", errors="replace") as stat_file:
                        if stat_file.read().rpartition(")")[2].split()[0] in "ZX":  # dead, though nobody waited for it
                            break
                    return f"pid {fields[4]}, user {os.stat(f'/proc/{fields[4]}').st_uid}"
    return _UNKNOWN


def listen(path: str, *, kind: socket.SocketKind, mode: int, group: int | None) -> socket.socket:
    """Listen at a Unix socket; the lock makes sure that a socket file already there is a dead daemon's.

    Raises:
        ConfigurationError: the path is too long, or something else than a socket stands there, or it is not writable.
    """
    if len(os.fsencode(path)) > _PATH_BYTES_MAX:
        raise ConfigurationError("socket", path, f"longer than {_PATH_BYTES_MAX} bytes, which unix(7) does not allow")
    with contextlib.suppress(FileNotFoundError):
        if not stat.S_ISSOCK(os.lstat(path).st_mode):
            raise ConfigurationError("socket", path, "something that is no socket stands there")
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
