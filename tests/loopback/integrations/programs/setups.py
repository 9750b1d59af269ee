"""Ways to start and to end that an ordinary script may have."""

from __future__ import annotations

import os
import sys
import threading
import time
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

sys.path.insert(0, str(Path(__file__).parent))
from ranks import connect, report

from integrations.volatile import DiLoCo, Site
from transport.settings import Settings
from transport.volatile.register.register import MemoryStore, Register


def work(size: int) -> None:
    tensor = torch.ones(10)
    dist.all_reduce(tensor)
    model = DistributedDataParallel(torch.nn.Linear(4, 4))
    model(torch.ones(1, 4)).sum().backward()
    report(total=tensor[0].item(), gradient=model.module.weight.grad.sum().item())


def alone(rank: int, size: int) -> None:
    connect()
    work(size)
    dist.destroy_process_group()


def profiled(rank: int, size: int) -> None:
    connect()
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU]) as profile:
        dist.barrier()
        time.sleep(rank * 0.3)
        dist.all_reduce(torch.ones(10))
        if rank == 0:
            dist.send(torch.ones(10), 1)
        else:
            dist.recv(torch.ones(10), 0)
    dist.destroy_process_group()
    shown = {event.name: event.time_range.elapsed_us() for event in profile.events() if event.name.startswith("hive:")}
    report(shown=sorted(shown), waited=rank == 1 or shown["hive:all_reduce"] > 200_000)


def with_a_secret_and_no_broker(rank: int, size: int) -> None:
    os.environ.update(HIVE_JOB_SECRET="secret of the test", HIVE_BROKER="/nonexistent/session.sock")
    connect()
    work(size)
    dist.destroy_process_group()


def in_debug_detail(rank: int, size: int) -> None:
    os.environ["TORCH_DISTRIBUTED_DEBUG"] = "DETAIL"
    dist.set_debug_level_from_env()
    connect()
    work(size)
    dist.destroy_process_group()


def without_destroying(rank: int, size: int) -> None:
    """A script that just ends; nobody must hang or take it for a death."""
    connect()
    work(size)


def in_a_file(rank: int, size: int) -> None:
    """Meeting in a file, as `mp.spawn` scripts do; the store has no address to go by."""
    path = f"{os.environ['SCRATCH']}/store"
    connect(init_method=f"file://{path}", rank=rank, world_size=size)
    work(size)
    dist.destroy_process_group()


def beside_gloo(rank: int, size: int) -> None:
    """Gloo for the default group and hive for one of its own, with a subgroup on the same connections."""
    connect("gloo")
    group = dist.new_group(list(range(size)), backend="hive")
    pair = dist.new_group([0, 1], backend="hive")
    tensor = torch.ones(10)
    dist.all_reduce(tensor, group=group)
    gradient = 0.0
    if rank < 2:
        dist.all_reduce(tensor, group=pair)
        dist.destroy_process_group(group)
        dist.all_reduce(tensor, group=pair)  # the connections live as long as a group is on them
    report(total=tensor[0].item(), gradient=gradient)
    dist.barrier()
    dist.destroy_process_group()


def with_a_wrong_variable(rank: int, size: int) -> None:
    os.environ["HIVE_ENGINE"] = "pigeon"
    try:
        connect()
    except RuntimeError as error:
        report(text=str(error))


def with_a_device_id(rank: int, size: int) -> None:
    """As scripts do that say which device is a rank's; torch then splits the default group to make others."""
    for backend in ("hive", "cpu:hive,cuda:gloo"):
        connect(backend, device_id=torch.device("cpu:0"))
        device = dist.group.WORLD.bound_device_id
        mixed = type(dist.group.WORLD) is dist.ProcessGroup
        pair = dist.new_group([0, 1])
        tensor = torch.ones(10)
        if rank < 2:
            dist.all_reduce(tensor, group=pair)
        dist.barrier()
        report(device=str(device), mixed=mixed, total=tensor[0].item())
        dist.destroy_process_group()


def with_a_device_id_and_no_backend(rank: int, size: int) -> None:
    """With the adapter for torch 2.13."""
    from integrations.torch_backend import process_group

    process_group.backend_can_be_subclassed = lambda: False
    os.environ["TORCH_FR_BUFFER_SIZE"] = "0"
    connect(device_id=torch.device("cpu:0"))
    work(size)
    dist.destroy_process_group()


def split_beside_a_gpu(rank: int, size: int) -> None:
    """torch 2.13 splits groups where there is a GPU alone; here torch is told that there is one."""
    torch.accelerator.is_available = lambda: True
    torch.accelerator.device_count = lambda: 1
    torch.accelerator.current_accelerator = lambda *_: torch.device("cuda")
    connect(device_id=torch.device("cuda:0"))
    group = dist.split_group(split_ranks=[[0, 2], [1]])
    tensor = torch.ones(10)
    dist.all_reduce(tensor, group=group)
    pair = dist.new_group([0, 1])
    if rank < 2:
        dist.all_reduce(tensor, group=pair)
    report(total=tensor[0].item(), device=str(dist.group.WORLD.bound_device_id))
    dist.destroy_process_group()


def as_one_member(rank: int, size: int) -> None:
    """A site of two ranks, with DDP inside, meets a member of one process, which is a thread beside its first rank."""
    connect()
    where = Register(MemoryStore(), job="sites", secret=b"0123456789abcdef")
    site, alone = (_small_model() for _ in range(2))
    algorithm = Site(DiLoCo(site.parameters(), every=3))
    how: dict[str, Any] = {"members_min": 2, "settings": Settings(listen="127.0.0.1", broker="off")}

    def train_alone() -> None:
        diloco = DiLoCo(alone.parameters(), every=3)
        with diloco.join(where, name="alone", **how):
            _train(alone, diloco, first=2)

    thread = threading.Thread(target=train_alone)
    if rank == 0:
        thread.start()
    with algorithm.join(where, name="site", **how) as group:
        _train(DistributedDataParallel(site), algorithm, first=rank)
        report(leads=group is not None)
    if rank == 0:
        thread.join()
    report(parameters=_flat(site), others=_flat(alone), at_first=_flat(_small_model()))
    dist.destroy_process_group()


def _small_model() -> torch.nn.Module:
    torch.manual_seed(1)
    return torch.nn.Linear(4, 2)


def _flat(model: torch.nn.Module) -> list[float]:
    return torch.cat([one.detach().reshape(-1) for one in model.parameters()]).tolist()


def _train(model: torch.nn.Module, algorithm: Site | DiLoCo, *, first: int) -> None:
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for number in range(7):
        inputs = torch.randn(4, 4, generator=torch.Generator().manual_seed(10 * number + first))
        optimizer.zero_grad()
        model(inputs).square().mean().backward()
        with algorithm.step(tokens=4):
            optimizer.step()
    algorithm.finish()
