"""The executor in Python: the reference, and for engines and values that the native one does not take.

A step begins when those in its `after` are done. Sends and receives are handed to the endpoint; reductions, copies and
codecs, at most a chunk each, run here.
"""

from __future__ import annotations

from collections import deque
from typing import Any

import numpy as np

from hive_qos.errors import CancelledError, TransportError
from transport.collectives.calls import Heard
from transport.collectives.codecs import ENCODED_DTYPE, Codec, decode, encode
from transport.collectives.executor import Executor
from transport.collectives.kernels import reduce_into
from transport.collectives.partial_input import PartialInput
from transport.collectives.reduce_op import ReduceOp
from transport.collectives.schedule import FINISH, SCRATCH, Op, Region, Step
from transport.engine.base import Received
from transport.mesh.endpoint import Ticket, tag_of
from transport.wire.header import Header, Kind, MatchKey
from transport.work import unforeseen

PART_BITS = 32
"""The bucket of a message is its operation's kind above, and the part below so many bits."""
CODEC_SHIFT = 8
"""Above the operation's kind is the codec, so that ranks which encode otherwise notice instead of taking the bytes."""


class PythonExecutor(Executor):
    """See the module; arguments as `Executor`."""

    def __init__(self, *args: Any, **arguments: Any) -> None:
        super().__init__(*args, **arguments)
        schedule = self._schedule
        self._buffers = self.call.buffers
        self._divisor = self.call.context.size if self.call.reduce_op is ReduceOp.MEAN else None
        scratch = np.empty(schedule.scratch_bytes, dtype=np.uint8)
        self._scratch = scratch.data if scratch.nbytes else memoryview(bytearray())
        self._open = len(schedule.rows)
        self._missing = [len(step.after) for step in schedule.rows]
        self._ready: deque[int] = deque()
        self._held_back: list[int] = []
        self._advancing = False
        self._tickets: dict[int, Ticket] = {}

    def start(self) -> None:
        """Begin every step that waits for nothing."""
        self._ready.extend(index for index, missing in enumerate(self._missing) if not missing)
        self._advance()

    def _begin_held_back(self, _partial: PartialInput) -> None:
        self._ready.extend(self._held_back)
        self._held_back.clear()
        self._advance()

    def _stop(self) -> None:
        for ticket in tuple(self._tickets.values()):
            self._links.cancel(ticket, CancelledError("the collective has failed"))
        self._advance()

    def _waiting_for(self) -> set[int]:
        group_rank = {rank: index for index, rank in enumerate(self.ranks)}
        return {group_rank[ticket.rank] for ticket in self._tickets.values()}

    def _lends(self) -> bool:
        return bool(self._tickets)

    def _advance(self) -> None:
        if self._advancing:
            return
        self._advancing = True
        try:
            while self._ready and self.error is None:
                index = self._ready.popleft()
                if self.call.partial is not None and self._lacks(index, self.call.partial):
                    self._held_back.append(index)
                else:
                    self._begin(index)
        except Exception as error:  # noqa: BLE001 - no memory, a mistake of ours: this operation ends, others go on
            self.fail(unforeseen(self.work.what, error))
        finally:
            self._advancing = False
        if (self.error is not None and not self._tickets) or not self._open:
            self._finish()

    def _lacks(self, index: int, partial: PartialInput) -> bool:
        """Whether a step touches what is not there yet."""
        first, end = partial.missing
        memories = [self._memory(region) for region in self._schedule.rows[index].regions if region.nbytes]
        places = [(np.frombuffer(memory, np.uint8).ctypes.data, memory.nbytes) for memory in memories]
        return any(address < end and address + nbytes > first for address, nbytes in places)

    def _begin(self, index: int) -> None:
        step = self._schedule.rows[index]
        match step.op:
            case Op.SEND:
                self._send(index, step)
            case Op.RECEIVE:
                self._receive(index, step)
            case Op.REDUCE:
                target, *sources = map(self._memory, step.regions)
                divisor = self._divisor if step.flags & FINISH else None
                reduce_into(target, sources, dtype=self.call.dtype, op=self.call.reduce_op, divisor=divisor)
                self._done(index)
            case Op.COPY:
                target, source = map(self._memory, step.regions)
                target[:] = source
                self._done(index)
            case Op.ENCODE:
                encoded, source, *residual = map(self._memory, step.regions)
                divisor = None if step.flags & FINISH else self._divisor
                encode(encoded, source, residual[0] if residual else None, codec=Codec(step.codec), divisor=divisor)
                self._done(index)
            case Op.DECODE:
                target, encoded = map(self._memory, step.regions)
                decode(target, encoded, codec=Codec(step.codec))
                self._done(index)

    def _done(self, index: int) -> None:
        self._open -= 1
        for follower in self._schedule.followers[index]:
            self._missing[follower] -= 1
            if not self._missing[follower]:
                self._ready.append(follower)

    def _send(self, index: int, step: Step) -> None:
        payload = self._memory(step.regions[0])
        key = self._key(step, tag_of(self._links.rank))
        header = Header(
            kind=key.kind,
            group=key.group,
            step=key.step,
            bucket=key.bucket,
            tag=key.tag,
            dtype=self._dtype(step),
            shape=(payload.nbytes // (1 if step.codec else self.call.problem.item_bytes),),
            length=payload.nbytes,
            call=self.signature.to(step.peer),
        )

        def end(error: TransportError | None) -> None:
            del self._tickets[index]
            self._ended_step(index, payload.nbytes, error)

        self._tickets[index] = self._links.send(
            self.ranks[step.peer],
            header,
            payload if payload.nbytes else None,
            priority=self._priority,
            order=(self._order, index),
            on_end=end,
        )

    def _receive(self, index: int, step: Step) -> None:
        rank = self.ranks[step.peer]
        target = self._memory(step.regions[0])

        def end(received: Received | None, error: TransportError | None) -> None:
            del self._tickets[index]
            if received is not None:
                self.check(rank, Heard(received.header.call))
                error = self._mismatch(step.peer, received.header, target.nbytes, self._dtype(step))
            self._ended_step(index, target.nbytes, error)

        buffer = target if target.nbytes else None
        self._tickets[index] = self._links.receive(rank, self._key(step, tag_of(rank)), buffer, end)

    def _ended_step(self, index: int, byte_count: int, error: TransportError | None) -> None:
        if self.error is not None:
            self._advance()
        elif error is not None:
            self._step_failed(error)
        else:
            self.work.progress(byte_count)
            self._done(index)
            self._advance()

    def _key(self, step: Step, tag: int) -> MatchKey:
        return MatchKey(
            kind=Kind.COLLECTIVE,
            group=self.call.context.group,
            step=self.number,
            bucket=(step.codec << CODEC_SHIFT | self.call.operation) << PART_BITS | step.part,
            tag=tag,
        )

    def _dtype(self, step: Step) -> str:
        """Of a step's message."""
        return ENCODED_DTYPE if step.codec else self.call.dtype

    def _memory(self, region: Region) -> memoryview:
        memory = self._scratch if region.buffer == SCRATCH else self._buffers[region.buffer]
        return memory[region.start : region.stop]
