"""Writes decisions to a file of bounded size, one JSON line each, so that they can be replayed."""

from __future__ import annotations

import contextlib
import os
from typing import TextIO

from broker.events.log import Log
from broker.law.decision import Decision
from broker.law.recording import header_line, tick_line
from broker.law.state import State
from broker.model.values import Alarm, Measurements
from broker.policy.types import Policy
from hive_qos.errors import ConfigurationError

SIZE_BYTES_MAX = 64 * 2**20
"""About two hours of ticks on a busy host; the former file is kept as FILE.1."""


class Recorder:
    """One recording. A file that cannot be written any more (disk full) ends it, with an alarm; the daemon goes on.

    Raises:
        ConfigurationError: the file cannot be opened.
    """

    def __init__(self, path: str, *, log: Log) -> None:
        self._path, self._log = path, log
        self.alarm: Alarm | None = None
        self._file: TextIO | None = None
        self._size_bytes = 0
        self._policy: Policy | None = None
        self._open()

    def write(
        self, *, now_s: float, before: State, measurements: Measurements, decision: Decision, policy: Policy
    ) -> None:
        """Record one decision, with a header where the file or the policy is new."""
        if self._file is None:
            return
        try:
            if self._size_bytes > SIZE_BYTES_MAX:
                self._rotate()
            if self._policy != policy:
                self._line(header_line(policy=policy, state=before))
                self._policy = policy
            self._line(tick_line(now_s=now_s, measurements=measurements, decision=decision))
        except (OSError, ConfigurationError) as problem:
            self.close()
            self._log.error("recording-ended", error=str(problem))
            self.alarm = Alarm(code="recording-ended", subject="record_file", text=str(problem))

    def close(self) -> None:
        """Flush and close; whatever is there is a valid recording."""
        file, self._file = self._file, None
        if file is not None:
            with contextlib.suppress(OSError):  # the disk is full: what could be written is there
                file.close()

    def _open(self) -> None:
        try:
            self._file = open(self._path, "a", encoding="utf-8", opener=_private)  # noqa: SIM115 - lives as long as we
            self._size_bytes = os.fstat(self._file.fileno()).st_size
        except OSError as problem:
            raise ConfigurationError(
                "daemon.record_file", self._path, f"cannot be written: {problem.strerror}"
            ) from problem
        self._policy = None

    def _rotate(self) -> None:
        if self._file is not None:
            self._file.close()
        os.replace(self._path, self._path + ".1")
        self._open()

    def _line(self, text: str) -> None:
        if self._file is not None:
            self._size_bytes += self._file.write(text + "\n")


def _private(path: str, flags: int) -> int:
    return os.open(path, flags | os.O_NOFOLLOW | os.O_CLOEXEC, 0o640)
