"""A rank that all-reduces in turn, and says after each what its group holds for true of its links.

Started as a program in a host of the lab. Standard input ends: stop.
"""

from __future__ import annotations

import argparse
import json
import sys
import threading
import time

import numpy as np

from transport import FileRendezvous, Group, Priority, Settings


def rounds(group: Group, elements: int) -> None:
    """All-reduce, and 64 KiB beside, until rank 0 is told to stop; a line of JSON for each."""
    stop = threading.Event()

    def listen() -> None:
        sys.stdin.read()
        stop.set()

    threading.Thread(target=listen, daemon=True).start()
    expected = group.size * (group.size + 1) / 2
    while True:
        tensor = np.full(elements, group.rank + 1.0, dtype=np.float32)
        tensor[0] = float(group.rank == 0 and stop.is_set())
        group.allreduce(tensor).wait()
        assert (tensor[1:] == expected).all()
        group.allreduce(small := np.ones(16 * 1024, dtype=np.float32)).wait()
        assert (small == group.size).all()
        print(json.dumps(group.explain()), flush=True)
        if tensor[0]:
            return


def overtake(group: Group, elements: int) -> None:
    """A small all-reduce of a group of more urgent tensors, while a large one is under way; a line of JSON."""
    urgent = group.subgroup(range(group.size))
    tensor = np.ones(elements, dtype=np.float32)
    small = np.ones(1000, dtype=np.float32)
    for warm in (small.copy(), np.ones(elements // 10, dtype=np.float32)):
        group.allreduce(warm).wait()
    urgent.allreduce(small.copy(), priority=Priority.ACTIVATION).wait()
    began_s = time.monotonic()
    large = group.allreduce(tensor, priority=Priority.GRADIENT)
    while large.bytes_done < tensor.nbytes // 10:
        time.sleep(0.001)
    asked_s = time.monotonic()
    urgent.allreduce(small, priority=Priority.ACTIVATION).wait()
    took_s, done = time.monotonic() - asked_s, large.bytes_done / large.bytes_total
    large.wait()
    assert (small == group.size).all()
    assert (tensor == group.size).all()
    print(json.dumps({"urgent_s": took_s, "large_s": time.monotonic() - began_s, "large_done": done}), flush=True)


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--does", choices=["rounds", "overtake"], required=True)
    parser.add_argument("--rank", type=int, required=True)
    parser.add_argument("--size", type=int, required=True)
    parser.add_argument("--folder", required=True)
    parser.add_argument("--elements", type=int, required=True)
    options = parser.parse_args()
    settings = Settings(broker="off", job_secret=b"secret of the lab")
    with Group.connect(
        FileRendezvous(options.folder), rank=options.rank, world_size=options.size, settings=settings, timeout_s=60.0
    ) as group:
        {"rounds": rounds, "overtake": overtake}[options.does](group, options.elements)
        group.barrier(timeout_s=30.0).wait()


if __name__ == "__main__":
    main()
