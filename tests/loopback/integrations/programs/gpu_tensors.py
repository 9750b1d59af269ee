"""GPU tensors over hive: staged in order, complete when told, with gradients that are still being computed."""

from __future__ import annotations

import sys
from pathlib import Path

import torch
import torch.distributed as dist

sys.path.insert(0, str(Path(__file__).parent))
from ranks import connect


def run(rank: int, size: int) -> None:
    connect()
    device = torch.device("cuda", rank % torch.cuda.device_count())
    torch.cuda.set_device(device)
    slow = torch.randn(2048, 2048, device=device)
    for _ in range(5):
        # The values are the end of a queue of work; the CPU tensors after them must keep their place in the order.
        late = torch.full((100_000,), float(rank + 1), device=device) + 0 * (slow @ slow @ slow).sum()
        works = [dist.all_reduce(late, async_op=True)]
        early = torch.full((10,), float(rank + 1))
        works.append(dist.all_reduce(early, async_op=True))
        for work in works:
            work.wait()
        assert (late + 0).eq(size * (size + 1) / 2).all()
        assert early.eq(size * (size + 1) / 2).all()
    # What is only written waits for the caller's stream as well: the fill is queued long before it is done.
    kept = torch.empty(1000, device=device)
    torch.cuda._sleep(200_000_000)
    kept.fill_(7.0 + rank)
    dist.broadcast(kept, 0)
    assert kept.eq(7).all()
    torch.cuda._sleep(200_000_000)
    kept.fill_(9)
    if rank == 0:
        dist.send(kept, 1)
    elif rank == 1:
        kept.fill_(5)
        dist.recv(kept, 0)
    torch.cuda.synchronize()
    assert kept.eq(9).all()
    gathered = torch.empty(size, 3, device=device, dtype=torch.bfloat16)
    dist.all_gather_into_tensor(gathered, torch.full((3,), float(rank), device=device, dtype=torch.bfloat16))
    assert gathered.float().mean(1).tolist() == list(range(size))
    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Linear(64, 256), torch.nn.ReLU(), torch.nn.Linear(256, 8)).to(device)
    ddp = torch.nn.parallel.DistributedDataParallel(model, device_ids=[device], bucket_cap_mb=0.05)
    optimizer = torch.optim.SGD(ddp.parameters(), lr=0.1)
    generator = torch.Generator().manual_seed(rank)
    for _ in range(5):
        optimizer.zero_grad()
        ddp(torch.randn(32, 64, generator=generator).to(device)).square().mean().backward()
        optimizer.step()
    flat = torch.cat([parameter.detach().flatten() for parameter in model.parameters()])
    every = [torch.empty_like(flat) for _ in range(size)]
    dist.all_gather(every, flat)
    assert all(torch.equal(one, flat) for one in every)
    dist.destroy_process_group()
