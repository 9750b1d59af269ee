"""Point-to-point messages, numbered by sender, receiver and tag: they stay in order whatever the network does.

A message is a head and perhaps a body. The head says dtype and shape. So a receiver that did not expect the message
can provide memory, and a mismatch is noticed before anything is written. Two ways to send, by size:

- Up to `INLINE_BYTES`, the head carries the payload, while at most `UNTAKEN_BYTES_MAX` wait for a receiver.
- Beyond that, the body leaves when the receiver asks (rendezvous protocol). The receiver asks when it posts its buffer.
  So what nobody receives yet takes no flow-control credit. Asking before the head has come costs no round trip.

The number of a message is part of its key. A receive that ends without its message gives its number back, and the next
one takes it. A send that ends without arriving sends a void message of its number, which receivers skip. Messages that
nobody can take any more (duplicates of a reconnect, what was given up) are received and dropped.
"""

from __future__ import annotations

import functools
import math
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace

from hive_qos.errors import CancelledError, ConnectionLostError, HiveError, PeerError, TimedOutError, TransportError
from transport.engine.base import Buffer, Priority, Received
from transport.mesh.endpoint import RANK_BITS, Endpoint, Ticket
from transport.mesh.inbox import drop
from transport.mesh.outbox import forget
from transport.p2p.any_source import AnySource
from transport.p2p.asks import WITHDRAWN, Asks, refusal_in
from transport.p2p.operation import ASK, BODY, GROUP_SUFFIX, HEAD, VOID, P2POp, describe, described
from transport.p2p.sequence_numbers import SequenceNumbers
from transport.tensors import TensorView
from transport.wire.dtypes import item_bytes
from transport.wire.header import U64_MAX, Header, MatchKey
from transport.work import unforeseen

INLINE_BYTES = 2**20
UNTAKEN_BYTES_MAX, TAKEN_BYTES = 16 * 2**20, 2**20
"""To one peer in all groups, of payloads in heads that its receives have not taken; it says so each time that so many
were. Without that bound they would fill the store that all else goes through: a quarter of it."""
TAG_MAX = 2**40 - 1


@dataclass
class _Inline:
    """Bytes in heads, with a rank in a group: sent, of these taken by its word; taken here, and said to be."""

    sent: int = 0
    gone: int = 0
    taken: int = 0
    said: int = 0


