"""ZeroRedundancyOptimizer: each rank keeps a part of the optimizer's state."""

from __future__ import annotations

import torch
from torch.distributed.optim import ZeroRedundancyOptimizer
from torch.nn.parallel import DistributedDataParallel as DDP
from trainings.register import batches, network, steps, training, values


@training(ranks=2)
def zero(rank: int, size: int) -> list[torch.Tensor]:
    model = network()
    ddp = DDP(model)
    optimizer = ZeroRedundancyOptimizer(ddp.parameters(), torch.optim.AdamW, lr=0.01)
    steps(ddp, optimizer, batches(rank, 4))
    optimizer.consolidate_state_dict(to=1)
    state = optimizer.state_dict()["state"] if rank == 1 else {}
    return [*values(model), *(moments["exp_avg"] for moments in state.values())]


@training(ranks=4)
def zero_parameters_as_bucket_view(rank: int, size: int) -> list[torch.Tensor]:
    model = network()
    ddp = DDP(model)
    optimizer = ZeroRedundancyOptimizer(ddp.parameters(), torch.optim.SGD, parameters_as_bucket_view=True, lr=0.1)
    steps(ddp, optimizer, batches(rank, 4))
    return values(model)
