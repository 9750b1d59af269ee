"""What hooks of a hive group see, beside those of a Gloo group: the same calls."""

from __future__ import annotations

import json
import os
import pickle
import sys
import urllib.request
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
import torch.distributed._functional_collectives as funcol
from torch._C import _distributed_c10d as c10d

sys.path.insert(0, str(Path(__file__).parent))
from checks import data
from ranks import connect, report


def calls(group: dist.ProcessGroup, rank: int, size: int) -> None:
    """One call of every kind."""
    dist.all_reduce(data(rank, 4), op=dist.ReduceOp.MAX, group=group)
    dist.broadcast(data(rank, 4), 1, group=group)
    dist.reduce(data(rank, 4), 1, group=group)
    dist.all_gather([torch.empty(4) for _ in range(size)], data(rank, 4), group=group)
    dist.all_gather_into_tensor(torch.empty(4 * size), data(rank, 4), group=group)
    dist.reduce_scatter_tensor(torch.empty(2), data(rank, 2 * size), group=group)
    dist.gather(data(rank, 2), [torch.empty(2) for _ in range(size)] if rank == 1 else None, 1, group=group)
    dist.scatter(torch.empty(2), [data(rank, 2) for _ in range(size)] if rank == 1 else None, 1, group=group)
    dist.all_to_all_single(torch.empty(size), data(rank, size), group=group)
    dist.barrier(group=group)
    if rank == 0:
        dist.send(data(rank, 3), 1, group=group)
    else:
        dist.recv(torch.empty(3), 0, group=group)
    funcol.all_reduce(data(rank, 4), "sum", group) + 0
    funcol.all_gather_tensor(data(rank, 4), 0, group) + 0
    model = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(3, 2), process_group=group)
    model(torch.ones(1, 3)).sum().backward()


def seen(rank: int, size: int) -> None:
    """Hooks of both groups see the same, and each call's own operation before and after it."""
    connect("gloo")
    found: dict[str, list[Any]] = {}
    for backend in ("gloo", "hive"):
        group: Any = dist.new_group(list(range(size)), backend=backend)
        before: list[Any] = []
        after: dict[int, Any] = {}
        group.register_pre_hook(7, lambda call, before=before: before.append((call.op_id, *words_of(call))))
        group.register_post_hook(7, lambda call, after=after: after.update({call.op_id: (call.name.name, call.work)}))
        calls(group, rank, size)
        group.unregister_pre_hook(7)
        group.unregister_post_hook(7)
        dist.barrier(group=group)
        assert [op_id for op_id, *_ in before] == sorted(after), (before, after)
        assert all(after[op_id][0] == name and after[op_id][1] is not None for op_id, name, *_ in before)
        found[backend] = [call for _, *call in before]
    report(gloo=found["gloo"], hive=found["hive"])
    dist.destroy_process_group()


def words_of(call: Any) -> tuple[object, ...]:
    shapes = [[list(tensor.shape) for tensor in tensors] for tensors in (call.input_tensors, call.output_tensors)]
    return (call.name.name, call.root, *shapes)


def recorded(rank: int, size: int) -> None:
    """torch's flight recorder, whose trace the debug page shows, has hive's calls, those of split groups as well."""
    connect()
    dist.all_reduce(data(rank, 4))
    dist.all_to_all_single(torch.empty(size), data(rank, size))
    pair = dist.split_group(split_ranks=[list(range(size))])
    assert isinstance(pair, dist.ProcessGroup)
    dist.broadcast(data(rank, 5), 0, group=pair)
    trace = pickle.loads(c10d._dump_fr_trace(backend="hive"))
    server = c10d._WorkerServer("127.0.0.1", 0)  # what torch's debug page asks on each rank
    page = f"http://127.0.0.1:{server.port}/handler/fr_trace_json?backend=hive"
    with urllib.request.urlopen(urllib.request.Request(page, method="POST"), timeout=30.0) as answer:
        shown = json.load(answer)
    server.shutdown()
    report(
        calls=[
            (entry["profiling_name"], entry["input_sizes"], entry["process_group"][1]) for entry in trace["entries"]
        ],
        shown=[entry["profiling_name"] for entry in shown["entries"]],
        ranks=sorted(group["ranks"] for group in trace["pg_config"].values()),
    )
    dist.destroy_process_group()


def with_nan(rank: int, size: int) -> None:
    """torch's own NaN check stops the rank that has one, and the other learns why."""
    os.environ["TORCH_DIST_NAN_CHECK"] = "1"
    connect()
    text = ""
    try:
        dist.all_reduce(torch.tensor([1.0, float("nan") if rank == 1 else 2.0]))
    except RuntimeError as error:
        text = str(error)
    total = torch.ones(1)
    dist.all_reduce(total)
    report(text=text, total=total.item())
    dist.destroy_process_group()
