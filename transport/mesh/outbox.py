"""What waits to be sent to one peer over one kind of connection, and what is in flight. No I/O.

A send waits until less than `IN_FLIGHT_BYTES_MAX` of its priority and of more urgent ones is in flight. Of short and
long equals neither waits for the other, because the engine serves equals in turns. Those of a kind keep their order. No
message waits here behind a less urgent one, because the engine serves it first. Control messages do not wait. What the
receiver asked to have held back is set aside, and does not count in flight. Each hold lowers the bound for others,
because what is in flight when a hold is said has a place in the receiver's store all the same.
"""

from __future__ import annotations

import heapq
import itertools
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

from hive_qos.errors import TransportError
from transport.engine.base import Buffer, Priority
from transport.wire.header import Header

IN_FLIGHT_BYTES_MAX = 8 * 2**20
"""To one peer: a round trip of 64 ms at 1 Gbit/s. The engine keeps much less than this in its own buffers."""
SHORT_BYTES = 512 * 1024
"""At most, of a short message: a turn of the engine's."""

SendEnd = Callable[[TransportError | None], None]


def forget(_error: TransportError | None) -> None:
    """The end of what nobody waits for."""


AHEAD = (-1, 0)
"""Order of what is sent again: before everything of its priority."""


@dataclass(eq=False)
class Sending:
    """A send that has not ended. `operation` is the engine's, None while it waits; it went over `connection`, and
    `counts` as in flight.

    `over` is the connection that it has to take as long as that is there; None for any.
    """

    rank: int
    header: Header
    payload: Buffer | None
    priority: Priority
    on_end: SendEnd
    bulk: bool
    operation: int | None = None
    over: int | None = None
    connection: int = 0
    counts: bool = False
    sent_s: float = 0.0
    cancelled: TransportError | None = None
    ended: bool = False

    def tell(self, error: TransportError | None) -> None:
        """Call `on_end`, once. What both hold of the caller's memory is let go: they may know each other."""
        on_end, self.on_end, self.payload = self.on_end, forget, None
        on_end(error)


Entry = tuple[int, tuple[int, int], int, Sending]


def _queues() -> dict[bool, list[Entry]]:
    """Of short messages, and of long ones."""
    return {True: [], False: []}


@dataclass
class Outbox:
    """Two queues, of short and of long messages, ordered by priority, then order, then time; and what is under way."""

    in_flight: dict[int, Sending] = field(default_factory=dict)
    _waiting: dict[bool, list[Entry]] = field(default_factory=_queues)
    _held: list[Entry] = field(default_factory=list)
    _in_flight_bytes: dict[tuple[bool, Priority], int] = field(default_factory=dict)
    _holds: int = 0
    _numbers: Iterator[int] = field(default_factory=itertools.count)

    def push(self, sending: Sending, order: tuple[int, int], *, held: bool = False) -> None:
        """Queue a send, or set it aside."""
        entry = (sending.priority, order, next(self._numbers), sending)
        if held:
            self._held.append(entry)
        else:
            heapq.heappush(self._waiting[_is_short(sending)], entry)

    def sort_out(self, holds: int, is_held: Callable[[Header], bool]) -> None:
        """What is held back has changed: it is so much."""
        self._holds = holds
        entries = [entry for entry in (*self._all_waiting(), *self._held) if not entry[-1].ended]
        self._held, self._waiting = [], _queues()
        for entry in entries:
            (self._held if is_held(entry[-1].header) else self._waiting[_is_short(entry[-1])]).append(entry)
        for queue in self._waiting.values():
            heapq.heapify(queue)
        for sending in self.in_flight.values():
            if is_held(sending.header):
                self._count_no_more(sending)

    def next(self) -> Sending | None:
        """The send that may go out now, if any. It waits here until `pop`."""
        first: Entry | None = None
        for short, queue in self._waiting.items():
            while queue and queue[0][-1].ended:
                heapq.heappop(queue)
            if queue and (first is None or queue[0] < first) and not self._is_full(queue[0][-1], short=short):
                first = queue[0]
        return None if first is None else first[-1]

    def _is_full(self, sending: Sending, *, short: bool) -> bool:
        """Whether what is in flight leaves no room for it; the first of its kind always has some."""
        if sending.priority is Priority.CONTROL:
            return False
        ahead = sum(
            count
            for (is_short, priority), count in self._in_flight_bytes.items()
            if (priority < sending.priority and (is_short or not short))
            or (priority == sending.priority and is_short is short)
        )
        return bool(ahead) and ahead + sending.header.length > IN_FLIGHT_BYTES_MAX // (1 + self._holds)

    def pop(self) -> Sending | None:
        """Take that one out."""
        sending = self.next()
        if sending is not None:
            heapq.heappop(self._waiting[_is_short(sending)])
        return sending

    def handed_over(self, sending: Sending, operation: int) -> None:
        """It was handed to the engine."""
        sending.operation = operation
        sending.counts = True
        self.in_flight[operation] = sending
        kind = _is_short(sending), sending.priority
        self._in_flight_bytes[kind] = self._in_flight_bytes.get(kind, 0) + sending.header.length

    def ended(self, operation: int) -> None:
        """Its operation has ended, well or not."""
        sending = self.in_flight.pop(operation)
        self._count_no_more(sending)
        sending.operation = None

    def _count_no_more(self, sending: Sending) -> None:
        if sending.counts:
            self._in_flight_bytes[_is_short(sending), sending.priority] -= sending.header.length
            sending.counts = False

    def drain(self) -> list[Sending]:
        """Take out everything that waits."""
        waiting, self._waiting, self._held = [*self._all_waiting(), *self._held], _queues(), []
        return [entry[-1] for entry in sorted(waiting, key=lambda entry: entry[:3])]

    def _all_waiting(self) -> Iterator[Entry]:
        return itertools.chain.from_iterable(self._waiting.values())


def _is_short(sending: Sending) -> bool:
    return sending.header.length <= SHORT_BYTES
