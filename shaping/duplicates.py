"""A second descriptor of a socket that another process holds: pidfd_open(2), pidfd_getfd(2) (Linux 5.6).

It needs what ptrace(2) needs: root, or CAP_SYS_PTRACE, and no Yama scope of 3. The other process notices nothing.
"""

from __future__ import annotations

import contextlib
import ctypes
import errno
import os
import socket
import struct
import threading
from collections.abc import Iterator
from contextlib import contextmanager

from hive_qos.errors import KernelRejectedError, PrivilegeError

_PIDFD_GETFD = 438  # the same on every architecture that Linux has gained since 5.1, and on all that Python runs on
_SO_COOKIE = 57  # asm-generic/socket.h; Python's socket module does not name it
_libc = ctypes.CDLL(None, use_errno=True)


@contextmanager
def duplicate(pid: int, descriptor: int, *, cookie: int) -> Iterator[socket.socket | None]:
    """The socket at a process' descriptor, for the time of a `with` block.

    Args:
        cookie: the kernel's name of the socket that is meant (SO_COOKIE). What is there now may be another one.

    Returns:
        None where it is not there any more: the process has ended, closed it, or put something else in its place.

    Raises:
        PrivilegeError: we may not.
        KernelRejectedError: this kernel cannot, or has another reason.
    """
    sock = _taken(pid, descriptor)
    try:
        yield sock if sock is not None and _cookie(sock) == cookie else None
    finally:
        if sock is not None:
            close_duplicate(sock)


def _taken(pid: int, descriptor: int) -> socket.socket | None:
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
    try:
        return socket.socket(fileno=found)
    except OSError:  # a file by now
        os.close(found)
        return None


def _cookie(sock: socket.socket) -> int:
    try:
        return int(struct.unpack("=Q", sock.getsockopt(socket.SOL_SOCKET, _SO_COOKIE, 8))[0])
    except OSError:
        return 0


def close_duplicate(sock: socket.socket) -> None:
    """Close ours. Where its owner closed his meanwhile it is the last, and with SO_LINGER that would wait: not here."""
    lingers = False
    with contextlib.suppress(OSError):
        lingers = bool(struct.unpack("=ii", sock.getsockopt(socket.SOL_SOCKET, socket.SO_LINGER, 8))[0])
    if lingers:
        threading.Thread(target=sock.close, name="close a lingering socket", daemon=True).start()
    else:
        sock.close()
