"""Point-to-point messages: numbered by sender, receiver and tag, so that they stay in order whatever the network does.

A message is a head and, above `INLINE_BYTES`, a body. The head says dtype and shape, and carries small payloads itself;
so a receiver that did not know what is coming, or from whom, learns it before it has to provide memory, and a mismatch
is noticed before anything is written. A body of up to `EAGER_BODY_BYTES` leaves at once, as long as no more than
`EAGER_BYTES_MAX` of them wait for a receiver; any other leaves when the receiver has asked for it (a message without
payload, sent when its buffer is posted), so that what nobody receives yet takes neither the connection's credit nor a
place among what is under way. A receiver that asks before the head has come costs no round trip.

The number of a message is part of its key. A receive that ends without its message gives its number back, so that the
next one takes it. A send that ends without arriving says so with a void message of its number, which receivers skip.
Messages that nobody can take any more (duplicates of a reconnect, what was given up) are taken and dropped.
"""

from __future__ import annotations

import json
import math
from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace

from hive_qos.errors import CancelledError, ConnectionLostError, HiveError, PeerError, TimedOutError, TransportError
from transport.engine.base import Buffer, Priority, Received
from transport.mesh.endpoint import RANK_BITS, Endpoint, Ticket, tag_of
from transport.sequence_numbers import Numbers
from transport.tensors import DIMENSIONS_MAX, TensorView
from transport.wire.dtypes import ITEM_BYTES, item_bytes
from transport.wire.header import Header, Kind, MatchKey
from transport.work import Work, unforeseen

INLINE_BYTES = 64 * 1024
EAGER_BODY_BYTES = 2**20
EAGER_BYTES_MAX = 8 * 2**20
"""To one peer, of bodies that nobody has asked for: a quarter of the connection's window."""
TAG_MAX = 2**40 - 1
RECEIVE_BYTES_MAX = 2**40
"""Longest message that is believed (1 TiB, as on the wire). What is taken for one is `Settings.receive_bytes_max`."""
REFUSAL_BYTES_MAX = 512
STEPS_MAX = 2**63 - 1
_GROUP_SUFFIX = "|p2p"
_HEAD, _BODY, _ASK = 0, 1, 2


@dataclass(eq=False)
class Letter:
    """One send or receive that has not ended."""

    work: Work
    group: str
    tag: int
    timeout_s: float
    deadline_s: float
    payload: TensorView | None = None
    into: TensorView | None = None
    tickets: list[Ticket] = field(default_factory=list)
    error: HiveError | None = None
    result: object = None
    body_posted: bool = False
    void: Callable[[], None] | None = None
    refuse: Callable[[HiveError], None] | None = None
    ended: bool = False


