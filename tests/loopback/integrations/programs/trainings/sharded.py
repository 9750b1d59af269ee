"""FSDP2 and HSDP on CPU tensors."""

from __future__ import annotations

from typing import Any

import torch
from ranks import DEVICE
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard
from torch.distributed.tensor import DTensor
from trainings.register import batches, network, steps, training


def sharded(mesh: DeviceMesh, rank: int, **options: Any) -> list[torch.Tensor]:
    model: Any = network()
    for layer in (model[0], model[2]):
        fully_shard(layer, mesh=mesh, **options)
    fully_shard(model, mesh=mesh, **options)
    steps(model, torch.optim.AdamW(model.parameters(), lr=0.01), batches(rank, 3))
    return full(model)


def full(model: torch.nn.Module) -> list[torch.Tensor]:
    """Parameters of DTensors, whole."""
    return [
        (parameter.full_tensor() if isinstance(parameter, DTensor) else parameter).detach().clone()
        for parameter in model.parameters()
    ]


@training(ranks=2, rounds=True)
def fsdp2(rank: int, size: int) -> list[torch.Tensor]:
    return sharded(init_device_mesh(DEVICE.type, (size,)), rank)


@training(ranks=2, rounds=True)
def fsdp2_reducing_in_float32(rank: int, size: int) -> list[torch.Tensor]:
    policy = MixedPrecisionPolicy(param_dtype=torch.float32, reduce_dtype=torch.float32)
    return sharded(init_device_mesh(DEVICE.type, (size,)), rank, mp_policy=policy, reshard_after_forward=False)


@training(ranks=4)
def fsdp2_of_four(rank: int, size: int) -> list[torch.Tensor]:
    return sharded(init_device_mesh(DEVICE.type, (size,)), rank)


@training(ranks=4)
def hsdp_on_a_mesh_of_two_by_two(rank: int, size: int) -> list[torch.Tensor]:
    return sharded(init_device_mesh(DEVICE.type, (2, 2), mesh_dim_names=("replicas", "shards")), rank)
