"""Two ranks in a lab that all-reduce until they are stopped, for tests of what happens to their sockets meanwhile."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tools.lab import Lab

ROOT = Path(__file__).parents[2]
PROGRAM = Path(__file__).with_name("moving_rank.py")
LIMIT_S = 60.0


@dataclass
class Running:
    """A rank's program, and what it said."""

    process: subprocess.Popen[bytes]

    def rounds(self, count: int) -> None:
        """Wait until so many more rounds are done; fails with the program's words where it ends instead."""
        assert self.process.stdout is not None
        for _ in range(count):
            line = self.process.stdout.readline()
            assert line.strip().isdigit(), line.decode() + self.words()

    def end(self) -> dict[str, Any]:
        """Stop it: what it measured."""
        out, err = self.process.communicate(timeout=LIMIT_S)
        assert self.process.returncode == 0, err.decode()
        found: dict[str, Any] = json.loads(out.splitlines()[-1])
        return found

    def words(self) -> str:
        self.process.kill()
        return self.process.communicate()[1].decode()


@contextmanager
def two_ranks(
    lab: Lab,
    tmp_path: Path,
    engines: tuple[str, str],
    *,
    moving: int,
    six: bool,
    broker: str = "off",
) -> Iterator[tuple[Running, Running]]:
    """Rank `moving` in host a, the other one in host b; both have done a few rounds.

    Args:
        engines: by rank.
        six: over IPv6.
        broker: the session socket for the rank in host a.
    """
    environment = {"PYTHONPATH": str(ROOT), "PYTHONDONTWRITEBYTECODE": "1"}
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
    started = []
    for host, other, rank, session in (("a", "b", moving, broker), ("b", "a", 1 - moving, "off")):
        leads_to = lab[other].address6 if six else lab[other].address
        options = ["--rank", str(rank), "--folder", str(tmp_path), "--engine", engines[rank], "--broker", session]
        argv = [sys.executable, str(PROGRAM), *options]
        started.append(Running(lab[host].popen(argv, env=environment | {"MASTER_ADDR": leads_to}, **pipes)))
    try:
        for one in started:
            one.rounds(5)
        yield started[0], started[1]
    finally:
        for one in started:
            one.process.kill()
            one.process.communicate()
