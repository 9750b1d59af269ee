"""How our own programs are started in a host of the lab, and how they end: with their standard input."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, BinaryIO

if TYPE_CHECKING:
    from tools.lab import Host

REPOSITORY = Path(__file__).resolve().parents[2]
STOP_S_MAX = 8.0


def python(module: str, *arguments: str) -> list[str]:
    """Command line of one of our programs, with this interpreter."""
    return [sys.executable, "-m", module, *arguments]


def environment(**more: str) -> dict[str, str]:
    """What every program gets on top of the caller's environment."""
    return {
        "PYTHONPATH": str(REPOSITORY),
        "PYTHONDONTWRITEBYTECODE": "1",
        "PYTHONUNBUFFERED": "1",
        "OMP_NUM_THREADS": "1",
        "TMPDIR": os.environ.get("TMPDIR", "/tmp"),
        **more,
    }


def start(host: Host, argv: Sequence[str], *, log: BinaryIO, user: str | None = None) -> subprocess.Popen[bytes]:
    """Start a helper or a load, which goes on until `close_input`; what it says goes to `log`."""
    return host.popen(
        argv, user=user, env=environment(), cwd="/", stdin=subprocess.PIPE, stdout=log, stderr=subprocess.STDOUT
    )


def close_input(process: subprocess.Popen[bytes]) -> None:
    """End a program by the end of its standard input, and wait for it; killed where it does not end."""
    if process.stdin is not None:
        process.stdin.close()
    try:
        process.wait(STOP_S_MAX)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()
