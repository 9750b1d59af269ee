"""A rank that all-reduces until it is told to stop, checks every result, and says how long the slowest took.

Started as a program in a host of the lab. Standard input ends: stop. Each finished round is a line of its own.
"""

from __future__ import annotations

import argparse
import json
import sys
import threading
import time
from typing import Any

import numpy as np

from transport import FileRendezvous, Group, Settings
from transport.engine.base import Priority

ELEMENTS = 250_000
"""1 MB: 80 ms of a link of 100 Mbit/s, so that a change of address always meets one in the middle."""
BULK_ELEMENTS = 50_000
SETTLED_S = 1.0
ROUNDS_FIRST = 3


def connections(group: Group) -> dict[str, list[Any]]:
    """Of each connection, by its number: the peer's address and whether it is bulk."""
    return {str(number): [*one.remote, one.bulk] for number, one in group._runtime.statistics().items()}


def sent_bytes(group: Group) -> dict[str, int]:
    """To each address of the peers, bulk left out."""
    found: dict[str, int] = {}
    for one in group._runtime.statistics().values():
        if not one.bulk:
            found[one.remote[0]] = found.get(one.remote[0], 0) + one.sent_bytes
    return found


def run(group: Group, stop: threading.Event) -> dict[str, Any]:
    """All-reduce and exchange messages both ways until some rank stops."""
    rank, size = group.rank, group.size
    after, before_us, total = (rank + 1) % size, (rank - 1) % size, size * (size + 1) // 2
    ramp = np.arange(ELEMENTS, dtype=np.float32) % 1000
    slowest_s, number = 0.0, 0
    before: dict[str, list[Any]] = {}
    while True:
        tensor = ramp * (rank + 1) + number
        tensor[0] = float(stop.is_set())
        letter = np.full(BULK_ELEMENTS, number * size + rank, dtype=np.int64)
        answer = np.zeros_like(letter)
        began_s = time.monotonic()
        works = [
            group.allreduce(tensor),
            group.send(letter, after, priority=Priority.BULK),
            group.recv(answer, before_us),
        ]
        for work in works:
            work.wait()
        slowest_s = max(slowest_s, time.monotonic() - began_s)
        assert np.array_equal(tensor[1:], ramp[1:] * total + size * number), f"round {number} is wrong"
        assert (answer == number * size + before_us).all(), f"message {number} is wrong"
        number += 1
        if number == ROUNDS_FIRST:  # every connection is there now; statistics are read ten times a second
            time.sleep(SETTLED_S)
            before = connections(group)
            slowest_s = 0.0
        print(number, flush=True)
        if tensor[0] > 0:
            time.sleep(SETTLED_S)
            after_all = {"after": connections(group), "sent_bytes": sent_bytes(group)}
            return {"rounds": number, "slowest_s": slowest_s, "before": before, **after_all}


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--rank", type=int, required=True)
    parser.add_argument("--size", type=int, required=True)
    parser.add_argument("--folder", required=True)
    parser.add_argument("--engine", required=True)
    parser.add_argument("--broker", default="off")
    options = parser.parse_args()
    stop = threading.Event()
    settings = Settings(engine=options.engine, broker=options.broker, job_secret=b"secret of the lab")

    def listen() -> None:
        sys.stdin.read()
        stop.set()

    threading.Thread(target=listen, daemon=True).start()
    rendezvous = FileRendezvous(options.folder)
    began_s = time.monotonic()
    with Group.connect(
        rendezvous, rank=options.rank, world_size=options.size, settings=settings, timeout_s=60.0
    ) as group:
        connected_s = time.monotonic() - began_s
        found = {"connected_s": connected_s} | run(group, stop)
        print(json.dumps(found), flush=True)
        group.barrier(timeout_s=30.0).wait()


if __name__ == "__main__":
    main()
