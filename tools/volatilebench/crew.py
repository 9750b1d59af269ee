"""Members in the hosts of a lab, and the register in a router: no host that is cut off takes it away."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Iterator, Mapping
from contextlib import ExitStack
from pathlib import Path
from typing import Any

from tools.bench.place import Place, of_host, python
from tools.bench.side import Side
from tools.collectivesbench.networks import ROUTER, Network, lab_of
from tools.lab import Lab

START_S = 120.0
"""For loading torch in all members at once on two cores, beside other work."""
SECRET = "bench-only-secret-of-this-run"
MEMBER = "tools.volatilebench.programs.member"


class Crew:
    """The members' processes, one a host, which train whatever they are told, one thing after the other.

    Args:
        logs: where their own words go.
        members: whether there are any, beside the register.
    """

    def __init__(self, network: Network, lab: Lab, *, logs: Path, members: bool = True) -> None:
        self.network, self.lab, self.logs = network, lab, logs
        self._stack = ExitStack()
        self.members: dict[int, Side] = {}
        self._register = self._side(of_host(lab[f"{ROUTER}0"]), "register")
        for rank in range(network.ranks if members else 0):
            self.start(rank)
        found = self._register.ask({"do": "serve_register"}, wait_s=START_S)
        self.store = (lab[f"{ROUTER}0"].address, int(found["port"]))

    def start(self, rank: int) -> None:
        """Start a member's process, or another one in the place of one that was killed."""
        self.members[rank] = self._side(of_host(self.lab[f"h{rank}"]), f"h{rank}")

    def restart(self) -> None:
        """Have new processes in the place of all members: what a failed training has left is gone."""
        for rank, side in list(self.members.items()):
            side.kill()
            self.start(rank)

    def order(self, rank: int, job: Path, **fields: Any) -> dict[str, Any]:
        """What a member of a job is told; its record is a file in the job's folder."""
        fixed = {"do": "train", "rank": rank, "name": f"h{rank}", "world": self.network.ranks}
        files = {"record": str(job / f"h{rank}.jsonl"), "snapshots": str(job)}
        return {**fixed, **files, "job": job.name, "store": self.store, **fields}

    def train(self, job: Path, *, wait_s: float, **fields: Any) -> list[dict[str, Any]]:
        """Have all members train together from the begin to the end; gives their results.

        Raises:
            BenchError: a member failed or did not end in time.
        """
        job.mkdir()
        for rank, side in self.members.items():
            side.tell(self.order(rank, job, **fields))
        for side in self.members.values():
            side.begun(wait_s=wait_s)
        return [side.end(wait_s=wait_s) for side in self.members.values()]

    def evaluated(self, paths: list[str], *, task: str, seed: int) -> list[float]:
        """The loss of each snapshot."""
        order = {"do": "evaluate", "task": task, "seed": seed, "paths": paths}
        found: list[float] = self._register.ask(order, wait_s=START_S)["losses"]
        return found

    def close(self) -> None:
        """End all processes. Safe to repeat."""
        self._stack.close()

    def _side(self, place: Place, name: str) -> Side:
        env = {"HIVE_INTERFACE": place.interface, "GLOO_SOCKET_IFNAME": place.interface}
        env |= {"HIVE_JOB": "bench", "HIVE_JOB_SECRET": SECRET}
        side = Side(place, python(MEMBER), log=self.logs / f"{name}.log", env=env)
        self._stack.callback(side.close)
        return side


@contextlib.contextmanager
def crew_up(network: Network, *, congestion: str, logs: Path, members: bool = True) -> Iterator[Crew]:
    """A lab and its members for the length of the block; arguments as of `Crew`."""
    lab = lab_of(network, congestion=congestion)
    with contextlib.closing(lab):
        lab.up()
        crew = Crew(network, lab, logs=logs, members=members)
        with contextlib.closing(crew):
            yield crew


def lines_of(job: Path) -> Mapping[str, list[dict[str, Any]]]:
    """What each member has written down, whole lines only: one that was killed may have left half a line."""
    found = {}
    for path in sorted(job.glob("*.jsonl")):
        text = path.read_text(encoding="utf-8")
        found[path.stem] = [json.loads(line) for line in text.splitlines(keepends=True) if line.endswith("\n")]
    return found
