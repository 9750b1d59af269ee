"""Groups whose ranks change (torch 2.15): what each process is told, and what the collectives of each set give.

The handles go over a store that has nothing to do with the groups: each process begins with one of its own, in memory.
"""

from __future__ import annotations

import os
import signal
import sys
import time
from collections.abc import Callable, Sequence
from datetime import timedelta
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist

sys.path.insert(0, str(Path(__file__).parent))
from ranks import connect, report

from integrations.torch_backend.ddp_hook import CompressedGradients, compressed_allreduce

api: Any = dist
"""torch still keeps the names of this interface to itself."""


class Member:
    """One process, known to the others by its number."""

    def __init__(self, number: int, size: int) -> None:
        self.number = number
        self.everybody = range(size)
        self.store = api.TCPStore(
            os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"]), is_master=False, wait_for_workers=False
        )
        connect(store=api.HashStore(), rank=0, world_size=1, enable_reconfigure=True)

    def exchange(self, turn: str, numbers: Sequence[int] | None = None) -> list[str]:
        """The handles of these processes, of which this is one."""
        self.store.set(f"{turn}/{self.number}", api._get_reconfigure_handle())
        return [self.store.get(f"{turn}/{number}").decode() for number in numbers or self.everybody]

    def meet(self, turn: str, numbers: Sequence[int] | None = None) -> None:
        """Wait until these processes are here, too."""
        self.store.set(f"{turn}/{self.number}", "")
        self.store.wait([f"{turn}/{number}" for number in numbers or self.everybody])

    def form(self, uuid: int, numbers: Sequence[int] | None = None) -> None:
        api._reconfigure(uuid, self.exchange(f"form {uuid}", numbers)).wait()
        assert dist.group.WORLD.get_group_store() is not None

    def total(self) -> float:
        tensor = torch.full((1000,), 10.0**self.number)
        dist.all_reduce(tensor)
        return float(tensor[0])


def error_of(call: Callable[[], Any]) -> str:
    try:
        call()
    except RuntimeError as error:
        return str(error)
    return "nothing was raised"


def attempt(uuid: int, handles: Sequence[str], seconds: float = 30.0) -> str:
    return error_of(lambda: api._reconfigure(uuid, list(handles), timeout=timedelta(seconds=seconds)).wait())


def gradient(model: Any) -> float:
    """That of DDP, the mean over ranks of (rank + 1)."""
    model.zero_grad()
    (model(torch.ones(1, 4)).sum() * (dist.get_rank() + 1)).backward()
    return float(model.module.weight.grad[0, 0])


def killed_and_replaced(rank: int, size: int) -> None:
    """Processes 0 to 2 begin; 1 is killed; 0 and 2 go on; 3 comes, which has waited."""
    member = Member(rank, size)
    if rank != 3:
        report(before=error_of(member.total), supported=api._supports_reconfigure())
        compressed = CompressedGradients("int8")
        member.form(1, (0, 1, 2))
        report(place=dist.get_rank(), size=dist.get_world_size(), total=member.total())
        model = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(4, 4))
        hooked = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(4, 4))
        hooked.register_comm_hook(compressed, compressed_allreduce)
        report(gradient=gradient(model), compressed=gradient(hooked))
        member.meet("killing", (0, 1, 2))
        if rank == 1:
            os.kill(os.getpid(), signal.SIGKILL)
        report(lost=error_of(member.total))
        member.form(2, (2, 0))
        report(place=dist.get_rank(), size=dist.get_world_size(), total=member.total())
        report(gradient=gradient(model), compressed=gradient(hooked))
    member.form(3, (0, 2, 3))
    objects: list[object] = [None] * 3
    dist.all_gather_object(objects, rank)
    received = torch.zeros(1)
    if dist.get_rank() == 0:
        dist.send(torch.ones(1), dst=2)
    elif dist.get_rank() == 2:
        dist.recv(received, src=0)
    backend = dist.group.WORLD._get_backend(torch.device("cpu"))
    assert (backend.rank(), backend.size()) == (dist.get_rank(), dist.get_world_size())
    report(place=dist.get_rank(), size=3, total=member.total(), objects=objects, received=received.item())
    pair: Any = dist.new_group([0, 1], use_local_synchronization=True)
    if dist.get_rank() < 2:
        tensor = torch.full((3,), float(rank))
        dist.all_reduce(tensor, group=pair)
        report(pair=tensor[0].item())
    dist.destroy_process_group()


