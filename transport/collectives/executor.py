"""One collective under way, whoever carries out its steps: when it ends, and with which error. In the loop's thread.

A collective ends once: with success when every step is done, or with the first error. Then what is under way is
cancelled, and it has ended when the engine has given every buffer back.

`PythonExecutor` carries out the steps here, `NativeExecutor` has the engine do it. Both send the same messages and give
the same bits, so that the ranks of a group may differ in it.
"""

from __future__ import annotations

import abc
import time
from collections.abc import Callable, Collection, Mapping
from typing import Protocol

from hive_qos.errors import CancelledError, ConnectionLostError, HiveError, PeerError, TimedOutError, TransportError
from transport.collectives.calls import Call, CallSignature, Heard
from transport.collectives.partial_input import PartialInput
from transport.collectives.planning.cost_model import Choice
from transport.collectives.schedule import Schedule
from transport.engine.base import Buffer, Priority, Received
from transport.mesh.collective_dispatch import CollectiveDispatch
from transport.mesh.endpoint import Ticket
from transport.mesh.inbox import Receiving
from transport.mesh.outbox import Sending
from transport.wire.error_codes import WireCode
from transport.wire.header import Header, MatchKey
from transport.work import Work, unforeseen

ASK_S = 0.5
"""An operation that takes longer tells those that it waits for what it is: what they called may send nothing here.
For an operation that takes its time, that is one small message to each."""
REFUSAL_S = 1.0
"""A peer that cancels its side of a message says why on its control stream, which may take a round trip longer."""


class Links(Protocol):
    """What an executor needs of the endpoint."""

    rank: int
    job: str
    collectives: CollectiveDispatch

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


