"""A second descriptor of a socket that another process holds: pidfd_open(2), pidfd_getfd(2) (Linux 5.6).

It needs what ptrace(2) needs: root, or CAP_SYS_PTRACE, and no Yama scope of 3. The other process notices nothing.
"""

from __future__ import annotations

import ctypes
import errno
import os
import socket
import struct
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from hive_qos.errors import KernelRejectedError, PrivilegeError

_PIDFD_GETFD = 438  # the same on every architecture that Linux has gained since 5.1, and on all that Python runs on
_SO_COOKIE = 57  # asm-generic/socket.h; Python's socket module does not name it
_libc = ctypes.CDLL(None, use_errno=True)


@contextmanager
def duplicate(
    pid: int, descriptor: int, *, cookie: int, close: Callable[[int], None]
) -> Iterator[socket.socket | None]:
    """The socket at a process' descriptor, for the time of a `with` block.

    Args:
        cookie: the kernel's name of the socket that is meant (SO_COOKIE). What is there now may be another one.
        close: closes our duplicate. Where its owner closed his meanwhile it is the last, and that lasts as long as he
            chose (SO_LINGER).

    Returns:
        None where it is not there any more: the process has ended, closed it, or put something else in its place.

    Raises:
        PrivilegeError: we may not.
        KernelRejectedError: this kernel cannot, or has another reason.
    """
    found = _taken(pid, descriptor)
    if found is None:
        yield None
        return
    try:
        with _borrowed(found) as sock:
            yield sock if sock is not None and _cookie(sock) == cookie else None
    finally:
        close(found)


@contextmanager
def _borrowed(descriptor: int) -> Iterator[socket.socket | None]:
    """A descriptor as a socket that does not close it; None for a file."""
    try:
        sock = socket.socket(fileno=descriptor)
    except OSError:
        yield None
        return
    try:
        yield sock
    finally:
        sock.detach()


def _taken(pid: int, descriptor: int) -> int | None:
    try:
        process = os.pidfd_open(pid)
    except ProcessLookupError:
        return None
    except OSError as error:  # a thread's number, for one: it is no process
        raise KernelRejectedError("open a process", errno_value=error.errno or 0) from error
    try:
        found: int = _libc.syscall(_PIDFD_GETFD, process, descriptor, 0)
        code = ctypes.get_errno()
    finally:
        os.close(process)
    if found < 0:
        if code in (errno.ESRCH, errno.EBADF):
            return None
        if code in (errno.EPERM, errno.EACCES):
            raise PrivilegeError("a socket of another process can be had with CAP_SYS_PTRACE alone")
        raise KernelRejectedError("take a socket from its process", errno_value=code)
    return found


def _cookie(sock: socket.socket) -> int:
    try:
        return int(struct.unpack("=Q", sock.getsockopt(socket.SOL_SOCKET, _SO_COOKIE, 8))[0])
    except OSError:
        return 0