def wrong_handles(rank: int, size: int) -> None:
    """What cannot work is refused at once, and the group goes on as it was."""
    member = Member(rank, size)
    former = member.exchange("form 1")
    report(none=attempt(9, former[1 - rank : 2 - rank]))
    assert attempt(1, former) == "nothing was raised"
    report(
        ungiven=attempt(9, former),
        own=(own := api._get_reconfigure_handle()) == api._get_reconfigure_handle(),
        stale=attempt(9, former),
        doubled=attempt(9, [own, own]),
        malformed=attempt(9, [own, "gloo:0:-1:0:"]),
        empty=attempt(9, []),
        uuid=attempt(1, [own]),
        hints=error_of(lambda: api._reconfigure(9, [own], hints={"color": "blue"})),
        total=member.total(),
    )
    pair: Any = dist.new_group([0, 1])
    report(kept=error_of(lambda: api._get_reconfigure_handle(pair)), supported=api._supports_reconfigure(pair))
    member.meet("end")
    dist.destroy_process_group()
    report(mixed=error_of(lambda: connect("cpu:hive,cuda:gloo", enable_reconfigure=True)))


def stale_and_absent(rank: int, size: int) -> None:
    """Process 2 does not come, or gives a handle of before. The others say so, and come together afterwards."""
    member = Member(rank, size)
    member.form(1)
    handles = member.exchange("absent")
    if rank != 2:
        report(absent=attempt(2, handles, seconds=1.5), after=error_of(member.total))
    member.meet("absent was seen")
    former = handles[2]  # process 2 has not used it, so that it is good
    handles = member.exchange("again")
    assert handles[2] == former
    assert attempt(3, handles) == "nothing was raised"
    report(total=member.total())
    new = member.exchange("stale")
    if rank == 0:
        report(stale=attempt(4, [new[0], handles[2]]))
    member.meet("stale was seen")
    member.form(5)
    report(total=member.total())
    dist.destroy_process_group()


def changes_of_mind(rank: int, size: int) -> None:
    """Operations under way, attempts that a later one or an abort overtakes, and a signal's way out."""
    member = Member(rank, size)
    member.form(1)
    pair: Any = dist.new_group([0, 1])
    pending = dist.all_reduce(torch.ones(10), async_op=True) if rank == 0 else None
    if rank == 1:
        time.sleep(0.5)
    member.form(2)
    if pending is not None:
        report(pending=error_of(pending.wait))
    report(total=member.total())
    dist.all_reduce(tensor := torch.ones(3), group=pair)
    report(pair=tensor[0].item())
    hopeless = api._reconfigure(3, [api._get_reconfigure_handle(), absent_handle()])
    report(during=error_of(member.total))
    assert attempt(4, [api._get_reconfigure_handle()]) == "nothing was raised"
    report(overtaken=error_of(hopeless.wait), alone=member.total())
    hopeless = api._reconfigure(5, [api._get_reconfigure_handle(), absent_handle()])
    group: Any = dist.group.WORLD
    group.abort()
    report(aborted=error_of(hopeless.wait), after=error_of(member.total))
    member.form(6)
    report(total=member.total())
    group.abort()
    report(after=error_of(member.total))
    member.form(7)
    report(total=member.total())
    hopeless = api._reconfigure(8, [api._get_reconfigure_handle(), absent_handle()])
    dist.destroy_process_group()
    report(destroyed=error_of(hopeless.wait), handle=error_of(group.get_reconfigure_handle))


def absent_handle() -> str:
    """Of somebody who will never answer."""
    import transport

    return transport.Listener().handle