class PostOffice:
    """All point-to-point messages of this rank. Runs in the transport's thread.

    Args:
        group_rank: a rank of the endpoint as a rank of a group.
        receive_bytes_max: most that is allocated for one message on its sender's word.
    """

    def __init__(self, endpoint: Endpoint, group_rank: Callable[[str, int], int], *, receive_bytes_max: int) -> None:
        self._endpoint = endpoint
        self._group_rank = group_rank
        self._receive_bytes_max = receive_bytes_max
        self._sent: Numbers[tuple[str, int, int]] = Numbers()
        self._taken: Numbers[tuple[str, int, int]] = Numbers()
        self._waiting_heads: dict[tuple[str, int], dict[int, set[int]]] = {}
        self._for_anybody: dict[tuple[str, int], deque[Letter]] = {}
        self._letters: dict[int, Letter] = {}
        self._posted: dict[tuple[int, MatchKey], int] = {}  # to how many were announced meanwhile
        self._unclaimed: set[tuple[int, MatchKey]] = set()
        self._asked: set[tuple[int, MatchKey]] = set()
        self._eager_bytes: dict[int, int] = {}

    def send(self, letter: Letter, rank: int, view: TensorView, *, priority: Priority, order: int) -> None:
        """Send a view to a rank."""
        self._letters[id(letter)] = letter
        letter.payload = view
        number = self._sent.take((letter.group, letter.tag, rank))
        inline = view.data.nbytes <= INLINE_BYTES
        described = memoryview(json.dumps({"dtype": view.dtype, "shape": view.shape}).encode())
        head = self._header(letter, number, _HEAD, view if inline else None, described)
        self._send_part(letter, rank, head, view.data if inline else described, priority=priority, order=(order, 0))
        if not inline:
            body = self._header(letter, number, _BODY, view, described)

            def send_body() -> None:
                self._send_part(letter, rank, body, view.data, priority=priority, order=(order, 1))

            self._send_when_asked(letter, rank, number, view.data.nbytes, send_body)
        letter.void = lambda: self._send_void(letter, rank, number, inline=inline)

    def receive(self, letter: Letter, rank: int | None) -> None:
        """Take the next message of the letter's tag from a rank, or from whichever comes first."""
        self._letters[id(letter)] = letter
        if rank is not None:
            self._take(letter, rank)
            return
        self._for_anybody.setdefault((letter.group, letter.tag), deque()).append(letter)
        self._serve_anybody(letter.group, letter.tag)

    def announced(self, rank: int, header: Header) -> None:
        """A message waits that nobody has posted for: remember it, or drop it where nobody can ask for it any more."""
        group, _, suffix = header.group.rpartition("|")
        place = (rank, header.key)
        if "|" + suffix != _GROUP_SUFFIX:
            return
        if place in self._posted:
            self._posted[place] += 1  # it came before the post did, which takes it
            return
        tag = header.tag >> RANK_BITS
        numbers = self._sent if header.bucket == _ASK else self._taken
        head = (rank, replace(header.key, bucket=_HEAD))
        wanted = numbers.is_open((group, tag, rank), header.step) or (header.bucket == _BODY and head in self._posted)
        if not wanted or place in self._unclaimed:
            self._endpoint.receive(rank, header.key, None, _drop)
            return
        self._unclaimed.add(place)
        if header.bucket == _HEAD:
            self._waiting_heads.setdefault((group, tag), {}).setdefault(rank, set()).add(header.step)
            self._serve_anybody(group, tag)

    def gone(self, ranks_left: Callable[[str], bool]) -> None:
        """Some rank is gone: those who take from anybody fail when nobody is left in their group."""
        for (group, _), letters in tuple(self._for_anybody.items()):
            if not ranks_left(group):
                for letter in tuple(letters):
                    self.fail(letter, TransportError(f"{letter.work.what}: no other rank is left"))

    def tick(self, now_s: float) -> float:
        """Fail what is late; returns the next deadline."""
        wake_s = math.inf
        for letter in tuple(self._letters.values()):
            if letter.error is None and now_s >= letter.deadline_s:
                what = letter.work.what
                done, total = letter.work.bytes_done, letter.work.bytes_total
                self.fail(letter, TimedOutError(what, timeout_s=letter.timeout_s, bytes_done=done, bytes_total=total))
            elif letter.error is None:
                wake_s = min(wake_s, letter.deadline_s)
        return wake_s

    def of_group(self, group: str | None) -> Iterator[Letter]:
        """What is under way in a group, or in all."""
        return iter([one for one in self._letters.values() if group is None or one.group == group])

    def fail(self, letter: Letter, error: HiveError) -> None:
        """End with an error, when its buffers are free again."""
        if letter.error is not None or letter.ended:
            return
        letter.error = error
        if letter.void is not None:
            letter.void()
        if letter.refuse is not None:
            letter.refuse(error)
        waiting = self._for_anybody.get((letter.group, letter.tag))
        if waiting is not None and letter in waiting:
            waiting.remove(letter)
            self._drop_empty(letter.group, letter.tag)
        for ticket in letter.tickets:
            self._endpoint.cancel(ticket, CancelledError("the message was given up"))
        self._settle(letter)

    def abandon(self, letter: Letter) -> None:
        """End now: the engine is gone."""
        letter.error = letter.error or CancelledError(f"{letter.work.what}: the transport was closed")
        letter.tickets.clear()
        self._settle(letter)

    def forget(self, group: str) -> None:
        """Drop all that is known of a group in which nothing is under way any more."""
        wire = group + _GROUP_SUFFIX
        self._endpoint.discard(wire, STEPS_MAX)
        for numbers in (self._sent, self._taken):
            numbers.forget(lambda key: key[0] == group)
        for places in (self._unclaimed, self._asked):
            places -= {place for place in places if place[1].group == wire}
        for name, tag in [*self._waiting_heads, *self._for_anybody]:
            if name == group:
                self._waiting_heads.pop((name, tag), None)
                self._for_anybody.pop((name, tag), None)

    def _send_part(
        self, letter: Letter, rank: int, header: Header, payload: Buffer, *, priority: Priority, order: tuple[int, int]
    ) -> None:
        def end(error: TransportError | None) -> None:
            if ticket in letter.tickets:
                letter.tickets.remove(ticket)
            if error is None:
                letter.work.progress(payload.nbytes)
                self._settle(letter)
            else:
                self._failed(letter, error)

        ticket = self._endpoint.send(
            rank, header, payload if payload.nbytes else None, priority=priority, order=order, on_end=end
        )
        letter.tickets.append(ticket)

    def _send_when_asked(
        self, letter: Letter, rank: int, number: int, size: int, send_body: Callable[[], None]
    ) -> None:
        """Send a body now if it may go unasked, else when the receiver asks; the asking gives eager bytes back."""
        eager = size <= EAGER_BODY_BYTES and self._eager_bytes.get(rank, 0) + size <= EAGER_BYTES_MAX

        def end(received: Received | None, error: TransportError | None) -> None:
            if eager:
                self._eager_bytes[rank] -= size
                return
            letter.tickets.remove(ticket)
            if error is not None or received is None:
                self._failed(letter, error or CancelledError("not asked for"))
            elif letter.error is not None:
                self._settle(letter)
            elif received.payload:
                self.fail(letter, PeerError(f"rank {rank}", f"{letter.work.what}: {_text(received.payload)}"))
            else:
                send_body()

        ticket = self._receive(rank, self._key(letter, rank, number, _ASK), None, end)
        if eager:
            self._eager_bytes[rank] = self._eager_bytes.get(rank, 0) + size
            send_body()
        else:
            letter.tickets.append(ticket)

    def _ask(self, letter: Letter, rank: int, number: int, refusal: str = "") -> None:
        """Tell the sender that its body may come, or why it must not; once for each number."""
        place = (rank, self._key(letter, rank, number, _BODY))
        if (
            (place in self._asked and not refusal)
            or self._endpoint.closing
            or self._endpoint.peers.error(rank) is not None
        ):
            return
        self._asked.add(place)
        text = memoryview(refusal.encode()[:REFUSAL_BYTES_MAX])
        header = self._header(letter, number, _ASK, None, text)
        self._endpoint.send(
            rank, header, text if text.nbytes else None, priority=Priority.CONTROL, order=(0, 0), on_end=_forget
        )

    def _receive(
        self,
        rank: int,
        key: MatchKey,
        buffer: Buffer | None,
        on_end: Callable[[Received | None, TransportError | None], None],
    ) -> Ticket:
        """Post for a message, and know that it is posted for."""
        place = (rank, key)
        self._unclaimed.discard(place)
        self._posted[place] = 0

        def end(received: Received | None, error: TransportError | None) -> None:
            announced = self._posted.pop(place)
            for _ in range(announced - 1 if received is not None else 0):
                self._endpoint.receive(rank, key, None, _drop)
            on_end(received, error)

        return self._endpoint.receive(rank, key, buffer, end)

    def _drop_body(self, letter: Letter, rank: int, number: int) -> None:
        """The body of a message whose head was taken is not wanted: drop it if it is here (else `announced` will)."""
        place = (rank, self._key(letter, rank, number, _BODY))
        self._asked.discard(place)
        if place in self._unclaimed:
            self._unclaimed.discard(place)
            self._endpoint.receive(rank, place[1], None, _drop)

    def _send_void(self, letter: Letter, rank: int, number: int, *, inline: bool) -> None:
        """Say that a message will not come, so that its receiver does not wait for it."""
        if self._endpoint.closing or self._endpoint.peers.error(rank) is not None:
            return
        void = memoryview(json.dumps({"void": True}).encode())
        for part in (_HEAD,) if inline else (_HEAD, _BODY):
            header = self._header(letter, number, part, None, void)
            self._endpoint.send(rank, header, void, priority=Priority.CONTROL, order=(0, 0), on_end=_forget)

    def _serve_anybody(self, group: str, tag: int) -> None:
        letters = self._for_anybody.get((group, tag))
        heads = self._waiting_heads.get((group, tag), {})
        while letters:
            ready = [rank for rank, steps in heads.items() if self._taken.peek((group, tag, rank)) in steps]
            if not ready:
                return
            self._take(letters.popleft(), min(ready))
        self._drop_empty(group, tag)

    def _drop_empty(self, group: str, tag: int) -> None:
        """Keep nothing of a tag that nothing waits for: programs take a new one for each step."""
        heads = self._waiting_heads.get((group, tag), {})
        for rank in [rank for rank, steps in heads.items() if not steps]:
            del heads[rank]
        if not heads:
            self._waiting_heads.pop((group, tag), None)
        if not self._for_anybody.get((group, tag)):
            self._for_anybody.pop((group, tag), None)

    def _take(self, letter: Letter, rank: int) -> None:
        number = self._taken.take((letter.group, letter.tag, rank))
        heads = self._waiting_heads.get((letter.group, letter.tag))
        if heads is not None:
            heads.get(rank, set()).discard(number)
            self._drop_empty(letter.group, letter.tag)
        letter.work.source = self._group_rank(letter.group, rank)

        def head(received: Received) -> None:
            self._head(letter, rank, number, received)

        self._receive_part(letter, rank, number, _HEAD, None, head)
        if letter.into is not None and letter.into.data.nbytes > INLINE_BYTES:
            self._post_body(letter, rank, number, letter.into)

    def _post_body(self, letter: Letter, rank: int, number: int, view: TensorView) -> None:
        letter.body_posted = True

        def body(received: Received) -> None:
            self._asked.discard((rank, received.header.key))
            letter.refuse = None
            if not received.header.dtype:
                self.fail(letter, CancelledError(f"rank {rank} gave the message up"))
            elif (received.header.dtype, received.header.length) != (view.dtype, view.data.nbytes):
                self.fail(letter, _mismatch(letter, rank, received.header.dtype, received.header.shape, view))
            else:
                letter.work.progress(view.data.nbytes)

        self._receive_part(letter, rank, number, _BODY, view.data, body)
        self._ask(letter, rank, number)

    def _head(self, letter: Letter, rank: int, number: int, received: Received) -> None:
        """Check what is coming against what is wanted, and provide memory for it."""
        try:
            described = _described(received)
            if described is None:
                self._drop_body(letter, rank, number)
                self._skip(letter, rank)
                return
            dtype, shape = described
        except ValueError as error:
            self.fail(letter, PeerError(f"rank {rank}", f"{letter.work.what}: {error}"))
            return
        size = math.prod(shape) * item_bytes(dtype)
        if size > INLINE_BYTES:
            letter.refuse = lambda error: self._refuse(letter, rank, number, str(error))
        if letter.into is None and size > self._receive_bytes_max:
            limit = f"a receive into nothing takes at most {self._receive_bytes_max} (Settings.receive_bytes_max)"
            self.fail(letter, PeerError(f"rank {rank}", f"{letter.work.what}: it announces {size} bytes; {limit}"))
            return
        if letter.into is None:
            letter.into = view = TensorView.allocate(dtype=dtype, shape=shape)
            letter.result = view.numpy() if view.numpy_has_dtype else view
            letter.work.bytes_total = size
        view = letter.into
        if (dtype, size) != (view.dtype, view.data.nbytes):
            self.fail(letter, _mismatch(letter, rank, dtype, shape, view))
        elif size <= INLINE_BYTES:
            view.data[:] = received.payload
            letter.work.progress(size)
        elif not letter.body_posted:
            self._post_body(letter, rank, number, view)

    def _refuse(self, letter: Letter, rank: int, number: int, why: str) -> None:
        """A message whose head was taken will not be: its sender need not wait."""
        self._ask(letter, rank, number, refusal=why)
        self._drop_body(letter, rank, number)

    def _receive_part(
        self, letter: Letter, rank: int, number: int, part: int, buffer: Buffer | None, take: Callable[[Received], None]
    ) -> None:
        key = self._key(letter, rank, number, part)

        def end(received: Received | None, error: TransportError | None) -> None:
            if ticket in letter.tickets:
                letter.tickets.remove(ticket)
            if received is not None and letter.error is None:
                try:
                    take(received)
                except Exception as cause:  # noqa: BLE001 - no memory for it, or a mistake of ours: others go on
                    self.fail(letter, unforeseen(letter.work.what, cause))
            if error is not None and key.bucket == _HEAD:
                self._taken.give_back((letter.group, letter.tag, rank), number)
            if error is not None:
                self._failed(letter, error)
            else:
                self._settle(letter)

        ticket = self._receive(rank, key, buffer, end)
        letter.tickets.append(ticket)

    def _failed(self, letter: Letter, error: TransportError) -> None:
        if letter.error is None:
            if isinstance(error, ConnectionLostError) and error.rank is not None:
                rank = self._group_rank(letter.group, error.rank)
                error = ConnectionLostError(error.peer, error.reason, rank=rank)
            self.fail(letter, error)
        else:
            self._settle(letter)

    def _settle(self, letter: Letter) -> None:
        """End the letter when nothing of it is under way any more."""
        waits = letter.error is None and letter in self._for_anybody.get((letter.group, letter.tag), ())
        if letter.tickets or waits or letter.ended:
            return
        letter.ended = True
        del self._letters[id(letter)]
        if letter.error is None:
            try:
                if letter.payload is not None:
                    letter.payload.require_in_place()
                if letter.into is not None:
                    letter.into.write_back()
            except HiveError as error:
                letter.error = error
            except Exception as cause:  # noqa: BLE001 - the caller's memory is gone or has changed its size
                letter.error = unforeseen(f"unpacking the result of {letter.work.what}", cause)
        letter.work.finish(letter.result, letter.error)

    def _skip(self, letter: Letter, rank: int) -> None:
        """The message was void: take the next one, from the same rank, unless the body was to come into the target."""
        if letter.body_posted:
            self.fail(letter, CancelledError(f"rank {rank} gave the message up"))
        else:
            self._take(letter, rank)

    def _header(self, letter: Letter, number: int, part: int, view: TensorView | None, instead: Buffer) -> Header:
        """The header of one part that carries a view, or something instead of it."""
        return Header(
            kind=Kind.POINT_TO_POINT,
            group=letter.group + _GROUP_SUFFIX,
            step=number,
            bucket=part,
            tag=tag_of(self._endpoint.rank, letter.tag),
            dtype=view.dtype if view else "",
            shape=view.shape if view else (),
            length=view.data.nbytes if view else instead.nbytes,
        )

    def _key(self, letter: Letter, rank: int, number: int, part: int) -> MatchKey:
        return MatchKey(
            kind=Kind.POINT_TO_POINT,
            group=letter.group + _GROUP_SUFFIX,
            step=number,
            bucket=part,
            tag=tag_of(rank, letter.tag),
        )


