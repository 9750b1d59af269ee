"""One rank of a training job: a step is some computing, then one all_reduce over the transport. Plain numpy, no torch.

Computing sleeps by default, as a program does whose work is on an accelerator: on a machine with few cores ranks that
compute would take them from the network. The transport is used as any program uses it, with one thing added: the
controller can switch announcements off and on while the group lives, for the variant without them.
"""

from __future__ import annotations

import argparse
import random
import time
from collections.abc import Mapping
from typing import Any

import numpy as np

import transport
from broker.client import Session
from tools.measure.grants import ControllerGoneError, Grants
from transport.broker import session

CONNECT_S_MAX = 60.0
SEED = 1
STEP_S_MAX = 40.0


class SwitchedSession(Session):
    """A session that can keep its bursts to itself. Everything else is told as ever."""

    announcing = True

    def announce(
        self, *, step: int, bytes_by_destination: Mapping[str, int], deadline_s: float, next_s: float | None = None
    ) -> None:
        """Say that a burst begins, where that is wanted."""
        if SwitchedSession.announcing:
            super().announce(step=step, bytes_by_destination=bytes_by_destination, deadline_s=deadline_s, next_s=next_s)

    def announce_end(self, *, step: int) -> None:
        """Say that it is over, likewise."""
        if SwitchedSession.announcing:
            super().announce_end(step=step)


def compute(seconds: float, *, busy: bool) -> None:
    """Take so long: asleep, or on a core."""
    if not busy:
        time.sleep(seconds)
        return
    until_s = time.monotonic() + seconds
    block = np.ones((64, 64), dtype=np.float32)
    while time.monotonic() < until_s:
        block @ block


def run(options: argparse.Namespace) -> None:
    """Join the group, step as far as the controller grants."""
    grants = Grants(options.control)
    rendezvous = transport.TcpRendezvous(options.meet, serve=options.rank == 0)
    gradients = np.full(options.payload_bytes // 4, float(options.rank), dtype=np.float32)
    loss = np.full(1, float(options.rank), dtype=np.float32)
    with transport.Group.connect(
        rendezvous, rank=options.rank, world_size=options.world, timeout_s=CONNECT_S_MAX
    ) as group:
        grants.say("hello", {"rank": options.rank})
        step, dice = 0, random.Random(SEED)  # the same for all ranks
        while grants.may_run(step):
            SwitchedSession.announcing = bool(grants.told.get("announce", True))
            cpu_s, begin_s = time.process_time(), time.monotonic()
            factor = dice.uniform(0.5, 2.0) if options.irregular else 1.0
            compute(factor * options.compute_s, busy=options.busy)
            reduce_s = time.monotonic()
            group.allreduce(gradients, transport.ReduceOp.MEAN, timeout_s=STEP_S_MAX).wait()
            if options.scalar:
                group.allreduce(loss, transport.ReduceOp.MEAN, timeout_s=STEP_S_MAX).wait()
            end_s = time.monotonic()
            record: dict[str, Any] = {"rank": options.rank, "step": step, "start_s": begin_s, "end_s": end_s}
            record |= {"step_s": end_s - begin_s, "reduce_s": end_s - reduce_s}
            grants.say("step", {**record, "cpu_s": time.process_time() - cpu_s})
            step += 1
        grants.say("done", {"rank": options.rank})


def main() -> None:
    parser = argparse.ArgumentParser(description="One rank of the benchmark's training.")
    parser.add_argument("--control", required=True, help="Unix socket of the controller")
    parser.add_argument("--rank", type=int, required=True)
    parser.add_argument("--world", type=int, default=2)
    parser.add_argument("--meet", required=True, help="where rank 0 waits for the others")
    parser.add_argument("--payload-bytes", type=int, required=True)
    parser.add_argument("--compute-s", type=float, required=True)
    parser.add_argument("--irregular", action="store_true", help="computing takes half to twice as long, at random")
    parser.add_argument("--scalar", action="store_true", help="reduce a scalar too, at the end of each step")
    parser.add_argument("--busy", action="store_true", help="compute on a core, not asleep")
    session.Session = SwitchedSession  # type: ignore[attr-defined]  # the class that BrokerSession makes its session of
    try:
        run(parser.parse_args())
    except ControllerGoneError:
        raise SystemExit(3) from None


if __name__ == "__main__":
    main()
