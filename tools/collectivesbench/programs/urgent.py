"""An urgent all-reduce while a large one is under way: activation gradients beside weight gradients.

Each has a process group of its own. On hive the urgent one's group asks for its priority; Gloo knows none, and gives
each group connections of its own.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from functools import cache
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor


def measure(order: Mapping[str, Any], begun: Callable[[], None]) -> dict[str, Any]:
    """Time urgent all-reduces of float32: alone, then from the begin of a large one on.

    Args:
        order: `bytes` of an urgent one, `large_bytes`, `count` of urgent ones, `pause_s` before each.
        begun: called before the barrier behind which the first one begins.

    Returns:
        `alone` and `beside`: [begin, end] of each urgent one on the machine's monotonic clock; `covered`: for each of
        `beside` whether the large one was still under way when it began.

    Raises:
        RuntimeError: a result is wrong.
    """
    group = _urgent_group()
    urgent, large = torch.empty(order["bytes"] // 4), torch.full((order["large_bytes"] // 4,), dist.get_rank() + 1.0)
    begun()
    dist.barrier()
    alone, beside, covered = [], [], []
    for _ in range(order["count"]):
        time.sleep(order["pause_s"])
        alone.append(_timed(urgent, group))
    dist.barrier()
    under_way = dist.all_reduce(large, async_op=True)
    for _ in range(order["count"]):
        time.sleep(order["pause_s"])
        covered.append(not under_way.is_completed())
        beside.append(_timed(urgent, group))
    under_way.wait()
    for tensor in (urgent, large):
        if not tensor.eq(dist.get_world_size() * (dist.get_world_size() + 1) / 2).all():
            raise RuntimeError("the result of an all_reduce is wrong")
    return {"alone": alone, "beside": beside, "covered": covered}


def _timed(tensor: Tensor, group: dist.ProcessGroup) -> tuple[float, float]:
    tensor.fill_(dist.get_rank() + 1)
    begin_s = time.monotonic()
    dist.all_reduce(tensor, group=group)
    return begin_s, time.monotonic()


@cache
def _urgent_group() -> dist.ProcessGroup:
    options = {"priority": "activation gradient"} if dist.get_backend() == "hive" else None
    group = dist.new_group(pg_options=options)
    assert isinstance(group, dist.ProcessGroup), "every rank is a member"
    return group
