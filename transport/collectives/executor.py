"""One collective under way: the executor of one schedule. Runs in the transport's thread.

A step begins when those in its `after` are done. Sends and receives are handed to the endpoint; reductions and copies,
at most a chunk each, run here. A task ends once: with success when every step is done, or with the first error. Then
what is under way is cancelled, and the task has ended when the endpoint has given every buffer back.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable
from typing import Protocol

import numpy as np

from hive_qos.errors import CancelledError, ConnectionLostError, HiveError, PeerError, TimedOutError, TransportError
from transport.collectives.calls import Call, CallSignature
from transport.collectives.kernels import reduce_into
from transport.collectives.planning.cost_model import Choice
from transport.collectives.reduce_op import ReduceOp
from transport.collectives.schedule import FINISH, SCRATCH, Op, Region, Schedule, Step
from transport.engine.base import Buffer, Priority, Received
from transport.mesh.endpoint import Ticket, rank_of, tag_of
from transport.mesh.inbox import Receiving
from transport.mesh.outbox import Sending
from transport.wire.header import Header, Kind, MatchKey
from transport.work import Work, unforeseen

PART_BITS = 32
"""The bucket of a message is its operation's kind above, and the part below so many bits."""
REFUSAL_S = 1.0
"""A peer that cancels its side of a message says why on its control stream, which may take a round trip longer."""


class Links(Protocol):
    """What a task needs of the endpoint."""

    rank: int

    def send(
        self,
        rank: int,
        header: Header,
        payload: Buffer | None,
        *,
        priority: Priority,
        order: tuple[int, int],
        on_end: Callable[[TransportError | None], None],
    ) -> Sending: ...

    def receive(
        self,
        rank: int,
        key: MatchKey,
        buffer: Buffer | None,
        on_end: Callable[[Received | None, TransportError | None], None],
    ) -> Receiving: ...

    def cancel(self, ticket: Ticket, error: TransportError | None = None) -> None: ...

    def first_loss(self, ranks: tuple[int, ...]) -> ConnectionLostError | None: ...


