"""Ranks that die, hang or are cut off; the survivors report what they are told, and when.

Every scenario has three ranks; rank 1 dies. A survivor reports the error's classes and text, and seconds since then.
"""

from __future__ import annotations

import os
import signal
import sys
import time
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path

import torch
import torch.distributed as dist
import torch.distributed._functional_collectives as funcol

sys.path.insert(0, str(Path(__file__).parent))
from ranks import connect, report

VICTIM = 1
LARGE = 2 * 2**20
"""Elements: a collective of 8 MiB takes aioquic half a second or more, so that a death falls into the middle of one."""


def survive(call: Callable[[], object]) -> None:
    started_s = time.monotonic()
    try:
        call()
    except Exception as error:  # noqa: BLE001 - what it is is the result
        report(
            classes=[kind.__name__ for kind in type(error).__mro__],
            text=str(error),
            rank=getattr(error, "rank", None),
            seconds=time.monotonic() - started_s,
        )
    else:
        report(classes=[], text="nothing was raised", rank=None, seconds=time.monotonic() - started_s)


def die() -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def die_in(seconds: float) -> None:
    """Have a child kill this process later, as the kernel's out-of-memory killer would."""
    victim = os.getpid()
    if os.fork() == 0:
        time.sleep(seconds)
        os.kill(victim, signal.SIGKILL)
        os._exit(0)


def everybody_is_through(rank: int, size: int) -> None:
    """Wait until every rank's collectives so far have ended.

    On the rank that dies they may end before the others': its last acknowledgement would die with it, and the others
    would rightly raise for a collective that is not the one the scenario is about.
    """
    store = dist.distributed_c10d._get_default_store()
    store.set(f"through/{rank}", b"")
    store.wait([f"through/{other}" for other in range(size)], timedelta(seconds=60))


def meet(rank: int, size: int) -> None:
    """Connect, use every connection, and go on when all have."""
    connect()
    dist.barrier()
    everybody_is_through(rank, size)


def before(rank: int, size: int) -> None:
    meet(rank, size)
    if rank == VICTIM:
        die()
    survive(lambda: dist.all_reduce(torch.ones(1000)))
    survive(lambda: dist.all_reduce(torch.ones(1000)))  # known by now: at once
    survive(lambda: funcol.all_reduce(torch.ones(1000), "sum", dist.group.WORLD) + 0)
    survive(dist.all_reduce(torch.ones(1), async_op=True).get_future().wait)


def within(rank: int, size: int) -> None:
    meet(rank, size)
    if rank == VICTIM:
        die_in(0.2)

    def again_and_again() -> None:
        for _ in range(1000):
            dist.all_reduce(torch.ones(LARGE))

    survive(again_and_again)


def after(rank: int, size: int) -> None:
    connect()
    tensor = torch.ones(1000)
    dist.all_reduce(tensor)
    everybody_is_through(rank, size)
    if rank == VICTIM:
        os._exit(3)
    assert tensor[0] == size  # what had ended is good
    survive(lambda: dist.barrier())


def backward(rank: int, size: int) -> None:
    """In DDP's backward: an error that torch's C++ carries, where a plain failed future would be a crash (139)."""
    connect()
    model = torch.nn.Sequential(torch.nn.Linear(256, 256), torch.nn.ReLU(), torch.nn.Linear(256, 8))
    ddp = torch.nn.parallel.DistributedDataParallel(model, bucket_cap_mb=0.05)
    ddp(torch.randn(4, 256)).sum().backward()
    everybody_is_through(rank, size)
    if rank == VICTIM:
        die()

    def step() -> None:
        for _ in range(3):
            ddp(torch.randn(4, 256)).sum().backward()

    survive(step)


