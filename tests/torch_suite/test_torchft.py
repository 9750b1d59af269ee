"""torchft's managers train over hive: a replica is killed and comes back, and all that commit hold the same weights."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from patience import wait_until
from torchft.coordination import LighthouseServer

PROGRAM = Path(__file__).parent / "programs" / "torchft_replica.py"


class Replicas:
    """Processes by name, and what each has written so far."""

    def __init__(self, folder: Path, lighthouse: str) -> None:
        self._folder, self._lighthouse = folder, lighthouse
        self.processes: dict[str, subprocess.Popen[bytes]] = {}

    def start(self, name: str) -> None:
        with self._file(name).open("wb") as output, self._file(f"{name}.errors").open("wb") as errors:
            self.processes[name] = subprocess.Popen(
                [sys.executable, "-W", "ignore", str(PROGRAM), name, self._lighthouse],
                env={**os.environ, "OMP_NUM_THREADS": "1", "HIVE_BROKER": "off", "CUDA_VISIBLE_DEVICES": ""},
                stdout=output,
                stderr=errors,
            )

    def steps(self, name: str) -> list[dict[str, Any]]:
        text = self._file(name).read_text(encoding="utf-8")
        return [json.loads(line) for line in text.splitlines(keepends=True) if line.endswith("\n")]

    def commit_with(self, name: str, replicas: int, *, after: int) -> int:
        """Wait for a step behind `after` that so many replicas took part in; its number."""
        return int(
            wait_until(
                lambda: [
                    one["step"] for one in self.steps(name) if one["replicas"] == replicas and one["step"] > after
                ],
                what=lambda: "".join(self._file(f"{one}.errors").read_text()[-3000:] for one in self.processes),
                limit_s=60.0,
            )[0]
        )

    def end(self) -> None:
        for process in self.processes.values():
            process.kill()
            process.wait()

    def _file(self, name: str) -> Path:
        return self._folder / name


@pytest.fixture
def replicas(tmp_path: Path) -> Iterator[Replicas]:
    lighthouse = LighthouseServer(
        bind="127.0.0.1:0", min_replicas=1, join_timeout_ms=1000, quorum_tick_ms=50, heartbeat_timeout_ms=2000
    )
    found = Replicas(tmp_path, lighthouse.address())
    yield found
    found.end()
    lighthouse.shutdown()


@pytest.mark.timeout(300)
def test_a_replica_is_killed_and_heals_while_the_others_go_on(replicas: Replicas) -> None:
    together = 0
    for count, name in enumerate(("a", "b", "c"), 1):  # at once they would take their first steps in several quorums
        replicas.start(name)
        together = replicas.commit_with("a", count, after=together)
    replicas.processes["b"].kill()
    without = replicas.commit_with("a", 2, after=together)
    replicas.start("b-again")
    healed = replicas.commit_with("b-again", 3, after=without)
    replicas.commit_with("c", 3, after=healed + 5)
    replicas.end()

    weights: dict[int, set[str]] = {}
    for name in ("a", "b", "c", "b-again"):
        for one in replicas.steps(name):
            weights.setdefault(one["step"], set()).add(one["digest"])
    assert {step: found for step, found in weights.items() if len(found) > 1} == {}
    assert max(weights) > healed
