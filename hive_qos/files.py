"""Files that are there whole or not at all."""

from __future__ import annotations

import contextlib
import os
import stat
from pathlib import Path


def write_whole(path: Path, text: str, *, mode: int = 0o600) -> None:
    """Write a file beside its place, sync it, and rename it into it. One writer. Private unless `mode` says otherwise.

    After a power cut there is the old file, the new one or none, never half of one. What ends it leaves nothing beside.

    Raises:
        OSError: it cannot be written, with its name in it; the old one stands.
    """
    scratch = path.with_name(f".{path.name}.new")  # broker.toml.new and broker.new are names that people give
    # Left by a start that was killed, or put there by somebody else: never write into it.
    scratch.unlink(missing_ok=True)
    flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
    try:
        with os.fdopen(os.open(scratch, flags, mode), "w", encoding="utf-8") as file:
            os.fchmod(file.fileno(), mode)  # whatever the umask
            file.write(text)
            file.flush()
            os.fsync(file.fileno())
        scratch.replace(path)
        sync_directory(path.parent)
    except OSError as problem:
        problem.filename = str(path)  # writing and syncing name none
        raise
    finally:
        with contextlib.suppress(OSError):  # a full disk, or Ctrl-C
            scratch.unlink(missing_ok=True)


def is_trusted(found: os.stat_result) -> bool:
    """Whether a file or directory is root's or our own, and nobody else may write it."""
    return found.st_uid in (0, os.geteuid()) and not found.st_mode & (stat.S_IWGRP | stat.S_IWOTH)


def sync_directory(path: Path) -> None:
    """Make what was renamed or removed in a directory last."""
    descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
