"""One rank: carries out collectives through `torch.distributed`, the same calls whatever the backend."""

from __future__ import annotations

import argparse
import datetime
import threading
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist

from tools.bench.programs.conversation import Begun, Order, cpu_s, serve
from tools.collectivesbench.programs import urgent
from tools.collectivesbench.programs.training import train

TIMEOUT = datetime.timedelta(seconds=300)
"""The slowest measurement: Gloo over cubic TCP on a lossy path, with room."""


ROUGH = 0.1
"""Relative error that a compressed row of sums may have. Wrong bytes or a missing rank are further off."""


class RankSide:
    """The handlers of this program's orders."""

    def __init__(self, options: argparse.Namespace) -> None:
        self._options = options

    def join(self, order: Order, begun: Begun) -> Mapping[str, Any]:
        """Make the process group; every rank gets this order before any answers."""
        begun()
        dist.init_process_group(
            self._options.backend,
            init_method=f"tcp://{order['address']}:{order['port']}",
            rank=self._options.rank,
            world_size=self._options.world_size,
            timeout=TIMEOUT,
            pg_options={"compression": self._options.compression} if self._options.compression else None,
        )
        dist.barrier()  # where connections are made at the first use, they are made here
        return {"torch": torch.__version__}

    def collective(self, order: Order, begun: Begun) -> Mapping[str, Any]:
        """Do one operation on float32 `count` times in a row, after a barrier.

        Raises:
            RuntimeError: the result is wrong.
        """
        rank, world, count = self._options.rank, self._options.world_size, order["count"]
        with torch.device(self._options.device):
            prepared = _prepared(order["operation"], order["bytes"] // 4, rank=rank, world=world, count=count)
        call, result, expected = prepared
        begun()
        dist.barrier()
        begin_cpu_s, begin_python_s, begin_s = cpu_s(), python_s(), time.monotonic()
        for _ in range(count):
            call()
        if result.is_cuda:
            torch.cuda.synchronize()  # Gloo's wait holds up the stream alone
        end_s = time.monotonic()
        used = {"cpu_s": cpu_s() - begin_cpu_s, "python_s": python_s() - begin_python_s}
        right = torch.allclose(result, expected, rtol=ROUGH) if self._options.compression else result.equal(expected)
        if not right:
            raise RuntimeError(f"the result of {order['operation']} is wrong")
        return {"begin_s": begin_s, "end_s": end_s, **used}

    def urgent(self, order: Order, begun: Begun) -> Mapping[str, Any]:
        """Time urgent all-reduces alone and beside a large one."""
        return urgent.measure(order, begun)

    def train(self, order: Order, begun: Begun) -> Mapping[str, Any]:
        """Train a model; the curve is rank 0's to tell."""
        begin_cpu_s = cpu_s()
        found = train(order, begun)
        if self._options.rank != 0:
            del found["curve"]
        return {**found, "cpu_s": cpu_s() - begin_cpu_s}


def python_s() -> float:
    """CPU seconds so far of the threads that Python knows, what they call in native code included.

    Native threads (an engine's, Gloo's) are not among them: this is the most that Python can have used. A thread that
    has ended counts no more.
    """
    ids = [thread.native_id for thread in threading.enumerate()]
    return sum(_thread_ns(thread_id) for thread_id in ids if thread_id is not None) / 1e9


def _thread_ns(thread_id: int) -> int:
    """Nanoseconds on a processor (kernel documentation, sched-stats: the first field); 0 for a thread that is gone."""
    try:
        return int(Path(f"/proc/self/task/{thread_id}/schedstat").read_text(encoding="ascii").split()[0])
    except (FileNotFoundError, ProcessLookupError):
        return 0


def _prepared(
    operation: str, elements: int, *, rank: int, world: int, count: int
) -> tuple[Callable[[], object], torch.Tensor, torch.Tensor]:
    """The call, the tensor that it fills, and what has to be in it after `count` calls.

    All values are small whole numbers, so that the sum is the same in every order. A repeated all_reduce multiplies
    its own result: a power of two at most 8 ** 31 times 36, which float32 holds exactly.
    """
    part = max(1, elements // world)
    whole = torch.full((part * world,), float(rank + 1))
    total = world * (world + 1) / 2
    match operation:
        case "all_reduce":
            tensor = torch.full((elements,), float(rank + 1))
            return lambda: dist.all_reduce(tensor), tensor, torch.full_like(tensor, total * world ** (count - 1))
        case "all_gather":
            brought, gathered = torch.full((part,), float(rank + 1)), torch.zeros(part * world)
            expected = torch.arange(1.0, world + 1).repeat_interleave(part)
            return lambda: dist.all_gather_into_tensor(gathered, brought), gathered, expected
        case "reduce_scatter":
            reduced = torch.zeros(part)
            return lambda: dist.reduce_scatter_tensor(reduced, whole), reduced, torch.full_like(reduced, total)
        case "broadcast":
            tensor = torch.full((elements,), float(rank + 1))
            return lambda: dist.broadcast(tensor, src=0), tensor, torch.ones_like(tensor)
        case "all_to_all":
            taken = torch.zeros(part * world)
            expected = torch.arange(1.0, world + 1).repeat_interleave(part)
            return lambda: dist.all_to_all_single(taken, whole), taken, expected
    raise RuntimeError(f"no operation {operation!r}")


def main() -> None:
    """`python -m tools.collectivesbench.programs.rank --backend gloo --rank 0 --world-size 2`."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--backend", required=True)
    parser.add_argument("--rank", type=int, required=True)
    parser.add_argument("--world-size", type=int, required=True)
    parser.add_argument("--compression", default="")
    parser.add_argument("--device", default="cpu")
    side = RankSide(parser.parse_args())
    try:
        serve({"join": side.join, "collective": side.collective, "urgent": side.urgent, "train": side.train})
    finally:
        if dist.is_initialized():
            dist.destroy_process_group()


if __name__ == "__main__":
    main()
