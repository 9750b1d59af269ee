"""Runs the schedules of all ranks against each other, in a random order that their dependencies allow, in memory.

A send hands its bytes over some time after it has begun, and is acknowledged some time after they have arrived, so a
schedule that overwrites what is still being sent, or reads what has not arrived, gives wrong values for some seed.
`check` finds the same by looking: bytes that two steps touch which neither come after the other.
"""

from __future__ import annotations

import random
from collections import defaultdict
from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from transport.collectives.codecs import Codec, decode, encode, encoded_bytes
from transport.collectives.kernels import reduce_into
from transport.collectives.reduce_op import ReduceOp
from transport.collectives.schedule import FINISH, SCRATCH, Op, Region, Schedule

Array = npt.NDArray[Any]
POISON = 77


class Rank:
    def __init__(self, number: int, schedule: Schedule, buffers: Sequence[memoryview]) -> None:
        self.number = number
        self.schedule = schedule
        self.steps = schedule.rows
        self.buffers = buffers
        self.scratch = memoryview(bytearray([POISON]) * schedule.scratch_bytes)
        self.begun: set[int] = set()
        self.done: set[int] = set()
        self.missing = [len(step.after) for step in self.steps]
        self.ready = {number for number, missing in enumerate(self.missing) if not missing}

    def memory(self, region: Region) -> memoryview:
        buffer = self.scratch if region.buffer == SCRATCH else self.buffers[region.buffer]
        assert 0 <= region.start <= region.stop <= buffer.nbytes
        return buffer[region.start : region.stop]

    def finish(self, index: int) -> None:
        self.done.add(index)
        for follower in self.schedule.followers[index]:
            self.missing[follower] -= 1
            if not self.missing[follower]:
                self.ready.add(follower)


def as_bytes(buffers: Sequence[Array]) -> list[memoryview]:
    return [buffer.view(np.uint8).reshape(-1).data if buffer.size else memoryview(bytearray()) for buffer in buffers]


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
    ranks = [Rank(i, schedule, as_bytes(buffers[i])) for i, schedule in enumerate(schedules)]
    mean_of = len(ranks) if op is ReduceOp.MEAN else None
    for schedule in schedules:
        check(schedule)
    wire: dict[tuple[int, int, int], bytes | None] = {}
    received = 0
    while True:
        moves: list[tuple[str, Rank, int]] = [("begin", rank, index) for rank in ranks for index in sorted(rank.ready)]
        for rank in ranks:
            for index in rank.begun - rank.done:
                step = rank.steps[index]
                if step.op is Op.SEND:
                    key = (rank.number, step.peer, step.part)
                    moves.append(("deliver" if key not in wire else "acknowledge", rank, index))
                elif step.op is Op.RECEIVE and wire.get((step.peer, rank.number, step.part)) is not None:
                    moves.append(("receive", rank, index))
        if not moves:
            break
        what, rank, index = choose.choice(moves)
        step = rank.steps[index]
        if what == "deliver":
            wire[rank.number, step.peer, step.part] = bytes(rank.memory(step.regions[0]))
        elif what == "acknowledge":
            rank.finish(index)
        elif what == "receive":
            key = (step.peer, rank.number, step.part)
            content = wire[key]
            assert content is not None
            assert len(content) == step.regions[0].nbytes, (key, len(content))
            rank.memory(step.regions[0])[:] = content
            wire[key] = None
            received += 1
            rank.finish(index)
        else:
            rank.ready.discard(index)
            rank.begun.add(index)
            if step.op is Op.REDUCE:
                target, *sources = map(rank.memory, step.regions)
                divisor = mean_of if step.flags & FINISH else None
                reduce_into(target, sources, dtype=dtype, op=op, divisor=divisor)
                rank.finish(index)
            elif step.op is Op.COPY:
                target, source = map(rank.memory, step.regions)
                target[:] = bytes(source)
                rank.finish(index)
            elif step.op is Op.ENCODE:
                encoded, source, *residual = map(rank.memory, step.regions)
                divisor = None if step.flags & FINISH else mean_of
                encode(encoded, source, residual[0] if residual else None, codec=Codec(step.codec), divisor=divisor)
                rank.finish(index)
            elif step.op is Op.DECODE:
                target, encoded = map(rank.memory, step.regions)
                decode(target, encoded, codec=Codec(step.codec))
                rank.finish(index)
    for rank in ranks:
        open_steps = set(range(len(rank.steps))) - rank.done
        assert not open_steps, f"seed {seed}: rank {rank.number} waits in {[rank.steps[i] for i in open_steps]}"
    sends = sum(step.op is Op.SEND for rank in ranks for step in rank.steps)
    assert received == sends, f"seed {seed}: of {sends} messages {received} were received"


def check(schedule: Schedule) -> None:
    """What the format promises of every schedule.

    Raises:
        AssertionError: two steps may touch the same bytes at the same time, or another promise is broken.
    """
    before = [0] * len(schedule.rows)  # bit sets of all steps that are done when this one begins
    accesses: dict[int, list[tuple[int, int, int, bool]]] = defaultdict(list)
    seen = set()
    for number, step in enumerate(schedule.rows):
        for earlier in step.after:
            assert earlier < number
            before[number] |= before[earlier] | 1 << earlier
        if step.op in (Op.SEND, Op.RECEIVE):
            assert (step.op, step.peer, step.part) not in seen
            seen.add((step.op, step.peer, step.part))
        elif step.op in (Op.ENCODE, Op.DECODE):
            elems = step.regions[1 if step.op is Op.ENCODE else 0].nbytes // 4
            encoded = step.regions[0 if step.op is Op.ENCODE else 1]
            assert encoded.nbytes == encoded_bytes(elems, Codec(step.codec))
        else:
            assert len({region.nbytes for region in step.regions}) == 1
        written = {Op.SEND: (), Op.ENCODE: (0, 2)}.get(step.op, (0,))
        for place, region in enumerate(step.regions):
            is_target = place in written
            for start, stop, other, other_writes in accesses[region.buffer]:
                overlaps = region.start < stop and start < region.stop
                if overlaps and (is_target or other_writes) and other != number:
                    assert before[number] >> other & 1, (
                        f"steps {other} and {number} race: {schedule.rows[other]} {step}"
                    )
            if region.nbytes:
                accesses[region.buffer].append((region.start, region.stop, number, is_target))
        target, *sources = step.regions
        assert sum(source == target for source in sources) <= 1
        for source in sources:
            apart = source.buffer != target.buffer or source.stop <= target.start or target.stop <= source.start
            assert apart or source == target
