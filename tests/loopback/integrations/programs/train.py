"""An ordinary torchrun script; nothing in it but the backend's name knows of hive.

    torchrun --nproc-per-node=2 train.py BACKEND OUTPUT

Rank 0 writes the losses and the weights; every rank checks that it has the same weights as the others.
"""

import sys

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, TensorDataset
from torch.utils.data.distributed import DistributedSampler


def main() -> None:
    backend, output = sys.argv[1:]
    dist.init_process_group(backend)
    rank, size = dist.get_rank(), dist.get_world_size()
    torch.manual_seed(rank)
    generator = torch.Generator().manual_seed(7)
    inputs = torch.randn(256, 32, generator=generator)
    targets = inputs @ torch.randn(32, 4, generator=generator)
    data = TensorDataset(inputs, targets)
    sampler: DistributedSampler[tuple[torch.Tensor, ...]] = DistributedSampler(
        data, num_replicas=size, rank=rank, seed=3
    )
    loader = DataLoader(data, batch_size=16, sampler=sampler)
    model = torch.nn.Sequential(
        torch.nn.Linear(32, 64), torch.nn.BatchNorm1d(64), torch.nn.GELU(), torch.nn.Linear(64, 4)
    )
    ddp = DistributedDataParallel(model, bucket_cap_mb=0.01)
    optimizer = torch.optim.AdamW(ddp.parameters(), lr=0.01)
    losses = []
    for epoch in range(3):
        sampler.set_epoch(epoch)
        total = torch.zeros(1)
        for batch, target in loader:
            optimizer.zero_grad()
            loss = torch.nn.functional.mse_loss(ddp(batch), target)
            loss.backward()
            torch.nn.utils.clip_grad_norm_(ddp.parameters(), 1.0)
            optimizer.step()
            total += loss.detach()
        dist.all_reduce(total, op=dist.ReduceOp.SUM)
        losses.append(total.item())
    weights = torch.cat([parameter.detach().flatten() for parameter in model.parameters()])
    everybody = [torch.empty_like(weights) for _ in range(size)]
    dist.all_gather(everybody, weights)
    if not all(torch.equal(one, weights) for one in everybody):
        raise SystemExit("weights differ between ranks")
    dist.barrier()
    if rank == 0:
        torch.save({"losses": losses, "weights": weights}, output)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
