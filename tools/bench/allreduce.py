"""6: all_reduce of one tensor over fast links, through torch.distributed."""

from __future__ import annotations

import math
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from typing import Any

from tools.bench import contenders, machine
from tools.bench.contenders import Contender
from tools.bench.pairs import START_S, free_port
from tools.bench.place import of_host, python
from tools.bench.side import Side
from tools.bench.turns import Run, lab_up
from tools.lab import Lab

ONE_S_MAX = 60.0


def allreduces(run: Run) -> None:
    """Every rank on a host of its own, all links meeting in a router; with frames and with segmentation offload."""
    settings = run.settings
    for world in settings.worlds:
        for case, offload in ((f"{world} ranks", False), (f"{world} ranks, offload", True)):
            lab = Lab("bench-allreduce")
            lab.router("r")
            rate_bits_per_s, buffer_s = settings.lan_bits_per_s, settings.lan_buffer_s
            for rank in range(world):
                lab.host(f"h{rank}", congestion="cubic")
                lab.link(f"h{rank}", "r", rate_bits_per_s=rate_bits_per_s, buffer_s=buffer_s, offload=offload)
            with lab_up(lab):
                _contest(run, lab, case, world)


def _contest(run: Run, lab: Lab, case: str, world: int) -> None:
    with ExitStack() as stack:
        groups: dict[Contender, list[Side]] = {}
        for contender in contenders.ALLREDUCE:
            if not contender.missing() and run.may("allreduce", contender):
                with run.guarded("allreduce", contender):
                    groups[contender] = stack.enter_context(_group(run, lab, contender, world))
        _take_turns(run, lab, groups, case)


def _take_turns(run: Run, lab: Lab, groups: dict[Contender, list[Side]], case: str) -> None:
    settings, spent_s = run.settings, dict.fromkeys(groups, 0.0)
    # The first one of each makes connections and buffers; it is in the records and in no figure.
    for repetition in range(-1, settings.allreduce_repetitions):
        for contender, sides in groups.items():
            if spent_s[contender] > settings.allreduce_s or not run.may("allreduce", contender):
                continue
            with run.guarded("allreduce", contender):
                begin, spent = machine.read(lab), spent_s[contender]
                spent_s[contender] = math.inf  # a group that fails in the middle of an operation is of no more use
                for side in sides:
                    side.begin({"do": "allreduce", "bytes": settings.payload_bytes}, wait_s=ONE_S_MAX)
                ranks: list[dict[str, Any]] = [side.end(wait_s=ONE_S_MAX) for side in sides]
                used = machine.between(begin, machine.read(lab))
                spent_s[contender] = spent + used["seconds"]
                fields = {"case": case, "repetition": repetition, "machine": used, "ranks": ranks}
                fields |= {"payload_bytes": settings.payload_bytes, "rate_bits_per_s": settings.lan_bits_per_s}
                run.write("allreduce", contender, kind="allreduce", **fields)


@contextmanager
def _group(run: Run, lab: Lab, contender: Contender, world: int) -> Iterator[list[Side]]:
    """The ranks of one contender, with their process group made."""
    with ExitStack() as stack:
        sides = []
        for rank in range(world):
            place = of_host(lab[f"h{rank}"])
            argv = python("tools.bench.programs.rank", "--backend", contender.backend, "--rank", str(rank))
            argv += ["--world-size", str(world)]
            env = {"GLOO_SOCKET_IFNAME": place.interface, "HIVE_INTERFACE": place.interface}
            env |= {
                "HIVE_ENGINE": contender.engine or "auto",
                "HIVE_JOB": "bench",
                "HIVE_JOB_SECRET": "bench-only-secret-of-this-run",
            }
            log = run.folder / "logs" / f"allreduce-{world}-{contender.name.replace(' ', '-')}-{rank}.log"
            side = Side(place, argv, log=log, env=env)
            stack.callback(side.close)
            sides.append(side)
        where = {"address": sides[0].place.address, "port": free_port(sides[0].place)}
        for side in sides:
            side.tell({"do": "join", **where})
        for side in sides:
            side.end(wait_s=START_S)
        yield sides
