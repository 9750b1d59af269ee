"""Where a run keeps its things, and how it ends: its directory is gone afterwards, and SIGTERM is like Ctrl-C.

The directory is in memory where it can be. What a run that was killed has left there, the next one removes.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import shutil
import signal
import tempfile
from collections.abc import Iterator
from pathlib import Path
from types import FrameType

LOCK = ".in-use"


@contextlib.contextmanager
def work_directory(prefix: str) -> Iterator[Path]:
    """A directory of this run's own, readable for the ordinary user, short enough for a Unix socket's name."""
    shared = Path("/dev/shm")
    base = shared if shared.is_dir() and os.access(shared, os.W_OK) else Path(tempfile.gettempdir())
    for left in base.glob(f"{prefix}*"):
        _remove_unless_used(left)
    path = Path(tempfile.mkdtemp(prefix=prefix, dir=base))
    path.chmod(0o755)
    with open(path / LOCK, "w") as held:
        fcntl.flock(held, fcntl.LOCK_EX)
        try:
            yield path
        finally:
            shutil.rmtree(path, ignore_errors=True)


def _remove_unless_used(path: Path) -> None:
    """One of ours, whose run holds no lock on it: it was killed. Somebody else's cannot be opened, or has none."""
    with contextlib.suppress(OSError), open(path / LOCK, "r+") as held:
        fcntl.flock(held, fcntl.LOCK_EX | fcntl.LOCK_NB)
        if path.stat().st_uid == os.geteuid():
            shutil.rmtree(path, ignore_errors=True)


@contextlib.contextmanager
def terminated_like_interrupted() -> Iterator[None]:
    """SIGTERM, and SIGHUP of a terminal that is closed, end the block as Ctrl-C does: everything is taken down."""

    def interrupt(number: int, frame: FrameType | None) -> None:
        raise KeyboardInterrupt

    before = {number: signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGHUP)}
    for number, handler in before.items():
        if handler is not signal.SIG_IGN:  # as nohup has it
            signal.signal(number, interrupt)
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