class Executor:
    """A collective that runs.

    Args:
        call, schedule: what to do.
        signature: what all members must agree on, the plan included.
        choice: that the schedule follows from, for whoever keeps count of them.
        ranks: the group's members as ranks of the endpoint.
        number: of the operation in its group; the `step` of its messages.
        order: of the task among all of this rank; earlier ones send first.
        deadline_s: on the monotonic clock.
        on_end: called once, after `work` has ended.
    """

    def __init__(
        self,
        call: Call,
        schedule: Schedule,
        *,
        signature: CallSignature,
        choice: Choice | None,
        links: Links,
        ranks: tuple[int, ...],
        number: int,
        order: int,
        priority: Priority,
        work: Work,
        timeout_s: float,
        deadline_s: float,
        on_end: Callable[[Executor], None],
    ) -> None:
        self.call = call
        self.signature = signature
        self.choice = choice
        self.ranks = ranks
        self.number = number
        self.work = work
        self.deadline_s = deadline_s
        self.error: HiveError | None = None
        self.remote = False
        self.disagrees = False
        self._schedule = schedule
        self._links = links
        self._order = order
        self._priority = priority
        self._timeout_s = timeout_s
        self._on_end = on_end
        self._buffers = call.buffers
        scratch = np.empty(schedule.scratch_bytes, dtype=np.uint8)
        self._scratch = scratch.data if scratch.nbytes else memoryview(bytearray())
        self._open = len(schedule.rows)
        self._missing = [len(step.after) for step in schedule.rows]
        self._ready: deque[int] = deque()
        self._advancing = False
        self._tickets: dict[int, Ticket] = {}
        self._ended = False
        self._began_s = time.monotonic()
        self._refusal: HiveError | None = None
        work.bytes_total = sum(nbytes for _, nbytes in (*schedule.sent_bytes, *schedule.received_bytes))

    def took_s(self) -> float:
        """Since it began."""
        return time.monotonic() - self._began_s

    def start(self) -> None:
        """Begin every step that waits for nothing."""
        self._ready.extend(index for index, missing in enumerate(self._missing) if not missing)
        self._advance()

    def fail(self, error: HiveError, *, remote: bool = False) -> None:
        """End with an error, unless it has ended or is failing already.

        Args:
            remote: another rank has given up and told everybody.
        """
        if self._ended or self.error is not None:
            return
        self.error = error
        self.remote = remote
        for ticket in tuple(self._tickets.values()):
            self._links.cancel(ticket, CancelledError("the collective has failed"))
        self._advance()

    def time_out(self) -> None:
        """Its deadline has passed: name the ranks that it waits for."""
        if self._refusal is not None:
            self.fail(self._refusal)
            return
        waiting = ", ".join(str(rank) for rank in sorted(self._waiting_for())) or "nobody"
        self.fail(
            TimedOutError(
                f"{self.work.what}, waiting for rank {waiting}",
                timeout_s=self._timeout_s,
                bytes_done=self.work.bytes_done,
                bytes_total=self.work.bytes_total,
            )
        )

    def check(self, rank: int, header: Header) -> None:
        """Fail if a message of this number is of another call than ours, whether or not anything here waits for it."""
        if rank not in self.ranks:
            return
        error = disagreement(self.signature, header, what=self.work.what, ranks=self.ranks, own=self._links.rank)
        if error is not None:
            self.disagrees = True
            self.fail(error)

    def abandon(self) -> None:
        """End now: the engine is closed, and keeps what it did not give back, so that it writes to nobody else's."""
        if self._tickets:
            reason = "the transport was closed, but its engine holds the tensors still: do not use their memory again"
            self.error = CancelledError(f"{self.work.what}: {reason}")
        self.error = self.error or CancelledError(f"{self.work.what}: the transport was closed")
        self._finish()

    def _waiting_for(self) -> set[int]:
        group_rank = {rank: index for index, rank in enumerate(self.ranks)}
        return {group_rank[ticket.rank] for ticket in self._tickets.values()}

    def _advance(self) -> None:
        if self._advancing:
            return
        self._advancing = True
        try:
            while self._ready and self.error is None:
                self._begin(self._ready.popleft())
        except Exception as error:  # noqa: BLE001 - no memory, a mistake of ours: this operation ends, others go on
            self.fail(unforeseen(self.work.what, error))
        finally:
            self._advancing = False
        if (self.error is not None and not self._tickets) or not self._open:
            self._finish()

    def _finish(self) -> None:
        if self._ended:
            return
        self._ended = True
        if self.error is None:
            try:
                for view in self.call.views:
                    view.require_in_place()
                for view in self.call.results:
                    view.write_back()
            except HiveError as error:
                self.error = error
            except Exception as cause:  # noqa: BLE001 - the caller's memory is gone or has changed its size
                self.error = unforeseen(f"unpacking the result of {self.work.what}", cause)
        self.work.finish(error=self.error)
        self._on_end(self)

    def _begin(self, index: int) -> None:
        step = self._schedule.rows[index]
        match step.op:
            case Op.SEND:
                self._send(index, step)
            case Op.RECEIVE:
                self._receive(index, step)
            case Op.REDUCE:
                target, *sources = map(self._memory, step.regions)
                divisor = self.call.context.size if self._divides(step) else None
                reduce_into(target, sources, dtype=self.call.dtype, op=self.call.reduce_op, divisor=divisor)
                self._done(index)
            case Op.COPY:
                target, source = map(self._memory, step.regions)
                target[:] = source
                self._done(index)
            case _:
                raise NotImplementedError(f"{step.op.name} needs a codec")

    def _divides(self, step: Step) -> bool:
        return self.call.reduce_op is ReduceOp.MEAN and bool(step.flags & FINISH)

    def _done(self, index: int) -> None:
        self._open -= 1
        for follower in self._schedule.followers[index]:
            self._missing[follower] -= 1
            if not self._missing[follower]:
                self._ready.append(follower)

    def _send(self, index: int, step: Step) -> None:
        payload = self._memory(step.regions[0])
        key = self._key(step.part, tag_of(self._links.rank))
        header = Header(
            kind=key.kind,
            group=key.group,
            step=key.step,
            bucket=key.bucket,
            tag=key.tag,
            dtype=self.call.dtype,
            shape=(payload.nbytes // self.call.problem.item_bytes,),
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
                self.check(rank, received.header)
                error = self._mismatch(step, received.header, target.nbytes)
            self._ended_step(index, target.nbytes, error)

        buffer = target if target.nbytes else None
        self._tickets[index] = self._links.receive(rank, self._key(step.part, tag_of(rank)), buffer, end)

    def _mismatch(self, step: Step, header: Header, byte_count: int) -> PeerError | None:
        if (header.length, header.dtype) == (byte_count, self.call.dtype):
            return None
        theirs = f"{header.length} bytes of {header.dtype or 'nothing'}"
        return PeerError(
            f"rank {step.peer}",
            f"sent {theirs} in {self.work.what} where this rank has {byte_count} of {self.call.dtype or 'nothing'}",
        )

    def _ended_step(self, index: int, byte_count: int, error: TransportError | None) -> None:
        if self.error is not None:
            self._advance()
        elif isinstance(error, CancelledError):
            self._refusal = self._refusal or error
            self.deadline_s = min(self.deadline_s, time.monotonic() + REFUSAL_S)
        elif error is not None:
            self.fail(self._in_group(error))
        else:
            self.work.progress(byte_count)
            self._done(index)
            self._advance()

    def _in_group(self, error: TransportError) -> TransportError:
        """Say in which operation it happened, and name the rank whose loss was known first, by its rank in the group.

        Others that learn of it give up and leave, and must not be taken for the cause.
        """
        if isinstance(error, ConnectionLostError):
            loss = self._links.first_loss(self.ranks) or error
            if loss.rank in self.ranks:
                return ConnectionLostError(loss.peer, loss.reason, rank=self.ranks.index(loss.rank))
        if isinstance(error, PeerError) and self.work.what not in error.reason:
            return PeerError(error.peer, f"{self.work.what}: {error.reason}", wire_code=error.wire_code)
        return error

    def _key(self, part: int, tag: int) -> MatchKey:
        return MatchKey(
            kind=Kind.COLLECTIVE,
            group=self.call.context.group,
            step=self.number,
            bucket=self.call.operation << PART_BITS | part,
            tag=tag,
        )

    def _memory(self, region: Region) -> memoryview:
        memory = self._scratch if region.buffer == SCRATCH else self._buffers[region.buffer]
        return memory[region.start : region.stop]


def disagreement(
    signature: CallSignature, header: Header, *, what: str, ranks: tuple[int, ...], own: int
) -> PeerError | None:
    """What is to be said where a message of an operation is of another call than ours; None where it is of the same.

    Args:
        words: our call.
        header: of the message; its tag says which rank of the endpoint sent it, one of `ranks`.
        what: the operation in words.
        ranks: the group's members as ranks of the endpoint.
        own: this rank of the endpoint.
    """
    peer = ranks.index(rank_of(header.tag))
    theirs, ours = header.call, signature.of(peer)
    if theirs in (ours, ""):
        return None
    called = theirs if theirs.isprintable() else repr(theirs)
    return PeerError(f"rank {peer}", f"{what}: rank {peer} called {called}; rank {ranks.index(own)} called {ours}")
