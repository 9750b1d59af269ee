"""Pipeline parallelism: the schedules GPipe, 1F1B and interleaved 1F1B."""

from __future__ import annotations

from typing import Any

import torch
import torch.distributed as dist
from ranks import DEVICE
from torch import nn
from torch.distributed.pipelining import PipelineStage, Schedule1F1B, ScheduleGPipe, ScheduleInterleaved1F1B
from trainings.register import batches, training

MICROBATCHES = 4


def stage_module(number: int) -> nn.Module:
    torch.manual_seed(number)
    return nn.Sequential(nn.Linear(16, 16), nn.GELU())


def loss_of(output: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
    return nn.functional.mse_loss(output, target)


def piped(schedule: Any, rank: int, size: int, *, per_rank: int = 1) -> list[torch.Tensor]:
    """Train stages that rank r has at r, r + size, ..., and return this rank's gradients and losses."""
    modules = [stage_module(rank + turn * size) for turn in range(per_rank)]
    stages = [PipelineStage(module, rank + turn * size, per_rank * size, DEVICE) for turn, module in enumerate(modules)]
    pipeline = schedule(stages if per_rank > 1 else stages[0], MICROBATCHES, loss_fn=loss_of)
    (batch,) = batches(0, 1, rows=8)
    losses: list[torch.Tensor] = []
    for _ in range(2):
        if rank == 0 and rank == size - 1:
            pipeline.step(batch, target=batch, losses=losses)
        elif rank == 0:
            pipeline.step(batch)
        elif rank == size - 1:
            pipeline.step(target=batch, losses=losses)
        else:
            pipeline.step()
    dist.barrier()
    gradients = [parameter.grad for module in modules for parameter in module.parameters()]
    return [*(gradient.clone() for gradient in gradients if gradient is not None), *losses]


@training(ranks=4)
def pipeline_gpipe(rank: int, size: int) -> list[torch.Tensor]:
    return piped(ScheduleGPipe, rank, size)


@training(ranks=4)
def pipeline_1f1b(rank: int, size: int) -> list[torch.Tensor]:
    return piped(Schedule1F1B, rank, size)


@training(ranks=2)
def pipeline_interleaved_1f1b(rank: int, size: int) -> list[torch.Tensor]:
    return piped(ScheduleInterleaved1F1B, rank, size, per_rank=2)
