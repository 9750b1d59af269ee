"""One rank of an all_reduce through `torch.distributed`: the same program for Gloo and for our backend."""

from __future__ import annotations

import argparse
import datetime
import time
from collections.abc import Mapping
from typing import Any

import torch
import torch.distributed as dist

from tools.bench.programs.conversation import Begun, Order, cpu_s, serve

TIMEOUT = datetime.timedelta(seconds=60)


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
        )
        return {"torch": torch.__version__}

    def allreduce(self, order: Order, begun: Begun) -> Mapping[str, Any]:
        """Sum one float32 tensor over all ranks, once; every rank starts at the same barrier.

        Raises:
            RuntimeError: the sum is wrong.
        """
        tensor = torch.full((order["bytes"] // 4,), float(self._options.rank + 1))
        begun()
        dist.barrier()
        begin_cpu_s, begin_s = cpu_s(), time.monotonic()
        dist.all_reduce(tensor)
        end_s = time.monotonic()
        expected = self._options.world_size * (self._options.world_size + 1) / 2
        if not bool((tensor == expected).all()):
            raise RuntimeError("the sum is wrong")
        return {"begin_s": begin_s, "end_s": end_s, "cpu_s": cpu_s() - begin_cpu_s}


def main() -> None:
    """`python -m tools.bench.programs.rank --backend gloo --rank 0 --world-size 2`."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--backend", required=True)
    parser.add_argument("--rank", type=int, required=True)
    parser.add_argument("--world-size", type=int, required=True)
    side = RankSide(parser.parse_args())
    try:
        serve({"join": side.join, "allreduce": side.allreduce})
    finally:
        if dist.is_initialized():
            dist.destroy_process_group()


if __name__ == "__main__":
    main()
