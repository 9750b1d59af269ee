"""Runs the schedules of all ranks against each other, in a random order that their dependencies allow, in memory.

A send hands its bytes over some time after it has begun, and is acknowledged some time after they have arrived, so a
schedule that overwrites what is still being sent, or reads what has not arrived, gives wrong values for some seed.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from transport.collectives.kernels import reduce_into
from transport.collectives.reduce_op import ReduceOp
from transport.collectives.schedule import SCRATCH, Copy, Receive, Reduce, Region, Schedule, Send

Array = npt.NDArray[Any]


class Rank:
    def __init__(self, number: int, schedule: Schedule, buffers: Sequence[Array], dtype: str, op: ReduceOp) -> None:
        self.number = number
        self.schedule = schedule
        self.buffers = buffers
        self.dtype = dtype
        self.op = op
        poison = np.full(schedule.scratch_elems, 77, dtype=dtype)
        self.scratch = poison
        self.begun: set[int] = set()
        self.done: set[int] = set()

    def memory(self, region: Region) -> Array:
        buffer = self.scratch if region.buffer == SCRATCH else self.buffers[region.buffer]
        assert 0 <= region.start <= region.stop <= buffer.size
        return buffer[region.start : region.stop]

    def can_begin(self) -> list[int]:
        return [
            index
            for index, step in enumerate(self.schedule.steps)
            if index not in self.begun and set(step.after) <= self.done
        ]


def simulate(
    schedules: Sequence[Schedule],
    buffers: Sequence[Sequence[Array]],
    *,
    dtype: str = "float32",
    op: ReduceOp = ReduceOp.SUM,
    seed: int = 0,
) -> None:
    """Run to the end, changing `buffers` in place.

    Raises:
        AssertionError: a deadlock, an unmatched message, or sizes that differ between the two ends.
    """
    choose = random.Random(seed)
    ranks = [Rank(i, schedule, buffers[i], dtype, op) for i, schedule in enumerate(schedules)]
    wire: dict[tuple[int, int, int], Array | None] = {}
    sends = {
        (rank.number, step.peer, step.part): (rank, index, step)
        for rank in ranks
        for index, step in enumerate(rank.schedule.steps)
        if isinstance(step, Send)
    }
    while True:
        moves: list[tuple[str, Rank, int]] = [("begin", rank, index) for rank in ranks for index in rank.can_begin()]
        for rank in ranks:
            for index in rank.begun - rank.done:
                step = rank.schedule.steps[index]
                if isinstance(step, Send):
                    key = (rank.number, step.peer, step.part)
                    moves.append(("deliver" if key not in wire else "acknowledge", rank, index))
                elif isinstance(step, Receive) and wire.get((step.peer, rank.number, step.part)) is not None:
                    moves.append(("receive", rank, index))
        if not moves:
            break
        what, rank, index = choose.choice(moves)
        step = rank.schedule.steps[index]
        if what == "deliver":
            assert isinstance(step, Send)
            wire[rank.number, step.peer, step.part] = rank.memory(step.source).copy()
        elif what == "acknowledge":
            rank.done.add(index)
        elif what == "receive":
            assert isinstance(step, Receive)
            key = (step.peer, rank.number, step.part)
            content = wire[key]
            assert content is not None
            assert content.size == rank.memory(step.target).size, (key, content.size)
            rank.memory(step.target)[:] = content
            wire[key] = None
            sends.pop(key)
            rank.done.add(index)
        else:
            rank.begun.add(index)
            if isinstance(step, Reduce):
                sources = [rank.memory(one).data.cast("B") for one in step.sources]
                reduce_into(rank.memory(step.target).data.cast("B"), sources, dtype=dtype, op=op)
                rank.done.add(index)
            elif isinstance(step, Copy):
                rank.memory(step.target)[:] = rank.memory(step.source)
                rank.done.add(index)
    for rank in ranks:
        open_steps = set(range(len(rank.schedule.steps))) - rank.done
        assert not open_steps, (
            f"seed {seed}: rank {rank.number} waits in {[rank.schedule.steps[i] for i in open_steps]}"
        )
    assert not sends, f"seed {seed}: sent but never received: {list(sends)}"
