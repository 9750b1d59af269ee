"""Members of a volatile group are killed, stopped, sent away and started at random; what all have committed must agree.

    python -m tools.measure.volatile_churn --seconds 3600 --seed 7

One line of JSON for each thing that is done, and at the end one of what came of it: steps, seconds without any after
each kind of event, and whether the weights of all members were the same after every step. The exit code is 1 if not.
It uses loopback alone, and the program of the tests.
"""

from __future__ import annotations

import argparse
import itertools
import json
import random
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

PROGRAM = Path(__file__).parents[2] / "tests" / "loopback" / "volatile_member.py"
MEMBERS_MIN, MEMBERS_MAX = 2, 5
PAUSE_S = (3.0, 9.0)
"""Between events: a loss is over in three seconds, so some fall into what follows from the one before."""
STOPPED_S = (0.5, 8.0)
"""Shorter and longer than what makes a loss."""
SEEN_S = 5.0
"""Steps that come so long after an event are its doing."""


class Churn:
    """The members of one run, each with a name of its own for ever."""

    def __init__(self, folder: Path, seed: int, wishes: dict[str, Any]) -> None:
        self._folder, self._wishes = folder, wishes
        self._random = random.Random(seed)
        self._count = 0
        self._living: dict[str, subprocess.Popen[bytes]] = {}
        self._all: list[subprocess.Popen[bytes]] = []
        self.events: list[tuple[float, str]] = []
        self._program("register")

    def _program(self, name: str, *arguments: str) -> subprocess.Popen[bytes]:
        command = [sys.executable, str(PROGRAM), str(self._folder / "socket"), *arguments]
        with (self._folder / name).open("wb") as output, (self._folder / f"{name}.errors").open("wb") as errors:
            process = subprocess.Popen(command, stdout=output, stderr=errors)
        self._all.append(process)
        return process

    def start(self) -> None:
        self._count += 1
        name = f"m{self._count:04}"
        self._living[name] = self._program(name, json.dumps({"name": name, **self._wishes}))
        self._note("start", name)

    def go_on(self) -> None:
        """One event, then a pause."""
        self._living = {name: one for name, one in self._living.items() if one.poll() is None}
        kinds = ["start"] * (len(self._living) < MEMBERS_MAX) * 2
        if len(self._living) > MEMBERS_MIN:
            kinds += ["kill", "stop", "leave"]
        kind = self._random.choice(kinds)
        if kind == "start":
            self.start()
        else:
            name = self._random.choice(sorted(self._living))
            self._note(kind, name)
            self._end(kind, self._living[name])
        time.sleep(self._random.uniform(*PAUSE_S))

    def _end(self, kind: str, process: subprocess.Popen[bytes]) -> None:
        if kind == "kill":
            process.kill()
        elif kind == "leave":
            process.send_signal(signal.SIGTERM)
        else:
            process.send_signal(signal.SIGSTOP)
            time.sleep(self._random.uniform(*STOPPED_S))
            process.send_signal(signal.SIGCONT)

    def _note(self, kind: str, name: str) -> None:
        self.events.append((time.monotonic(), kind))
        print(json.dumps({"at_s": self.events[-1][0], "event": kind, "member": name}), flush=True)

    def end(self) -> None:
        for process in self._all:
            process.kill()
            process.wait()

    def steps(self) -> Iterator[tuple[str, dict[str, Any]]]:
        """What each member has said of each step, and how often it had received a state by then."""
        for path in sorted(self._folder.glob("m????")):
            states = 0
            for line in path.read_text(encoding="utf-8").splitlines(keepends=True):
                said = json.loads(line) if line.endswith("\n") else {}
                states += "state" in said
                if "step" in said:
                    yield f"{path.name}.{states}", said


def report(churn: Churn) -> dict[str, Any]:
    """What came of a run."""
    weights: dict[int, set[str]] = {}
    first_s: dict[int, float] = {}
    order: dict[str, list[int]] = {}
    for name, said in churn.steps():
        step = said["step"]
        weights.setdefault(step, set()).add(said["digest"])
        first_s[step] = min(said["at_s"], first_s.get(step, said["at_s"]))
        order.setdefault(name, []).append(step)
    times_s = [first_s[step] for step in sorted(first_s)]
    gaps: dict[str, list[float]] = {}
    for at_s, kind in churn.events:
        near_s = [one for one in times_s if at_s - 1.0 <= one <= at_s + SEEN_S]
        longest_s = max((after - before for before, after in itertools.pairwise(near_s)), default=SEEN_S)
        gaps.setdefault(kind, []).append(longest_s)
    return {
        "steps": max(first_s, default=0),
        "left_out": sorted(set(range(1, max(first_s, default=0) + 1)) - first_s.keys()),
        "different": sorted(step for step, found in weights.items() if len(found) > 1),
        "not_in_order": sorted(name for name, steps in order.items() if steps != list(range(steps[0], steps[-1] + 1))),
        "gap_s": {
            kind: {"median": statistics.median(one), "max": max(one), "count": len(one)} for kind, one in gaps.items()
        },
        "median_step_s": statistics.median([b - a for a, b in itertools.pairwise(times_s)] or [0.0]),
    }


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", type=float, default=600.0)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--quorum", type=int, default=0)
    parser.add_argument("--parameters", type=int, default=200_000)
    parser.add_argument("--keep", type=Path, help="where to leave what the members have written")
    arguments = parser.parse_args()
    wishes = {"quorum": arguments.quorum, "parameters": arguments.parameters, "pause_s": 0.05}
    with tempfile.TemporaryDirectory() as folder:
        churn = Churn(arguments.keep or Path(folder), arguments.seed, wishes)
        time.sleep(1.0)  # the register serves
        end_s = time.monotonic() + arguments.seconds
        try:
            for _ in range(MEMBERS_MIN + 1):
                churn.start()
            time.sleep(PAUSE_S[1])
            while time.monotonic() < end_s:
                churn.go_on()
        finally:
            churn.end()
        found = report(churn)
    print(json.dumps(found), flush=True)
    return 1 if found["different"] or found["left_out"] or found["not_in_order"] or not found["steps"] else 0


if __name__ == "__main__":
    sys.exit(main())
