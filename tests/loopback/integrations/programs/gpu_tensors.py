"""GPU tensors over hive: staged in order, complete when told, with gradients that are still being computed."""

from __future__ import annotations

import sys
import time
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

sys.path.insert(0, str(Path(__file__).parent))
from checks import raises
from ranks import DEVICE, connect

SLEEP_CYCLES = 200_000_000
"""A tenth of a second of a GPU's clock."""


def run(rank: int, size: int) -> None:
    connect()
    total = size * (size + 1) / 2
    in_the_order_of_the_calls(rank, total)
    after_the_callers_stream(rank)
    in_pieces(rank, total)
    on_a_stream_beside(rank, total)
    in_a_callback(rank, total)
    trained(rank, size)
    dist.destroy_process_group()


def in_the_order_of_the_calls(rank: int, total: float) -> None:
    """The values are the end of a queue of work; the CPU tensors after them must keep their place in the order."""
    slow = torch.randn(2048, 2048)
    for _ in range(5):
        late = torch.full((100_000,), float(rank + 1)) + 0 * (slow @ slow @ slow).sum()
        works = [dist.all_reduce(late, async_op=True)]
        early = torch.full((10,), float(rank + 1), device="cpu")
        works.append(dist.all_reduce(early, async_op=True))
        for work in works:
            work.wait()
        assert (late + 0).eq(total).all()
        assert early.eq(total).all()


def after_the_callers_stream(rank: int) -> None:
    """What is only written waits for the caller's stream as well: the fill is queued long before it is done."""
    kept = torch.empty(1000)
    torch.cuda._sleep(SLEEP_CYCLES)
    kept.fill_(7.0 + rank)
    dist.broadcast(kept, 0)
    assert kept.eq(7).all()
    torch.cuda._sleep(SLEEP_CYCLES)
    kept.fill_(9)
    if rank == 0:
        dist.send(kept, 1)
    elif rank == 1:
        kept.fill_(5)
        dist.recv(kept, 0)
    torch.cuda.synchronize()
    assert kept.eq(9).all()


def in_pieces(rank: int, total: float) -> None:
    """Of large tensors, whose memory is given to others as soon as nobody here holds it."""
    elems = 8 * 2**20 + 3
    for turn in range(4):
        torch.cuda._sleep(SLEEP_CYCLES // 10)
        large = torch.full((elems,), float(rank + 1) * (turn + 1))
        work = dist.all_reduce(large, async_op=True)
        given = torch.full((elems,), float(rank + 1) * 3)
        kept_alive = dist.all_reduce(given, async_op=True)
        del given
        torch.full((elems,), -1.0)  # takes the memory of whatever was let go
        work.wait()
        assert large.eq(total * (turn + 1)).all()
        (result,) = kept_alive.result()
        assert result.eq(3 * total).all()


def on_a_stream_beside(rank: int, total: float) -> None:
    stream = torch.cuda.Stream()
    with torch.cuda.stream(stream):
        torch.cuda._sleep(SLEEP_CYCLES)
        tensor = torch.full((100_000,), float(rank + 1))
        dist.all_reduce(tensor)
        doubled = tensor * 2
    torch.cuda.current_stream().wait_stream(stream)
    assert doubled.eq(2 * total).all()


def in_a_callback(rank: int, total: float) -> None:
    tensor = torch.full((2_000_000,), float(rank + 1))
    future = dist.all_reduce(tensor, async_op=True).get_future().then(lambda done: done.value()[0] * 10)
    assert future.wait().eq(10 * total).all()


def trained(rank: int, size: int) -> None:
    """DDP ends with the same bits on all ranks, under autocast and with DDP's own mixed precision as well."""
    precision: Any = torch.distributed.fsdp.MixedPrecision(param_dtype=torch.bfloat16, reduce_dtype=torch.bfloat16)
    for autocast, options in ((False, {}), (True, {}), (False, {"mixed_precision": precision})):
        torch.manual_seed(0)
        model = nn.Sequential(nn.Linear(64, 256), nn.ReLU(), nn.Linear(256, 8))
        ddp = DistributedDataParallel(model, device_ids=[torch.cuda.current_device()], bucket_cap_mb=0.05, **options)
        optimizer = torch.optim.SGD(ddp.parameters(), lr=0.1)
        generator = torch.Generator().manual_seed(rank)
        for _ in range(5):
            optimizer.zero_grad()
            batch = torch.randn(32, 64, generator=generator, device="cpu").to(DEVICE)
            with torch.autocast(DEVICE.type, torch.bfloat16, enabled=autocast):
                loss = ddp(batch).float().square().mean()
            loss.backward()
            optimizer.step()
        flat = torch.cat([parameter.detach().flatten() for parameter in model.parameters()])
        assert flat.isfinite().all()
        every = [torch.empty_like(flat) for _ in range(size)]
        dist.all_gather(every, flat)
        assert all(torch.equal(one, flat) for one in every)


def broken(rank: int, size: int) -> None:
    """A kernel of rank 1 fails, and its GPU with it: the others' operation ends and says so."""
    connect()
    started_s = time.monotonic()
    tensor = torch.ones(1000)
    if rank == 1:
        torch.cuda._sleep(SLEEP_CYCLES)
        tensor = tensor[torch.full((1000,), 5000)]
    raises(RuntimeError, lambda: dist.all_reduce(tensor), "device-side assert" if rank == 1 else "rank 1 gave up")
    assert time.monotonic() - started_s < 30
