"""Reads a configuration file that nobody is writing: half of one may be good TOML, and would be taken for all of it.

Who writes a file in place has it open meanwhile. The kernel knows, and gives a read lease only where nobody has
(fcntl_locking(2), F_SETLEASE); while we hold it, whoever opens the file to write waits for us. File systems without
leases (NFS, FUSE) and files of other users, for who has no CAP_LEASE, are read as they are.
"""

from __future__ import annotations

import errno
import fcntl
import signal
from pathlib import Path

from hive_qos.errors import ConfigurationError

BYTES_MAX = 2**20
"""Some thousand times the longest that the parser's own bounds allow."""


def read(path: Path, *, key: str = "--config") -> str:
    """Give the text of a file as whoever wrote it left it.

    Args:
        key: what an error calls it.

    Raises:
        ConfigurationError: it cannot be read, is too long, is no text, or somebody is writing it.
    """
    try:
        with open(path, "rb") as file:
            _take_lease(file.fileno())  # it ends with the descriptor
            data = file.read(BYTES_MAX + 1)
    except OSError as problem:
        if problem.errno == errno.EAGAIN:
            why = "somebody is writing it: save it first, then try again"
            raise ConfigurationError(key, str(path), why) from problem
        raise ConfigurationError(key, str(path), f"cannot be read: {problem.strerror}") from problem
    if len(data) > BYTES_MAX:
        raise ConfigurationError(key, str(path), f"longer than {BYTES_MAX} bytes")
    try:
        return data.decode("utf-8")
    except UnicodeDecodeError as problem:
        raise ConfigurationError(key, str(path), "not UTF-8 text") from problem


def _take_lease(descriptor: int) -> None:
    """Hold off writers.

    Raises:
        BlockingIOError: somebody has the file open to write.
    """
    # Of a writer that comes meanwhile we are told by a signal: one that is ignored unless somebody handles it.
    fcntl.fcntl(descriptor, fcntl.F_SETSIG, signal.SIGURG)
    try:
        fcntl.fcntl(descriptor, fcntl.F_SETLEASE, fcntl.F_RDLCK)
    except OSError as problem:
        if problem.errno == errno.EAGAIN:
            raise
