"""Ranks in a lab that all-reduce until they are stopped, for tests of what happens to their sockets meanwhile."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
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
def running(
    lab: Lab,
    tmp_path: Path,
    ranks: Sequence[tuple[str, str]],
    *,
    six: bool = False,
    broker: str = "off",
    where: Mapping[str, str] | None = None,
) -> Iterator[list[Running]]:
    """A rank for each of `ranks`, all of which have done a few rounds.

    Args:
        ranks: the host and the engine of each.
        six: over IPv6.
        broker: the session socket for those in host a.
        where: what tells each in which direction the others are; None in the lab of two hosts a and b.
    """
    environment = {"PYTHONPATH": str(ROOT), "PYTHONDONTWRITEBYTECODE": "1"}
    pipes: dict[str, Any] = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
    started = []
    for rank, (host, engine) in enumerate(ranks):
        leads = where
        if leads is None:
            other = lab["b" if host == "a" else "a"]
            leads = {"MASTER_ADDR": other.address6 if six else other.address}
        options = ["--rank", str(rank), "--size", str(len(ranks)), "--folder", str(tmp_path), "--engine", engine]
        argv = [sys.executable, str(PROGRAM), *options, "--broker", broker if host == "a" else "off"]
        started.append(Running(lab[host].popen(argv, env=environment | dict(leads), **pipes)))
    try:
        for one in started:
            one.rounds(5)
        yield started
    finally:
        for one in started:
            one.process.kill()
            one.process.communicate()
