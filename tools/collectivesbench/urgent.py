"""An urgent all-reduce while a large one is under way, on networks of two rates; each turn is a record."""

from __future__ import annotations

import time
from contextlib import ExitStack
from dataclasses import asdict

from tools.collectivesbench import networks
from tools.collectivesbench.budget import Budget
from tools.collectivesbench.sweep import FEWEST_TURNS, Run, in_turn, joined

URGENT = "urgent"


def beside_a_large_one(run: Run, budget: Budget) -> None:
    """All contenders once a repetition, in rotating order; the first repetition has the number -1, and no figure."""
    settings = run.settings
    order = {"do": URGENT, "bytes": settings.urgent_bytes, "large_bytes": settings.large_bytes}
    order |= {"count": settings.urgent_count, "pause_s": settings.urgent_pause_s}
    for bits_per_s, of_rate in budget.parts(settings.urgent_bits_per_s):
        for ranks, part in of_rate.parts(settings.urgent_worlds):
            network = networks.equal(ranks, bits_per_s=bits_per_s)
            with ExitStack() as stack:
                members = joined(run, stack, URGENT, network, run.competing())
                turn_s = 0.0
                for repetition in range(-1, settings.repetitions):
                    if repetition + 1 >= FEWEST_TURNS and part.left_s() < turn_s:
                        break
                    began_s = time.monotonic()
                    for contender in in_turn(members, repetition):
                        if not run.may(URGENT, contender):
                            continue
                        group, measured = members[contender], False
                        with run.guarded(URGENT, contender):
                            found = group.order(order, wait_s=settings.one_s_max)
                            measured = True
                            fields = {"task": "all_reduce", "bytes": settings.urgent_bytes, "repetition": repetition}
                            fields |= {"large_bytes": settings.large_bytes, "network": asdict(network), "ranks": found}
                            run.write(URGENT, contender, kind=URGENT, case=network.name, **fields)
                        if not measured:
                            members.pop(contender).close()
                    turn_s = time.monotonic() - began_s
                run.say(f"{URGENT}: {network.name}")
