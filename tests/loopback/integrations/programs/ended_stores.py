"""A group that has ended leaves its port to others, and a child that is forked after it, or from it, makes its own."""

from __future__ import annotations

import os
import socket
import sys
from collections.abc import Callable

import torch
import torch.distributed as dist


def reduce_alone(port: str) -> None:
    dist.init_process_group("hive", init_method=f"tcp://127.0.0.1:{port}", rank=0, world_size=1)
    dist.all_reduce(torch.ones(3))
    nothing = torch.ones(3, device="meta")  # as in a dry run: nothing is to be done
    dist.all_reduce(nothing)
    dist.all_to_all_single(nothing, nothing)


def in_child(body: Callable[[], None]) -> None:
    child = os.fork()
    if child == 0:
        body()
        os._exit(0)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0


def main() -> None:
    first, second, third = sys.argv[1:]
    reduce_alone(first)
    dist.destroy_process_group()
    with socket.socket() as sock:
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        sock.bind(("127.0.0.1", int(first)))
        sock.listen()
    in_child(lambda: reduce_alone(second))
    reduce_alone(first)

    def anew() -> None:
        dist.destroy_process_group()
        reduce_alone(third)

    in_child(anew)
    dist.all_reduce(torch.ones(3))
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
