"""The controller's end of one measured process: orders out, answers in, and its end whatever happens."""

from __future__ import annotations

import contextlib
import json
import os
import select
import signal
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from hive_qos.errors import HiveError
from tools.bench.place import Place

LOG_LINES = 6
CLOSE_S = 3.0


class BenchError(HiveError):
    """A measurement could not be made; the text says which side said what. The others go on."""

    code = "bench"


class Side:
    """One process that carries out orders (`programs.conversation`)."""

    def __init__(self, place: Place, argv: Sequence[str], *, log: Path, env: Mapping[str, str] | None = None) -> None:
        self.place, self._log = place, log
        with log.open("ab") as file:
            self._process = place.popen(argv, log=file, env=env)
        if self._process.stdin is None or self._process.stdout is None:
            raise BenchError(f"{log.stem}: no pipes")
        self._input, self._output = self._process.stdin, self._process.stdout
        self._pending, self._order = b"", 0

    def begin(self, order: Mapping[str, Any], *, wait_s: float = 30.0) -> None:
        """Give an order and wait until the side is ready for the other one to start."""
        self.tell(order)
        self.begun(wait_s=wait_s)

    def begun(self, *, wait_s: float) -> None:
        """Wait until the side is ready in the order that was told."""
        self._expect("begun", wait_s)

    def ask(self, order: Mapping[str, Any], *, wait_s: float = 30.0) -> dict[str, Any]:
        """Give an order and wait for its result.

        Raises:
            BenchError: it failed, or did not end within `wait_s`.
        """
        self.tell(order)
        return self.end(wait_s=wait_s)

    def tell(self, order: Mapping[str, Any]) -> None:
        """Give an order."""
        try:
            self._order += 1
            self._input.write(json.dumps({**order, "id": self._order}).encode() + b"\n")
            self._input.flush()
        except OSError:
            raise self._gone("takes no order") from None

    def end(self, *, wait_s: float) -> dict[str, Any]:
        """Wait for the result of the order that is under way."""
        found: dict[str, Any] = self._expect("done", wait_s)
        return found

    def kill(self) -> None:
        """End the process as a power failure does, and what it started."""
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(self._process.pid, signal.SIGKILL)
        self._process.wait()

    def close(self) -> None:
        """End the process; kill it where it does not."""
        with contextlib.suppress(OSError):
            self._input.close()
        with contextlib.suppress(Exception):
            self._process.wait(CLOSE_S)
        self.kill()
        self._output.close()

    def _expect(self, key: str, wait_s: float) -> Any:
        end_s = time.monotonic() + wait_s
        while True:
            answer = json.loads(self._line(end_s))
            if answer["id"] != self._order:
                continue  # late, of an order that was given up
            if "failed" in answer:
                raise BenchError(f"{self._log.stem}: {answer['failed']}")
            if key in answer:
                return answer[key]

    def _line(self, end_s: float) -> bytes:
        while b"\n" not in self._pending:
            ready, _, _ = select.select([self._output], [], [], max(0.0, end_s - time.monotonic()))
            if not ready:
                raise self._gone("gives no answer in time")
            data = os.read(self._output.fileno(), 1 << 20)
            if not data:
                raise self._gone("ended")
            self._pending += data
        line, _, self._pending = self._pending.partition(b"\n")
        return line

    def _gone(self, what: str) -> BenchError:
        words = self._log.read_text(errors="replace").splitlines()[-LOG_LINES:]
        return BenchError(f"{self._log.stem}: {what}; " + " | ".join(words))