def subgroup(rank: int, size: int) -> None:
    """The first use of a subgroup after its member has died (Gloo hangs for its whole timeout)."""
    meet(rank, size)
    if rank == VICTIM:
        die()
    pair = dist.new_group([0, VICTIM], timeout=timedelta(minutes=30))
    other = dist.new_group([VICTIM, 2])  # the victim is rank 0 of this one
    rest = dist.new_group([0, 2])
    if rank == 0:
        survive(lambda: dist.all_reduce(torch.ones(1), group=pair))
    else:
        survive(lambda: dist.all_reduce(torch.ones(1), group=other))
        survive(lambda: dist.recv(torch.empty(1), VICTIM, group=other))
    tensor = torch.ones(1)
    dist.all_reduce(tensor, group=rest)  # the survivors' group does not need the dead
    report(rest=tensor.item())


def shrunk(rank: int, size: int) -> None:
    """Those who are left go on in a smaller default group, whose ranks are counted anew, and in groups of it."""
    meet(rank, size)
    dist.new_group([0, 2])
    if rank == VICTIM:
        die()
    survive(lambda: dist.all_reduce(torch.ones(1000)))
    dist.shrink_group([VICTIM], shrink_flags=dist.distributed_c10d.SHRINK_ABORT)
    total, pair, own = torch.full((1000,), float(rank)), torch.ones(1), torch.ones(1)
    dist.all_reduce(total)
    model = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(1, 1, bias=False), init_sync=False)
    model(torch.full((1, 1), float(rank))).backward()
    dist.all_reduce(pair, group=dist.new_group([1, 0]))
    alone = dist.shrink_group([1 - dist.get_rank()], group=dist.new_group([0, 1]))
    dist.all_reduce(own, group=alone)
    totals = [one.reshape(-1)[0].item() for one in (total, pair, own, model.module.weight.grad)]
    report(place=dist.get_rank(), size=dist.get_world_size(), totals=totals)
    dist.destroy_process_group()


def message(rank: int, size: int) -> None:
    """A receive from a rank that dies; and one from any rank, which somebody else can still serve."""
    meet(rank, size)
    if rank == VICTIM:
        die()
    if rank == 0:
        survive(lambda: dist.recv(torch.empty(1), VICTIM))
        dist.recv(torch.empty(1))
        report(anysource=True)
    else:
        survive(lambda: dist.recv(torch.empty(1), VICTIM, tag=1))
        dist.send(torch.ones(1), 0)


def stopped(rank: int, size: int) -> None:
    """A process that is stopped does not acknowledge: to aioquic it is dead."""
    meet(rank, size)
    if rank == VICTIM:
        die_in(22)  # a stopped process does not end by itself; the others know it long before
        os.kill(os.getpid(), signal.SIGSTOP)
    survive(lambda: dist.all_reduce(torch.ones(1000)))


def aborted(rank: int, size: int) -> None:
    """`abort` ends what is under way, here and, told, on the others."""
    meet(rank, size)
    if rank == VICTIM:
        time.sleep(0.3)
        dist.distributed_c10d._abort_process_group()
        return
    survive(lambda: dist.all_reduce(torch.ones(1000)))


def destroyed(rank: int, size: int) -> None:
    """Destroying a group ends what is under way on this rank, and its peers do not take it for a death."""
    meet(rank, size)
    if rank == VICTIM:
        work = dist.all_reduce(torch.ones(1000), async_op=True)
        dist.destroy_process_group()
        survive(work.wait)
        return
    time.sleep(0.5)
    survive(lambda: dist.recv(torch.empty(1), VICTIM))


def missing(rank: int, size: int) -> None:
    """`monitored_barrier` names the rank that does not come."""
    meet(rank, size)
    store = dist.distributed_c10d._get_default_store()
    if rank != VICTIM:
        survive(lambda: dist.group.WORLD.monitored_barrier(timedelta(seconds=1), False))
        store.set(f"told/{rank}", b"")
    # The victim is alive, and elsewhere; nobody leaves before both others have been told.
    store.wait(["told/0", "told/2"], timedelta(seconds=60))


def never(rank: int, size: int) -> None:
    """A rank that never connects: the others say which within the timeout."""
    if rank == VICTIM:
        return
    survive(lambda: connect(timeout=timedelta(seconds=10)))
