"""A wall clock that is set while programs run: theirs alone, for CLOCK_REALTIME is the whole machine's.

A small library (`wall_clock.c`), loaded before libc, answers a program's questions for the wall clock with the
machine's time and an offset, in whatever language they are asked; children inherit that. libfaketime would do the same,
but fails each of Python's sleeps: it takes the monotonic time until which they last for a wall clock's.
"""

from __future__ import annotations

import os
import subprocess
import sys
import time
from pathlib import Path

from tools.measure.crew import MeasureError

SOURCE = Path(__file__).with_suffix(".c")
HOUR_S, DAY_S = 3600, 86_400
HALF_PAST_TWELVE_S = 12 * HOUR_S + HOUR_S // 2
"""Within `OFFICE_HOURS`; an hour earlier is before them."""
OFFICE_HOURS = """
[[schedule]]
name = "office hours"
from = "12:00"
to = "13:00"
timezone = "UTC"
[schedule.class.storage]
"""
"""Of a broker's configuration; what holds for storage then is to follow."""


class WallClock:
    """A clock of their own for the programs that get its `environment`.

    Args:
        directory: gets the library and the offset; those programs can read it.

    Raises:
        MeasureError: there is no C compiler, or it fails.
    """

    def __init__(self, directory: Path) -> None:
        self._offset, library = directory / "wall-clock", directory / "wall-clock.so"
        self.set_back(0)
        try:
            subprocess.run(
                ["cc", "-shared", "-fPIC", "-O1", "-Wall", "-Werror", "-o", str(library), str(SOURCE), "-ldl"],
                check=True, capture_output=True, text=True, timeout=60.0,
            )  # fmt: skip
        except FileNotFoundError:
            raise MeasureError("no C compiler is installed (Debian: apt-get install gcc libc6-dev)") from None
        except subprocess.CalledProcessError as error:
            raise MeasureError(f"the C compiler cannot build {SOURCE}: {error.stderr}") from None
        self.environment = {"LD_PRELOAD": str(library), "HIVE_WALL_CLOCK": str(self._offset)}

    def set_to(self, of_day_s: int) -> None:
        """Set it back to the last time that it was this time of the day in UTC."""
        self.set_back(int(time.time() - of_day_s) % DAY_S)

    def set_back(self, seconds: int) -> None:
        """Set it so far behind the machine's; less than nothing is ahead of it."""
        file = os.open(self._offset, os.O_WRONLY | os.O_CREAT, 0o644)
        try:
            os.pwrite(file, (-seconds).to_bytes(8, sys.byteorder, signed=True), 0)
        finally:
            os.close(file)
        self.behind_s = seconds
