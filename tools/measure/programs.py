"""How our own programs are started in a host of the lab."""

from __future__ import annotations

import os
import sys
from pathlib import Path

REPOSITORY = Path(__file__).resolve().parents[2]


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