class Executor(abc.ABC):
    """A collective that runs.

    Args:
        call, schedule: what to do.
        signature: what all members must agree on, the plan included.
        choice: that the schedule follows from, for whoever keeps count of them.
        ranks: the group's members as ranks of the endpoint.
        number: of the operation in its group; the `step` of its messages.
        order: of the task among all of this rank; earlier ones send first.
        deadline_s: on the monotonic clock.
        asks_s: as `deadline_s`; when those that this waits for are told what it is.
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
        self._ended = False
        self._began_s = time.monotonic()
        self.asks_s = self._began_s + ASK_S
        self._refusal: HiveError | None = None
        work.bytes_total = sum(nbytes for _, nbytes in (*schedule.sent_bytes, *schedule.received_bytes))

    def took_s(self) -> float:
        """Since it began."""
        return time.monotonic() - self._began_s

    @abc.abstractmethod
    def start(self) -> None:
        """Begin every step that waits for nothing."""

    @abc.abstractmethod
    def _begin_held_back(self, partial: PartialInput) -> None:
        """Begin the steps whose input was missing and is there now."""

    @abc.abstractmethod
    def _stop(self) -> None:
        """Begin nothing more and cancel what is under way; call `_finish` when nothing is."""

    @abc.abstractmethod
    def _waiting_for(self) -> Collection[int]:
        """The ranks of the group with which something is under way."""

    @abc.abstractmethod
    def _lends(self) -> bool:
        """Whether the engine may still touch the tensors."""

    def read_on(self, partial: PartialInput) -> None:
        """There is more of the input, or there never will be."""
        if partial.failure is not None:
            self.fail(CancelledError(f"{self.work.what}: its input could not be read: {partial.failure}"))
        elif not self._ended and self.error is None:
            self._begin_held_back(partial)

    def fail(self, error: HiveError, *, remote: bool = False) -> None:
        """End with an error, unless it has ended or is failing already.

        Args:
            remote: another rank has given up and told everybody.
        """
        if self._ended or self.error is not None:
            return
        self.error = error
        self.remote = remote
        self._stop()

    def time_out(self) -> None:
        """Its deadline has passed: name the ranks that it waits for, and the own tensor where that is missing."""
        if self._refusal is not None:
            self.fail(self._refusal)
            return
        self.fail(
            TimedOutError(
                f"{self.work.what}, waiting for {self.waits_for() or 'nobody'}",
                timeout_s=self._timeout_s,
                bytes_done=self.work.bytes_done,
                bytes_total=self.work.bytes_total,
            )
        )

    def waits_for(self) -> str:
        """Ranks of the group, in words; "" where it is nobody."""
        ranks = ", ".join(str(rank) for rank in sorted(self._waiting_for()))
        waiting = [f"rank {ranks}"] if ranks else []
        if self.call.partial is not None and not self.call.partial.is_whole:
            waiting.append("this rank's own tensor, which has not come from its device")
        return " and ".join(waiting)

    def awaited(self) -> Mapping[int, Heard]:
        """By rank of the endpoint: whom this one waits for, and what it says to that rank."""
        signature = self.signature
        return {self.ranks[index]: Heard(signature.to(index), signature.of(index)) for index in self._waiting_for()}

    def check(self, rank: int, heard: Heard) -> None:
        """Fail if a rank says of this number that it called something else, whether or not anything waits for it here.

        Args:
            rank: of the endpoint.
        """
        if rank not in self.ranks:
            return
        error = disagreement(
            self.signature, heard, rank=rank, what=self.work.what, ranks=self.ranks, own=self._links.rank
        )
        if error is not None:
            self.disagrees = True
            self.fail(error)

    def abandon(self) -> None:
        """End now: the engine is closed, and keeps what it did not give back, so that it writes to nobody else's."""
        if self._lends():
            reason = "the transport was closed, but its engine holds the tensors still: do not use their memory again"
            self.error = CancelledError(f"{self.work.what}: {reason}")
        self.error = self.error or CancelledError(f"{self.work.what}: the transport was closed")
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
                if self.call.ended_well is not None:
                    self.call.ended_well()
            except HiveError as error:
                self.error = error
            except Exception as cause:  # noqa: BLE001 - the caller's memory is gone or has changed its size
                self.error = unforeseen(f"unpacking the result of {self.work.what}", cause)
        self.work.finish(error=self.error)
        self._on_end(self)

    def _step_failed(self, error: TransportError) -> None:
        """A message of a step failed. One that the peer refused says less than what the peer will tell us of it."""
        if self.error is not None:
            return
        too_long = isinstance(error, PeerError) and error.wire_code == WireCode.BUFFER_TOO_SMALL
        if too_long or isinstance(error, CancelledError):
            self._refusal = self._refusal or self._in_group(error)
            self.deadline_s = min(self.deadline_s, time.monotonic() + REFUSAL_S)
        else:
            self.fail(self._in_group(error))

    def _mismatch(self, peer: int, header: Header, byte_count: int, dtype: str) -> PeerError | None:
        """What is to be said where a message of a rank of the group is not as long, or of another type, as ours."""
        if (header.length, header.dtype) == (byte_count, dtype):
            return None
        theirs = f"{header.length} bytes of {header.dtype or 'nothing'}"
        return PeerError(
            f"rank {peer}",
            f"sent {theirs} in {self.work.what} where this rank has {byte_count} of {dtype or 'nothing'}",
        )

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


def disagreement(
    signature: CallSignature, heard: Heard, *, rank: int, what: str, ranks: tuple[int, ...], own: int
) -> PeerError | None:
    """What is to be said where another rank's call is not ours; None where it is the same.

    Args:
        signature: our call.
        heard: what the other one says.
        rank: the other one, of the endpoint; one of `ranks`.
        what: the operation in words.
        ranks: the group's members as ranks of the endpoint.
        own: this rank of the endpoint.
    """
    peer = ranks.index(rank)
    for theirs, ours in ((heard.called, signature.of(peer)), (heard.expects, signature.to(peer))):
        if theirs not in (ours, ""):
            break
    else:
        return None
    called = theirs if theirs.isprintable() else repr(theirs)
    return PeerError(f"rank {peer}", f"{what}: rank {peer} called {called}; rank {ranks.index(own)} called {ours}")