class P2PEngine:
    """All point-to-point messages of this rank. Runs in the transport's thread.

    Args:
        group_rank: a rank of the endpoint as a rank of a group.
        anybody_left: whether another rank of a group is not gone.
        receive_bytes_max: most that is allocated for one message on its sender's word.
    """

    def __init__(
        self,
        endpoint: Endpoint,
        group_rank: Callable[[str, int], int],
        anybody_left: Callable[[str], bool],
        *,
        receive_bytes_max: int,
    ) -> None:
        self._endpoint = endpoint
        self._group_rank = group_rank
        self._anybody_left = anybody_left
        self._receive_bytes_max = receive_bytes_max
        self._sent: SequenceNumbers[tuple[str, int, int]] = SequenceNumbers()
        self._taken: SequenceNumbers[tuple[str, int, int]] = SequenceNumbers()
        self._any_source = AnySource(lambda *key: self._taken.peek(key))
        self._ops: dict[int, P2POp] = {}
        self._posted: dict[tuple[int, MatchKey], int] = {}  # to how many were announced meanwhile
        self._unexpected: set[tuple[int, MatchKey]] = set()
        self._asks = Asks(endpoint)
        self._bodies: dict[tuple[int, MatchKey], P2POp] = {}  # under way, as they were asked for
        self._inline: dict[tuple[str, int], _Inline] = {}  # by group and rank
        self._untaken_bytes: Counter[int] = Counter()  # by rank, over all groups: sent to it
        self._unsaid_bytes: Counter[int] = Counter()  # and taken of what it sent

    def send(self, op: P2POp, rank: int, view: TensorView, *, priority: Priority, order: int) -> None:
        """Send a view to a rank."""
        self._ops[id(op)] = op
        op.payload = view
        number = self._sent.take((op.group, op.tag, rank))
        inline = self._goes_inline(op.group, rank, view.data.nbytes)
        content: TensorView | Buffer = view if inline else describe({"dtype": view.dtype, "shape": view.shape})
        head = op.header(self._endpoint.rank, number, HEAD, content)
        payload = content.data if isinstance(content, TensorView) else content
        self._send_part(op, rank, head, payload, priority=priority, order=(order, 0))
        if not inline:
            body = op.header(self._endpoint.rank, number, BODY, view)

            def send_body() -> None:
                if op.payload is not None:
                    self._send_part(op, rank, body, op.payload.data, priority=priority, order=(order, 1))

            self._send_when_asked(op, rank, number, send_body)
        op.void = lambda: self._send_void(op, rank, number, inline=inline)

    def receive(self, op: P2POp, rank: int | None) -> None:
        """Take the next message of the op's tag from a rank, or from whichever comes first."""
        self._ops[id(op)] = op
        if rank is not None:
            self._take(op, rank)
            return
        self._any_source.add(op)
        self._match_or_fail(op)

    def unexpected(self, rank: int, header: Header) -> None:
        """A message waits that nobody has posted for: remember it, or drop it where nobody can ask for it any more."""
        group, _, suffix = header.group.rpartition("|")
        part = (rank, header.key)
        if "|" + suffix != GROUP_SUFFIX:
            return
        if part in self._posted:
            self._posted[part] += 1  # it came before the post did, which takes it
            return
        if part in self._bodies:
            self._endpoint.receive(rank, header.key, None, functools.partial(self._told_while_sending, part))
            return
        tag = header.tag >> RANK_BITS
        numbers = self._sent if header.bucket == ASK else self._taken
        head = (rank, replace(header.key, bucket=HEAD))
        wanted = numbers.is_open((group, tag, rank), header.step) or (header.bucket == BODY and head in self._posted)
        if not wanted or part in self._unexpected:
            self._endpoint.receive(rank, header.key, None, drop)
            return
        self._unexpected.add(part)
        if header.bucket == HEAD:
            self._any_source.head_came(group, tag, rank, header.step)
            self._match_any_source(group, tag)

    def taken(self, rank: int, group: str, total: int) -> None:
        """What a rank says that it has taken of a group's payloads in heads, since its first one."""
        inline = self._inline.get((group, rank))
        if inline is not None:
            gone = max(inline.gone, min(total, inline.sent))
            self._untaken_bytes[rank] -= gone - inline.gone
            inline.gone = gone

    def gone(self) -> None:
        """Some rank is gone: those who take from anybody fail when nobody is left in their group."""
        for op in self._any_source.ops():
            self._fail_without_ranks(op)

    def tick(self, now_s: float) -> float:
        """Fail what is late; returns the next deadline."""
        wake_s = math.inf
        for op in tuple(self._ops.values()):
            if op.error is None and now_s >= op.deadline_s:
                what = op.work.what
                done, total = op.work.bytes_done, op.work.bytes_total
                self.give_up(op, TimedOutError(what, timeout_s=op.timeout_s, bytes_done=done, bytes_total=total))
            elif op.error is None:
                wake_s = min(wake_s, op.deadline_s)
        return wake_s

    def waits(self, now_s: float) -> Iterator[tuple[str, int, float]]:
        """What is under way with one rank: in words, that rank of the endpoint, and since how many seconds."""
        for op in self._ops.values():
            if op.peer is not None:
                yield op.work.what, op.peer, now_s - (op.deadline_s - op.timeout_s)

    def of_group(self, group: str | None) -> Iterator[P2POp]:
        """What is under way in a group, or in all."""
        return iter([one for one in self._ops.values() if group is None or one.group == group])

    def cancel(self, op: P2POp, error: TransportError) -> None:
        """End a receive whose caller wants it no more; one whose message is coming takes that, or it would be lost."""
        if not op.has_begun:
            self.give_up(op, error)

    def give_up(self, op: P2POp, error: TransportError) -> None:
        """End with an error, unless a receive's message is here already."""
        if op.payload is None and op.tickets and op.error is None:
            # The engine may have reported the message already, and then nobody else would get it. So the engine
            # decides: the receive's first open part ends with its message, or at once with this error.
            self._endpoint.cancel(op.tickets[0], error)
        else:
            self.fail(op, error)

    def fail(self, op: P2POp, error: HiveError) -> None:
        """End with an error, when its buffers are free again."""
        if op.error is not None or op.ended:
            return
        op.error = error
        if op.void is not None:
            op.void()
        if op.refuse is not None:
            op.refuse(error)
        self._any_source.discard(op)
        for ticket in op.tickets:
            self._endpoint.cancel(ticket, CancelledError("the message was given up"))
        self._settle(op)

    def abandon(self, op: P2POp) -> None:
        """End now: the engine is gone."""
        op.error = op.error or CancelledError(f"{op.work.what}: the transport was closed")
        op.tickets.clear()
        self._settle(op)

    def close(self, group: str) -> None:
        """Nobody takes what is left of a group's messages, here or there: they wait no more, and count for nothing."""
        wire = group + GROUP_SUFFIX
        self._endpoint.discard(wire, U64_MAX)
        self._unexpected -= {part for part in self._unexpected if part[1].group == wire}
        self._any_source.forget(group)
        for (name, rank), inline in self._inline.items():
            if name == group:
                self._untaken_bytes[rank] -= inline.sent - inline.gone
                self._unsaid_bytes[rank] -= inline.taken - inline.said
                inline.gone, inline.said = inline.sent, inline.taken

    def forget(self, group: str) -> None:
        """Drop all that is known of a group in which nothing is under way any more: another may have its name."""
        self.close(group)
        wire = group + GROUP_SUFFIX
        self._endpoint.discard(wire, 0)  # what comes from now on is of another group of that name
        for numbers in (self._sent, self._taken):
            numbers.forget(lambda key: key[0] == group)
        self._asks.forget(wire)
        for key in [one for one in self._inline if one[0] == group]:
            del self._inline[key]

    def _goes_inline(self, group: str, rank: int, size: int) -> bool:
        """Whether a payload goes with its head; counts it, if so."""
        if size > INLINE_BYTES or self._untaken_bytes[rank] + size > UNTAKEN_BYTES_MAX:
            return False
        self._inline.setdefault((group, rank), _Inline()).sent += size
        self._untaken_bytes[rank] += size
        return True

    def _count_taken(self, rank: int, header: Header) -> None:
        """Of the payload in a head that nobody holds any more; say so, now and then."""
        group = header.group.removesuffix(GROUP_SUFFIX)
        self._inline.setdefault((group, rank), _Inline()).taken += header.length
        self._unsaid_bytes[rank] += header.length
        if self._unsaid_bytes[rank] < TAKEN_BYTES or self._endpoint.closing or self._endpoint.peers.error(rank):
            return
        self._unsaid_bytes[rank] = 0
        for (group, of), inline in self._inline.items():
            if of == rank and inline.taken > inline.said:
                inline.said = inline.taken
                self._endpoint.control(rank, {"op": "taken", "group": group, "bytes": inline.taken})

    def _send_part(
        self, op: P2POp, rank: int, header: Header, payload: Buffer, *, priority: Priority, order: tuple[int, int]
    ) -> None:
        size = payload.nbytes

        def end(error: TransportError | None) -> None:
            if ticket in op.tickets:
                op.tickets.remove(ticket)
            if header.bucket == BODY:
                self._bodies.pop((rank, op.key(rank, header.step, ASK)), None)
            if error is None:
                op.work.progress(size)
                self._settle(op)
            else:
                self._failed(op, error)

        ticket = self._endpoint.send(
            rank, header, payload if size else None, priority=priority, order=order, on_end=end
        )
        op.tickets.append(ticket)

    def _send_when_asked(self, op: P2POp, rank: int, number: int, send_body: Callable[[], None]) -> None:
        """Send a body when the receiver asks for it."""
        key = op.key(rank, number, ASK)

        def end(received: Received | None, error: TransportError | None) -> None:
            op.tickets.remove(waits[0])
            if error is not None or received is None:
                self._failed(op, error or CancelledError("not asked for"))
            elif op.error is not None:
                self._settle(op)
            elif received.payload == WITHDRAWN:
                wait()
            elif received.payload:
                self._refused(op, rank, received)
            else:
                self._bodies[rank, key] = op
                send_body()

        def wait() -> None:
            waits[:] = [self._receive(rank, key, None, end)]
            op.tickets += waits

        waits: list[Ticket] = []
        wait()

    def _told_while_sending(
        self, part: tuple[int, MatchKey], received: Received | None, _error: TransportError | None
    ) -> None:
        """What a receiver says of a message whose body is under way, as it had asked for it."""
        op = self._bodies.get(part)
        if op is not None and received is not None and received.payload and received.payload != WITHDRAWN:
            self._refused(op, part[0], received)

    def _refused(self, op: P2POp, rank: int, received: Received) -> None:
        self.fail(op, PeerError(self._name(op, rank), f"{op.work.what}: {refusal_in(received.payload)}"))

    def _receive(
        self,
        rank: int,
        key: MatchKey,
        buffer: Buffer | None,
        on_end: Callable[[Received | None, TransportError | None], None],
    ) -> Ticket:
        """Post for a message, and know that it is posted for."""
        part = (rank, key)
        self._posted[part] = int(part in self._unexpected)
        self._unexpected.discard(part)

        def end(received: Received | None, error: TransportError | None) -> None:
            announced = self._posted.pop(part, 0)
            if received is not None and received.header.bucket == HEAD and received.header.dtype:
                self._count_taken(rank, received.header)
            on_end(received, error)
            left = announced - 1 if received is not None else 0
            if part in self._posted:  # again, and that takes what is left
                self._posted[part] += max(left, 0)
                return
            told = functools.partial(self._told_while_sending, part) if key.bucket == ASK else drop
            for _ in range(left):
                self._endpoint.receive(rank, key, None, told)

        return self._endpoint.receive(rank, key, buffer, end)

    def _drop_body(self, op: P2POp, rank: int, number: int) -> None:
        """The body of a message whose head was taken is not wanted: drop it if it is here (else `unexpected` will)."""
        part = (rank, op.key(rank, number, BODY))
        self._asks.ended(part)
        if part in self._unexpected:
            self._unexpected.discard(part)
            self._endpoint.receive(rank, part[1], None, drop)

    def _send_void(self, op: P2POp, rank: int, number: int, *, inline: bool) -> None:
        """Say that a message will not come, so that its receiver does not wait for it."""
        if inline and op.payload is not None:
            counted = self._inline[op.group, rank]
            size = min(op.payload.data.nbytes, counted.sent - counted.gone)  # it may have been taken all the same
            counted.sent -= size
            self._untaken_bytes[rank] -= size
        if self._endpoint.closing or self._endpoint.peers.error(rank) is not None:
            return
        void = describe(VOID)
        for part in (HEAD,) if inline else (HEAD, BODY):
            header = op.header(self._endpoint.rank, number, part, void)
            self._endpoint.send(rank, header, void, priority=Priority.CONTROL, order=(0, 0), on_end=forget)

    def _match_any_source(self, group: str, tag: int) -> None:
        for op, rank in self._any_source.matches(group, tag):
            self._take(op, rank)

    def _match_or_fail(self, op: P2POp) -> None:
        """Take for a receive from anybody what is here; with nothing here and nobody left it would wait in vain."""
        self._match_any_source(op.group, op.tag)
        if op in self._any_source:
            self._fail_without_ranks(op)

    def _fail_without_ranks(self, op: P2POp) -> None:
        if not self._anybody_left(op.group):
            self.fail(op, TransportError(f"{op.work.what}: no other rank is left"))

    def _take(self, op: P2POp, rank: int) -> None:
        number = self._taken.take((op.group, op.tag, rank))
        self._any_source.head_taken(op.group, op.tag, rank, number)
        op.work.source = self._group_rank(op.group, rank)

        def head(received: Received) -> None:
            self._head(op, rank, number, received)

        self._receive_part(op, rank, number, HEAD, None, head)
        if op.into is not None and op.into.data.nbytes > INLINE_BYTES:
            self._post_body(op, rank, number, op.into)

    def _post_body(self, op: P2POp, rank: int, number: int, view: TensorView) -> None:
        op.body_posted = True
        wanted = (view.dtype, view.data.nbytes)

        def body(received: Received) -> None:
            self._asks.ended((rank, received.header.key))
            op.refuse = None
            if not received.header.dtype:
                self.fail(op, CancelledError(f"{self._name(op, rank)} gave the message up"))
            elif (received.header.dtype, received.header.length) != wanted:
                header = received.header
                self.fail(op, op.mismatch(self._name(op, rank), header.dtype, header.shape))
            else:
                op.work.progress(received.header.length)

        self._receive_part(op, rank, number, BODY, view.data, body)
        self._asks.ask(op, rank, number)

    def _head(self, op: P2POp, rank: int, number: int, received: Received) -> None:
        """Check what is coming against what is wanted, and provide memory for it."""
        try:
            announced = described(received)
            if announced is None:
                self._drop_body(op, rank, number)
                self._skip(op, rank)
                return
            dtype, shape = announced
            op.has_begun = True
        except ValueError as error:
            self.fail(op, PeerError(self._name(op, rank), f"{op.work.what}: {error}"))
            return
        size = math.prod(shape) * item_bytes(dtype)
        inline = received.header.dtype != ""
        self._asks.head_came(op, rank, number, again=op.body_posted and not inline)
        if not inline:
            op.refuse = lambda error: self._refuse(op, rank, number, str(error))
        if op.into is None and size > self._receive_bytes_max:
            limit = f"a receive into nothing takes at most {self._receive_bytes_max} (Settings.receive_bytes_max)"
            self.fail(op, PeerError(self._name(op, rank), f"{op.work.what}: it announces {size} bytes; {limit}"))
            return
        if op.into is None:
            op.into = view = TensorView.allocate(dtype=dtype, shape=shape)
            op.result = view.numpy() if view.numpy_has_dtype else view
            op.work.bytes_total = size
        view = op.into
        if (dtype, size) != (view.dtype, view.data.nbytes):
            self.fail(op, op.mismatch(self._name(op, rank), dtype, shape))
        elif inline:
            view.data[:] = received.payload
            op.work.progress(size)
        elif not op.body_posted:
            self._post_body(op, rank, number, view)

    def _refuse(self, op: P2POp, rank: int, number: int, why: str) -> None:
        """A message whose head was taken will not be: its sender need not wait."""
        self._asks.refuse(op, rank, number, why)
        self._drop_body(op, rank, number)

    def _receive_part(
        self, op: P2POp, rank: int, number: int, part: int, buffer: Buffer | None, take: Callable[[Received], None]
    ) -> None:
        key = op.key(rank, number, part)

        def end(received: Received | None, error: TransportError | None) -> None:
            if ticket in op.tickets:
                op.tickets.remove(ticket)
            if received is not None and op.error is None:
                try:
                    take(received)
                except Exception as cause:  # noqa: BLE001 - no memory for it, or a mistake of ours: others go on
                    self.fail(op, unforeseen(op.work.what, cause))
            if error is not None and key.bucket == HEAD:
                self._taken.give_back((op.group, op.tag, rank), number)
                self._asks.take_back(op, rank, number)
            if error is not None:
                self._failed(op, error)
            else:
                self._settle(op)

        ticket = self._receive(rank, key, buffer, end)
        op.tickets.append(ticket)

    def _name(self, op: P2POp, rank: int) -> str:
        """A rank of the endpoint in the errors of an op: they say the group's ranks, as its caller does."""
        return f"rank {self._group_rank(op.group, rank)}"

    def _failed(self, op: P2POp, error: TransportError) -> None:
        if op.error is None:
            if isinstance(error, ConnectionLostError) and error.rank is not None:
                rank = self._group_rank(op.group, error.rank)
                error = ConnectionLostError(error.peer, error.reason, rank=rank)
            self.fail(op, error)
        else:
            self._settle(op)

    def _settle(self, op: P2POp) -> None:
        """End the op when nothing of it is under way any more."""
        waits = op.error is None and op in self._any_source
        if op.tickets or waits or op.ended:
            return
        op.ended = True
        del self._ops[id(op)]
        if op.error is None:
            try:
                if op.payload is not None:
                    op.payload.require_in_place()
                if op.into is not None:
                    op.into.write_back()
            except HiveError as error:
                op.error = error
            except Exception as cause:  # noqa: BLE001 - the caller's memory is gone or has changed its size
                op.error = unforeseen(f"unpacking the result of {op.work.what}", cause)
        op.payload = op.into = op.void = op.refuse = None  # closures know the op, and it knows some of them
        op.work.finish(op.result, op.error)

    def _skip(self, op: P2POp, rank: int) -> None:
        """The message was void: take the next one, unless the body was to come into the target."""
        if op.body_posted:
            self.fail(op, CancelledError(f"{self._name(op, rank)} gave the message up"))
        elif op.peer is not None:
            self._take(op, rank)
        else:
            op.work.source = None
            self._any_source.put_back(op)
            self._match_or_fail(op)
