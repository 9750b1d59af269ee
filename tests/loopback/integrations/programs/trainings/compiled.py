"""Functional collectives and whole training steps under torch.compile."""

from __future__ import annotations

import logging
import os
from typing import Any

import torch
import torch.distributed as dist
import torch.distributed._functional_collectives as funcol
from ranks import DEVICE
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.nn.parallel import DistributedDataParallel as DDP
from trainings.register import batches, network, steps, training, values
from trainings.sharded import full

logging.getLogger("torch._dynamo").setLevel(logging.ERROR)  # it warns of DDP's own profiling
COMPILER = os.environ.get("HIVE_TEST_COMPILER", "aot_eager")  # graphs as torch makes them, without a C++ compiler


@training(ranks=2)
def compiled_functional_collectives(rank: int, size: int) -> list[torch.Tensor]:
    group: Any = dist.group.WORLD

    @torch.compile(backend=COMPILER, fullgraph=True)
    def mixed(tensor: torch.Tensor) -> torch.Tensor:
        total = funcol.all_reduce(tensor * 2, "sum", group)
        parts = funcol.reduce_scatter_tensor(total + tensor, "sum", 0, group)
        gathered = funcol.all_gather_tensor(parts.sin(), 0, group)
        swapped = funcol.all_to_all_single(gathered, None, None, group)
        return funcol.broadcast(swapped + 1, 1, group) + total

    return [mixed(batch) for batch in batches(rank, 2, rows=2 * size)]


@training(ranks=2)
def compiled_gradients_of_collectives(rank: int, size: int) -> list[torch.Tensor]:
    group: Any = dist.group.WORLD

    @torch.compile(backend=COMPILER, fullgraph=True)
    def loss_of(tensor: torch.Tensor) -> torch.Tensor:
        gathered = funcol.all_gather_tensor_autograd(tensor, 0, group)
        return funcol.reduce_scatter_tensor_autograd(gathered.square(), "sum", 0, group).sum()

    (batch,) = batches(rank, 1)
    batch.requires_grad_()
    loss_of(batch).backward()
    assert batch.grad is not None
    return [batch.grad]


@training(ranks=2)
def compiled_ddp(rank: int, size: int) -> list[torch.Tensor]:
    model = network()
    ddp = DDP(model)
    step: Any = torch.compile(ddp, backend=COMPILER)
    steps(step, torch.optim.SGD(ddp.parameters(), lr=0.1), batches(rank, 3))
    return values(model)


@training(ranks=2, rounds=True)
def compiled_fsdp2(rank: int, size: int) -> list[torch.Tensor]:
    model: Any = network()
    fully_shard(model, mesh=init_device_mesh(DEVICE.type, (size,)))
    compiled: Any = torch.compile(model, backend=COMPILER)
    steps(compiled, torch.optim.SGD(model.parameters(), lr=0.1), batches(rank, 3))
    return full(model)
