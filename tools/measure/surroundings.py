"""Where a run keeps its things, and how it ends: its directory is gone afterwards, and SIGTERM is like Ctrl-C."""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import tempfile
from collections.abc import Iterator
from pathlib import Path
from types import FrameType


@contextlib.contextmanager
def work_directory(prefix: str) -> Iterator[Path]:
    """A directory of this run's own, readable for the ordinary user, short enough for a Unix socket's name."""
    shared = Path("/dev/shm")
    base = shared if shared.is_dir() and os.access(shared, os.W_OK) else None
    path = Path(tempfile.mkdtemp(prefix=prefix, dir=base))
    path.chmod(0o755)
    try:
        yield path
    finally:
        shutil.rmtree(path, ignore_errors=True)


@contextlib.contextmanager
def terminated_like_interrupted() -> Iterator[None]:
    """SIGTERM ends the block as Ctrl-C does, so that everything is taken down."""

    def interrupt(number: int, frame: FrameType | None) -> None:
        raise KeyboardInterrupt

    before = signal.signal(signal.SIGTERM, interrupt)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)
