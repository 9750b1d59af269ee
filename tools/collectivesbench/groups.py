"""The process groups of all contenders on one network, made before they take turns."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tools.bench.pairs import free_port
from tools.bench.place import Place, loopback, of_host, python
from tools.bench.side import Side
from tools.collectivesbench.contenders import Contender
from tools.collectivesbench.networks import Network, lab_of
from tools.lab import Lab

START_S = 120.0
"""For starting and joining: eight ranks load torch on two cores, beside those of other contenders."""


@dataclass
class Group:
    """The ranks of one contender, in rank order; `lab` is None on one host."""

    contender: Contender
    lab: Lab | None
    sides: list[Side] = field(default_factory=list)
    processes: ExitStack = field(default_factory=ExitStack)

    def close(self) -> None:
        """End the ranks. Safe to repeat."""
        self.processes.close()

    def order(self, order: Mapping[str, Any], *, wait_s: float) -> list[dict[str, Any]]:
        """Have all ranks carry out an order together; gives their results.

        Raises:
            BenchError: a rank failed or did not end in time.
        """
        self.begin(order, wait_s=wait_s)
        return self.end(wait_s=wait_s)

    def begin(self, order: Mapping[str, Any], *, wait_s: float) -> None:
        """Give all ranks an order, and wait until they are about to carry it out; BenchError as `order`."""
        for side in self.sides:
            side.tell(order)  # all, before one is waited for: to get ready may be a collective
        for side in self.sides:
            side.begun(wait_s=wait_s)

    def end(self, *, wait_s: float) -> list[dict[str, Any]]:
        """Wait for the ranks' results; BenchError as `order`."""
        return [side.end(wait_s=wait_s) for side in self.sides]


@contextmanager
def labs_up(network: Network, contenders: Sequence[Contender]) -> Iterator[Mapping[str, Lab | None]]:
    """A lab for each congestion control of TCP among the contenders, for the length of the block."""
    wanted = dict.fromkeys(contender.congestion for contender in contenders)
    if network.one_host:
        yield dict.fromkeys(wanted)
        return
    with ExitStack() as stack:
        found: dict[str, Lab | None] = {}
        for congestion in wanted:
            lab = lab_of(network, congestion=congestion)
            lab.up()
            stack.enter_context(contextlib.closing(lab))
            found[congestion] = lab
        yield found


def start(
    stack: ExitStack, network: Network, contender: Contender, lab: Lab | None, *, logs: Path, device: str
) -> Group:
    """Start the ranks of a contender, with tensors on `device`; they end with `stack`. `join` comes when all run."""
    group = Group(contender, lab)
    stack.callback(group.close)
    for rank in range(network.ranks):
        place = _place(lab, rank)
        argv = python("tools.collectivesbench.programs.rank", "--backend", contender.backend)
        argv += ["--rank", str(rank), "--world-size", str(network.ranks), "--compression", contender.compression]
        argv += ["--device", device]
        env = {"GLOO_SOCKET_IFNAME": place.interface, "HIVE_INTERFACE": place.interface}
        env |= {"HIVE_JOB": "bench", "HIVE_JOB_SECRET": "bench-only-secret-of-this-run", **dict(contender.environment)}
        log = logs / f"{network.name}-{contender.name}-{rank}.log".replace(" ", "-").replace("/", "-")
        side = Side(place, argv, log=log, env=env)
        group.processes.callback(side.close)
        group.sides.append(side)
    return group


def join(group: Group) -> None:
    """Make the process group.

    Raises:
        BenchError: a rank failed or did not end in time.
    """
    place = group.sides[0].place
    group.order({"do": "join", "address": place.address, "port": free_port(place)}, wait_s=START_S)


def _place(lab: Lab | None, rank: int) -> Place:
    return loopback(f"h{rank}") if lab is None else of_host(lab[f"h{rank}"])
