"""One rank as a program, for tests that kill ranks: `python transport_programs.py WHAT RANK SIZE DIRECTORY`.

It prints one JSON object a line: what happened, and how long it took.
"""

from __future__ import annotations

import json
import signal
import sys
import threading
import time

import numpy as np

import transport
from hive_qos.errors import TransportError


def say(**fields: object) -> None:
    print(json.dumps(fields), flush=True)


def say_lost(error: TransportError) -> None:
    say(error=type(error).__name__, rank=getattr(error, "rank", None), text=str(error), at_s=time.monotonic())


def steps(group: transport.Group) -> None:
    """All-reduce again and again until something fails."""
    number = 0
    while True:
        tensor = np.full(300_000, group.rank + 1, dtype=np.float32)
        began_s = time.monotonic()
        try:
            group.allreduce(tensor, timeout_s=60.0).wait()
        except TransportError as error:
            say_lost(error)
            return
        number += 1
        if number in (1, 5):
            say(step=number, value=float(tensor[0]), took_s=time.monotonic() - began_s)


def idle(group: transport.Group) -> None:
    """Wait for a message that never comes."""
    try:
        group.recv(None, 1 - group.rank, timeout_s=120.0).wait()
    except TransportError as error:
        say_lost(error)


def crash(group: transport.Group) -> None:
    """Rank 0 ends with an exception that nobody catches, without closing the group."""
    if group.rank == 0:
        group.barrier().wait()
        raise ValueError("a bug in the training script")
    try:
        group.barrier().wait()  # may fail as well: rank 0 has ended, perhaps without acknowledging our part
        group.recv(None, 0, timeout_s=120.0).wait()
    except TransportError as error:
        say_lost(error)


def main() -> None:
    signal.signal(signal.SIGINT, signal.default_int_handler)  # a shell's background jobs are born deaf to it
    what, rank, size, directory = sys.argv[1], int(sys.argv[2]), int(sys.argv[3]), sys.argv[4]
    rendezvous = transport.FileRendezvous(directory)
    group = transport.Group.connect(rendezvous, rank=rank, world_size=size, connect_timeout_s=30.0)
    say(connected=True, threads=threading.active_count())
    {"steps": steps, "idle": idle, "crash": crash}[what](group)
    group.close()
    say(closed=True)


if __name__ == "__main__":
    main()
