"""Where records live that have to outlast a checkout and `make clean`."""

from __future__ import annotations

import os
from pathlib import Path

VARIABLE = "HIVE_TEST_STATE"
"""Names another directory. Continuous integration with a fresh machine a night points it at what it keeps."""


def state_directory() -> Path:
    """The directory, by the XDG base directory specification where nothing else is named; it need not be there yet."""
    if named := os.environ.get(VARIABLE):
        return Path(named)
    return Path(os.environ.get("XDG_STATE_HOME") or Path.home() / ".local" / "state", "hive-qos-tests")
