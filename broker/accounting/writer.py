"""Writes what the ledger counted, in a thread of its own: a slow disk must not hold up a decision."""

from __future__ import annotations

import sqlite3
import threading
from collections.abc import Callable
from pathlib import Path

from broker.accounting import database
from broker.events.log import Log
from broker.model.usage import Usage, UsageKey
from broker.model.values import Alarm
from broker.process import priority

WRITE_S = 60.0
"""How often: a crash loses so much, and a disk that sleeps is woken no oftener."""
WAITING_MAX = 20_000
"""Rows that wait while the file cannot be written: about a month of one busy host. Later ones are lost."""
CLOSE_S_MAX = 5.0
"""At the end: longer than the file is waited for, and shorter than systemd waits for us."""


class UsageWriter:
    """`add` and `close` are for the loop's thread; what the thread of its own does is seen in `alarm`.

    Args:
        path: the file.
        wall_clock: seconds since 1970.
    """

    def __init__(self, path: Path, *, log: Log, wall_clock: Callable[[], float]) -> None:
        self.path, self._log, self._wall_clock = path, log, wall_clock
        self.alarm: Alarm | None = None
        self._waiting: dict[UsageKey, Usage] = {}
        self._lock = threading.Lock()
        self._ended = threading.Event()
        self._thread: threading.Thread | None = None

    def add(self, counted: dict[UsageKey, Usage]) -> None:
        """Hand over what was counted; it is written within `WRITE_S`.

        The thread begins with the first: at the start the daemon gives rights up, and each thread has its own.
        """
        if self._thread is None:
            self._thread = threading.Thread(target=self._run, name="hive-broker-usage", daemon=True)
            self._thread.start()
        self._keep(counted)

    def _keep(self, counted: dict[UsageKey, Usage]) -> None:
        with self._lock:
            for key, usage in counted.items():
                if key in self._waiting or len(self._waiting) < WAITING_MAX:
                    self._waiting[key] = self._waiting.get(key, Usage()) + usage

    def close(self) -> None:
        """Write what waits, and end. A disk that hangs is not waited for."""
        self._ended.set()
        if self._thread is not None:
            self._thread.join(CLOSE_S_MAX)

    def _run(self) -> None:
        priority.give_up()
        while not self._ended.wait(WRITE_S):
            self._write()
        self._write()

    def _write(self) -> None:
        with self._lock:
            counted, self._waiting = self._waiting, {}
        if not counted:
            return
        try:
            aside = database.add(self.path, counted, now_s=self._wall_clock())
        except (OSError, sqlite3.Error, MemoryError) as problem:
            with self._lock:
                newer, self._waiting = self._waiting, counted
            self._keep(newer)
            if self.alarm is None:
                self._log.error("usage-not-kept", error=str(problem))
            text = f"what was carried cannot be written: {problem}"
            self.alarm = Alarm(code="usage-not-kept", subject=str(self.path), text=text)
            return
        self.alarm = None
        if aside is not None:
            self._log.warning("usage-file-replaced", file=aside)
