"""DistributedDataParallel in all its modes, and with torch's communication hooks."""

from __future__ import annotations

from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.algorithms.ddp_comm_hooks import (
    debugging_hooks,
    default_hooks,
    optimizer_overlap_hooks,
    post_localSGD_hook,
    powerSGD_hook,
    quantization_hooks,
)
from torch.distributed.algorithms.join import Join
from torch.distributed.algorithms.model_averaging.averagers import PeriodicModelAverager
from torch.distributed.optim import PostLocalSGDOptimizer, ZeroRedundancyOptimizer
from torch.distributed.optim.functional_sgd import _FunctionalSGD
from torch.nn.parallel import DistributedDataParallel as DDP
from trainings.register import batches, network, steps, training, values


def trained(
    model: nn.Module, rank: int, *, hook: Any = None, bucket_cap_mb: float = 0.01, **options: Any
) -> list[torch.Tensor]:
    """Train a model in DDP, in several buckets; `hook` is (state, communication hook)."""
    ddp = DDP(model, bucket_cap_mb=bucket_cap_mb, **options)
    if hook is not None:
        ddp.register_comm_hook(*hook)
    steps(ddp, torch.optim.AdamW(ddp.parameters(), lr=0.01), batches(rank, 4))
    return values(model)


class Branching(nn.Module):
    """Uses one of two layers, or both more than once."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = network(), network()
        self.calls = 0

    def forward(self, batch: torch.Tensor) -> torch.Tensor:
        self.calls += 1
        return (self.first if self.calls % 2 else self.second)(batch)


@training(ranks=2)
def ddp(rank: int, size: int) -> list[torch.Tensor]:
    return trained(network(), rank)


@training(ranks=4)
def ddp_of_four(rank: int, size: int) -> list[torch.Tensor]:
    return trained(network(), rank)


@training(ranks=2)
def ddp_gradient_as_bucket_view(rank: int, size: int) -> list[torch.Tensor]:
    return trained(network(), rank, gradient_as_bucket_view=True)


@training(ranks=2)
def ddp_static_graph(rank: int, size: int) -> list[torch.Tensor]:
    return trained(network(), rank, static_graph=True)


@training(ranks=2)
def ddp_find_unused_parameters(rank: int, size: int) -> list[torch.Tensor]:
    return trained(Branching(), rank, find_unused_parameters=True)


@training(ranks=2)
def ddp_buffers(rank: int, size: int) -> list[torch.Tensor]:
    model = nn.Sequential(nn.Linear(16, 8), nn.BatchNorm1d(8))
    trained(model, rank, broadcast_buffers=True)
    return values(model)[:2]


@training(ranks=2)
def ddp_mixed_precision(rank: int, size: int) -> list[torch.Tensor]:
    model = network().bfloat16()
    ddp = DDP(model, bucket_cap_mb=0.01)
    steps(ddp, torch.optim.SGD(ddp.parameters(), lr=0.01), [batch.bfloat16() for batch in batches(rank, 3)])
    return values(model)


@training(ranks=2)
def ddp_no_sync(rank: int, size: int) -> list[torch.Tensor]:
    model = network()
    ddp = DDP(model)
    optimizer = torch.optim.SGD(ddp.parameters(), lr=0.1)
    for first, second in zip(batches(rank, 3), batches(rank + 10, 3), strict=True):
        optimizer.zero_grad()
        with ddp.no_sync():
            ddp(first).square().mean().backward()
        ddp(second).square().mean().backward()
        optimizer.step()
    return values(model)


@training(ranks=2)
def ddp_join_of_uneven_inputs(rank: int, size: int) -> list[torch.Tensor]:
    model = network()
    ddp = DDP(model)
    optimizer = ZeroRedundancyOptimizer(ddp.parameters(), torch.optim.AdamW, lr=0.01)
    with Join([ddp, optimizer]):
        steps(ddp, optimizer, batches(rank, 3 + 2 * rank))
    return values(model)


@training(ranks=2)
def hook_allreduce(rank: int, size: int) -> list[torch.Tensor]:
    return trained(network(), rank, hook=(None, default_hooks.allreduce_hook))


@training(ranks=2)
def hook_fp16(rank: int, size: int) -> list[torch.Tensor]:
    return trained(network(), rank, hook=(None, default_hooks.fp16_compress_hook))


@training(ranks=2)
def hook_bf16(rank: int, size: int) -> list[torch.Tensor]:
    return trained(network(), rank, hook=(None, default_hooks.bf16_compress_hook))


@training(ranks=2)
def hook_fp16_around_another(rank: int, size: int) -> list[torch.Tensor]:
    return trained(network(), rank, hook=(None, default_hooks.fp16_compress_wrapper(default_hooks.allreduce_hook)))


@training(ranks=2)
def hook_bf16_around_another(rank: int, size: int) -> list[torch.Tensor]:
    return trained(network(), rank, hook=(None, default_hooks.bf16_compress_wrapper(default_hooks.allreduce_hook)))


@training(ranks=2)
def hook_nothing(rank: int, size: int) -> list[torch.Tensor]:
    return trained(network(), rank, hook=(None, debugging_hooks.noop_hook))


@training(ranks=2)
def hook_optimizer_overlap(rank: int, size: int) -> list[torch.Tensor]:
    model = network()
    state = optimizer_overlap_hooks._OptimizerHookState(_FunctionalSGD([], lr=0.1, _allow_empty_param_list=True))
    ddp = DDP(model, bucket_cap_mb=0.01)
    hook = optimizer_overlap_hooks._hook_then_optimizer(default_hooks.allreduce_hook, state)
    ddp.register_comm_hook(None, hook)
    for batch in batches(rank, 3):
        ddp(batch).square().mean().backward()
    return values(model)


# In one bucket: the hook's later collectives begin as the earlier ones end, which is another order on every rank.


@training(ranks=2)
def hook_power_sgd(rank: int, size: int) -> list[torch.Tensor]:
    state = powerSGD_hook.PowerSGDState(None, matrix_approximation_rank=2, start_powerSGD_iter=2)
    return trained(network(), rank, hook=(state, powerSGD_hook.powerSGD_hook), bucket_cap_mb=25)


@training(ranks=2)
def hook_quantized_by_tensor(rank: int, size: int) -> list[torch.Tensor]:
    return trained(
        network(), rank, hook=(dist.group.WORLD, quantization_hooks.quantization_pertensor_hook), bucket_cap_mb=25
    )


@training(ranks=2)
def hook_quantized_by_channel(rank: int, size: int) -> list[torch.Tensor]:
    return trained(
        network(), rank, hook=(dist.group.WORLD, quantization_hooks.quantization_perchannel_hook), bucket_cap_mb=25
    )


@training(ranks=4)
def hook_post_local_sgd(rank: int, size: int) -> list[torch.Tensor]:
    model = network()
    subgroup, _ = dist.new_subgroups(2)
    state = post_localSGD_hook.PostLocalSGDState(process_group=None, subgroup=subgroup, start_localSGD_iter=2)
    ddp = DDP(model)
    ddp.register_comm_hook(state, post_localSGD_hook.post_localSGD_hook)
    averager = PeriodicModelAverager(period=2, warmup_steps=2)
    optimizer = PostLocalSGDOptimizer(torch.optim.SGD(ddp.parameters(), lr=0.1), averager)
    steps(ddp, optimizer, batches(rank, 6))
    return values(model)
