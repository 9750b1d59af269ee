"""Tensor-parallel layers, DTensors that change their placement, and both with FSDP2."""

from __future__ import annotations

from typing import Any

import torch
from ranks import DEVICE
from torch import nn
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import Replicate, Shard, distribute_tensor
from torch.distributed.tensor.parallel import (
    ColwiseParallel,
    RowwiseParallel,
    SequenceParallel,
    loss_parallel,
    parallelize_module,
)
from trainings.register import batches, network, steps, training
from trainings.sharded import full


def parallel(mesh: DeviceMesh) -> Any:
    return parallelize_module(network(), mesh, {"0": ColwiseParallel(), "2": RowwiseParallel()})


@training(ranks=2)
def tensor_parallel(rank: int, size: int) -> list[torch.Tensor]:
    model = parallel(init_device_mesh(DEVICE.type, (size,)))
    steps(model, torch.optim.SGD(model.parameters(), lr=0.1), batches(0, 3))
    return full(model)


@training(ranks=2)
def sequence_parallel_with_a_parallel_loss(rank: int, size: int) -> list[torch.Tensor]:
    mesh = init_device_mesh(DEVICE.type, (size,))
    torch.manual_seed(1)
    plan = {
        "0": RowwiseParallel(input_layouts=Replicate(), output_layouts=Shard(1)),
        "1": SequenceParallel(),
        "2": ColwiseParallel(input_layouts=Shard(1), output_layouts=Shard(-1), use_local_output=False),
    }
    model = parallelize_module(nn.Sequential(nn.Embedding(10, 16), nn.LayerNorm(16), nn.Linear(16, 12)), mesh, plan)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    tokens = torch.arange(12).view(3, 4) % 10
    losses = []
    for _ in range(3):
        optimizer.zero_grad()
        with loss_parallel():
            loss = nn.functional.cross_entropy(model(tokens).flatten(0, 1), tokens.flatten())
            loss.backward()
        optimizer.step()
        losses.append(torch.as_tensor(loss.item()))
    return [*full(model), *losses]


@training(ranks=4)
def dtensors_change_their_placement(rank: int, size: int) -> list[torch.Tensor]:
    mesh = init_device_mesh(DEVICE.type, (2, 2))
    whole = torch.arange(84.0).view(7, 12)  # 7 rows on 2 ranks are not equal
    tensor = distribute_tensor(whole, mesh, [Shard(0), Shard(1)])
    moved = tensor.redistribute(placements=[Shard(1), Replicate()]).redistribute(placements=[Replicate(), Shard(0)])
    product: Any = tensor @ distribute_tensor(whole.t().contiguous(), mesh, [Replicate(), Shard(0)])
    total: Any = tensor.sum()
    return [moved.to_local(), moved.full_tensor(), product.full_tensor(), total.full_tensor()]


@training(ranks=4)
def tensor_parallel_within_fsdp2(rank: int, size: int) -> list[torch.Tensor]:
    mesh = init_device_mesh(DEVICE.type, (2, 2), mesh_dim_names=("data", "tensor"))
    model = parallel(mesh["tensor"])
    fully_shard(model, mesh=mesh["data"])
    steps(model, torch.optim.AdamW(model.parameters(), lr=0.01), batches(mesh["data"].get_local_rank(), 3))
    return full(model)
