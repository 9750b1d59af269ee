"""Distributed checkpoints: saved at once and in the background, and loaded in another layout."""

from __future__ import annotations

import os
import tempfile
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
import torch.distributed.checkpoint
from ranks import DEVICE
from torch.distributed.checkpoint.state_dict import get_state_dict, set_state_dict
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from trainings.register import batches, network, steps, training
from trainings.sharded import full

dcp: Any = torch.distributed.checkpoint  # it exports more than it lists


def folder() -> Path:
    """One new folder for all ranks."""
    box = [tempfile.mkdtemp(dir=os.environ["SCRATCH"]) if dist.get_rank() == 0 else None]
    dist.broadcast_object_list(box)
    assert box[0] is not None
    return Path(box[0])


def trained(rank: int, mesh: Any, count: int) -> tuple[Any, torch.optim.Optimizer]:
    model: Any = network()
    fully_shard(model, mesh=mesh)
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
    steps(model, optimizer, batches(rank, count))
    return model, optimizer


def state_of(model: Any, optimizer: torch.optim.Optimizer) -> dict[str, Any]:
    weights, moments = get_state_dict(model, optimizer)
    return {"model": weights, "optimizer": moments}


def restored(path: Path, rank: int, mesh: Any) -> list[torch.Tensor]:
    """A fresh model and optimizer with the saved state, and a step further."""
    model, optimizer = trained(rank, mesh, 1)
    state = state_of(model, optimizer)
    dcp.load(state, checkpoint_id=path)
    set_state_dict(model, optimizer, model_state_dict=state["model"], optim_state_dict=state["optimizer"])
    loaded = full(model)
    steps(model, optimizer, batches(rank + 5, 1))
    return [*loaded, *full(model)]


@training(ranks=2, rounds=True)
def checkpoint_saved_and_loaded(rank: int, size: int) -> list[torch.Tensor]:
    mesh = init_device_mesh(DEVICE.type, (size,))
    path = folder()
    model, optimizer = trained(rank, mesh, 2)
    dcp.save(state_of(model, optimizer), checkpoint_id=path)
    values = restored(path, rank, mesh)
    assert all(torch.equal(ours, saved) for ours, saved in zip(values, full(model), strict=False))
    return values


@training(ranks=2, rounds=True)
def checkpoint_saved_in_the_background(rank: int, size: int) -> list[torch.Tensor]:
    """torch plans an asynchronous checkpoint on a thread, over a group of its own."""
    mesh = init_device_mesh(DEVICE.type, (size,))
    path = folder()
    model, optimizer = trained(rank, mesh, 2)
    beside: Any = dist.new_group()
    saving: Any = dcp.async_save(state_of(model, optimizer), checkpoint_id=path, process_group=beside)
    saved = full(model)
    steps(model, optimizer, batches(rank + 3, 2))  # training goes on meanwhile
    saving.result()
    values = restored(path, rank, mesh)
    assert all(torch.equal(ours, one) for ours, one in zip(values, saved, strict=False))
    return values


@training(ranks=4)
def checkpoint_loaded_in_another_layout(rank: int, size: int) -> list[torch.Tensor]:
    path = folder()
    model, optimizer = trained(rank, init_device_mesh(DEVICE.type, (size,)), 2)
    dcp.save(state_of(model, optimizer), checkpoint_id=path)
    return restored(path, rank, init_device_mesh(DEVICE.type, (2, 2), mesh_dim_names=("replicas", "shards")))