def _drop(_received: Received | None, _error: TransportError | None) -> None:
    """Nobody wants it."""


def _text(payload: Buffer) -> str:
    return bytes(payload[:REFUSAL_BYTES_MAX]).decode(errors="replace")


def _forget(_error: TransportError | None) -> None:
    """Nobody waits for it."""


def _described(received: Received) -> tuple[str, tuple[int, ...]] | None:
    """The dtype and shape that a head announces, within bounds; None for a void message.

    Raises:
        ValueError: malformed or beyond a limit.
    """
    if received.header.dtype:
        return received.header.dtype, received.header.shape
    try:
        fields = json.loads(bytes(received.payload))
    except RecursionError as error:
        raise ValueError("its head is malformed: nested beyond reason") from error
    if not isinstance(fields, dict):
        raise ValueError("its head is malformed")
    if fields.get("void") is True:
        return None
    dtype, shape = fields.get("dtype"), fields.get("shape")
    if (
        not isinstance(dtype, str)
        or dtype not in ITEM_BYTES
        or not isinstance(shape, list)
        or len(shape) > DIMENSIONS_MAX
    ):
        raise ValueError("its head names no dtype and shape that are known")
    if not all(type(length) is int and 0 <= length <= RECEIVE_BYTES_MAX for length in shape):
        raise ValueError("its head has an impossible shape")
    if math.prod(shape) * item_bytes(dtype) > RECEIVE_BYTES_MAX:
        raise ValueError(f"it announces more than {RECEIVE_BYTES_MAX} bytes")
    return dtype, tuple(shape)


def _mismatch(letter: Letter, rank: int, dtype: str, shape: tuple[int, ...], view: TensorView) -> PeerError:
    return PeerError(
        f"rank {rank}",
        f"{letter.work.what}: it sent {dtype}{list(shape)} where {view.dtype}{list(view.shape)} is taken",
    )
