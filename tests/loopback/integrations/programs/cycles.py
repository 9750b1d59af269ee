"""Groups that are made and destroyed again and again leave nothing behind."""

from __future__ import annotations

import gc
import os
import sys
import threading
from collections import Counter
from pathlib import Path

import torch
import torch.distributed as dist

sys.path.insert(0, str(Path(__file__).parent))
from ranks import connect, report

OURS = ("hive_qos.", "transport.", "integrations.", "broker.")
MEASURED = ("_Slot",)
"""Of a bounded window over time (transport/collectives/planning/link_rates): the later, the fuller."""


def standing() -> dict[str, object]:
    """What of ours is there now."""
    gc.collect()
    kinds = [type(one) for one in gc.get_objects()]
    objects = Counter(
        kind.__qualname__
        for kind in kinds
        if kind.__qualname__ not in MEASURED and str(kind.__module__).startswith(OURS)
    )
    threads = sum(thread.name.startswith("hive-transport") for thread in threading.enumerate())
    return {"descriptors": len(os.listdir("/proc/self/fd")), "threads": threads, **objects}


def worlds(rank: int, size: int) -> None:
    seen = []
    for turn in range(22):
        connect()
        own = dist.new_group(list(range(size)))
        dist.all_reduce(torch.ones(10))
        dist.all_reduce(torch.ones(10), group=own)
        del own
        dist.destroy_process_group()
        if turn in (1, 21):
            seen.append(standing())
    report(first=seen[0], last=seen[1])


def subgroups(rank: int, size: int) -> None:
    connect()
    seen = []
    for turn in range(160):
        group = dist.new_group(list(range(size)))
        dist.all_reduce(torch.ones(10), group=group)
        if rank == 0:
            dist.send(torch.ones(100_000), 1, group=group, tag=turn)
        elif rank == 1:
            dist.recv(torch.ones(100_000), 0, group=group, tag=turn)
        dist.destroy_process_group(group)
        del group
        if turn in (79, 159):
            seen.append(standing())
    p2p = dist.group.WORLD.collectives.group._runtime._p2p
    fields = vars(p2p) | vars(p2p._any_source)
    kept = {name: len(value) for name, value in fields.items() if isinstance(value, dict | set)}
    report(first=seen[0], last=seen[1], numbers=len(p2p._sent._next) + len(p2p._taken._next), **kept)
    dist.destroy_process_group()
