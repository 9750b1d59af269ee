"""The broker's configuration file: read only when nobody writes it, and replaced by a candidate only when that is good.

`hive-qos apply FILE` offers a candidate:

    apply     lays it beside the file as .broker.toml.candidate, and the present text as .broker.toml.former.candidate
    broker    puts it in force, and renames both into their places: at once, or when its trial is confirmed
    refused, not confirmed, apply or broker killed: broker.toml and broker.toml.former are what they were
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
import signal
import stat
from pathlib import Path

from hive_qos.errors import BrokerRejectedError, ConfigurationError
from hive_qos.files import sync_directory, write_whole

FILE_BYTES_MAX = 2**20
"""Some thousand times the longest that the parser's own bounds allow."""
FORMER = ".former"
"""The end of the name under which the replaced text stays beside the new one."""


def candidate_place(file: Path) -> Path:
    """Where the candidate for a configuration file lies; a name that nobody gives a draft."""
    return file.with_name(f".{file.name}.candidate")


def former_place(file: Path) -> Path:
    """Where the replaced text stays beside the new one."""
    return file.with_name(file.name + FORMER)


def withdraw(file: Path) -> None:
    """Remove the candidate for a configuration file, and the text that was to stay beside it.

    Raises:
        OSError: that cannot be.
    """
    file = file.resolve()
    for place in (candidate_place(file), candidate_place(former_place(file))):
        place.unlink(missing_ok=True)


class Candidate:
    """The candidate for the broker's file.

    Args:
        file: the broker's file, None where it has none.
    """

    def __init__(self, file: str | None) -> None:
        self._file = None if file is None else Path(file)

    def read(self) -> str:
        """Give its text.

        Raises:
            BrokerRejectedError: there is none, or the broker could not put it in its place.
            ConfigurationError: it cannot be read.
        """
        place = self._place()
        if not os.access(place.parent, os.W_OK | os.X_OK):
            raise BrokerRejectedError(f"the broker may not write in {place.parent}; see ReadWritePaths= of its unit")
        if not candidate_place(place).exists():
            raise BrokerRejectedError("nothing is offered; hive-qos apply FILE does it")
        return read_file(candidate_place(place), key="candidate")

    def install(self, text: str) -> None:
        """Make `text` the broker's file. The candidate's own inode is taken, for its rights and owner.

        Raises:
            OSError: it cannot be written; the file is what it was.
        """
        place = self._place()
        candidate = candidate_place(place)
        try:
            same = read_file(candidate, key="candidate") == text
        except ConfigurationError:
            same = False
        with contextlib.suppress(FileNotFoundError):  # it says the same, or there was none
            candidate_place(former_place(place)).replace(former_place(place))
        if same:
            candidate.replace(place)
            sync_directory(place.parent)
        else:  # another `apply` has laid its own there since
            write_whole(place, text, mode=stat.S_IMODE(place.stat().st_mode))

    def discard(self) -> None:
        """Remove the candidate. What cannot be removed has no effect where it lies."""
        if self._file is not None:
            with contextlib.suppress(OSError):
                withdraw(self._place())

    def _place(self) -> Path:
        if self._file is None:
            raise BrokerRejectedError("this broker reads no file")
        return self._file.resolve()


def read_file(path: Path, *, key: str = "--config") -> str:
    """Give the text of a file that nobody is writing: half of one may be good TOML, and would be taken for all of it.

    Who writes a file in place has it open meanwhile. The kernel gives a read lease only where nobody has (fcntl(2),
    F_SETLEASE). While we hold it, who opens the file to write waits for us. File systems without leases (NFS, FUSE)
    and files of other users, for who has no CAP_LEASE, are read as they are.

    Args:
        key: what an error calls it.

    Raises:
        ConfigurationError: it cannot be read, is too long, is no text, or somebody is writing it.
    """
    try:
        with open(path, "rb") as file:
            _take_lease(file.fileno())  # it ends with the descriptor
            data = file.read(FILE_BYTES_MAX + 1)
    except OSError as problem:
        if problem.errno == errno.EAGAIN:
            why = "somebody is writing it: save it first, then try again"
            raise ConfigurationError(key, str(path), why) from problem
        first = "; `hive-qos init` writes a first one" if problem.errno == errno.ENOENT and key == "--config" else ""
        raise ConfigurationError(key, str(path), f"cannot be read: {problem.strerror}{first}") from problem
    if len(data) > FILE_BYTES_MAX:
        raise ConfigurationError(key, str(path), f"longer than {FILE_BYTES_MAX} bytes")
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
