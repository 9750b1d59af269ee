"""The aioquic engine's parts without a network: what is handed to the stack, matching, and credit.

The stack is `Stack`, which does what the real one does of what is asked here (`test_aioquic_exceptions` asks that one).
"""

from __future__ import annotations

import math
import random
import tracemalloc
from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hive_qos.errors import CancelledError, ConnectionLostError, PeerError
from transport.engine.aioquic.matching import Matcher, Post
from transport.engine.aioquic.receive_streams import PIECES_MAX, Incoming
from transport.engine.aioquic.send_streams import Outgoing, SendStream
from transport.engine.base import Event, OperationFailed, Received, UnexpectedMessage
from transport.wire.control_frames import FrameReader, read_hold
from transport.wire.error_codes import WireCode, WireError
from transport.wire.header import Header, Kind, MatchKey, encode_header

MIB = 2**20


class Stack:
    """Credit and streams of both directions, where packets are sent by `sent` and `acked`."""

    def __init__(self, *, window: int = MIB, credit: int = 16 * MIB, streams: int = 100, data_limit: int = MIB) -> None:
        self.first_stream_limit, self.data_credit, self.streams_allowed = window, credit, streams
        self.limits: dict[int, int] = {}
        self.wire: dict[int, bytearray] = {}
        self.went: dict[int, int] = {}
        self.ended: set[int] = set()
        self.acked: set[int] = set()
        self.resets: dict[int, int] = {}
        self.received_bytes, self.data_limit, self.pieces, self.streams_held = 0, data_limit, 0, 0
        self.highest: dict[int, int] = {}
        self.granted: dict[int, int] = {}
        self.stopped: dict[int, int] = {}

    @property
    def may_open_stream(self) -> bool:
        return len(self.wire) < self.streams_allowed

    def get_next_available_stream_id(self, *, is_unidirectional: bool) -> int:
        assert is_unidirectional
        return 2 + 4 * len(self.wire)

    def send_stream_data(self, stream_id: int, data: bytes, *, end_stream: bool) -> None:
        assert stream_id not in self.ended
        assert stream_id not in self.resets
        self.wire.setdefault(stream_id, bytearray()).extend(data)
        if end_stream:
            self.ended.add(stream_id)

    def send_all(self) -> None:
        """What waits goes out in packets."""
        for stream_id, data in self.wire.items():
            self.data_credit -= len(data) - self.went.get(stream_id, 0)
            self.went[stream_id] = len(data)

    def reset_stream(self, stream_id: int, code: int) -> None:
        self.resets[stream_id] = code

    def stream_limit_of(self, stream_id: int) -> int:
        return self.limits.get(stream_id, self.first_stream_limit)

    def sent_of(self, stream_id: int) -> int:
        return self.went.get(stream_id, 0)

    def is_acked(self, stream_id: int) -> bool:
        return stream_id in self.acked

    def highest_of(self, stream_ids: list[int]) -> int:
        return sum(self.highest.get(stream_id, 0) for stream_id in stream_ids)

    def grant_data(self, limit: int) -> None:
        self.data_limit = limit

    def grant_stream(self, stream_id: int, limit: int) -> None:
        self.granted[stream_id] = limit

    def stop_stream(self, stream_id: int, code: int) -> None:
        self.stopped[stream_id] = code


# Sending


def outgoing(stack: Stack, sent: list[SendStream] | None = None) -> Outgoing:
    return Outgoing(stack, on_sent=[].append if sent is None else sent.append)  # type: ignore[arg-type]


def stream(size: int, *, priority: int = 3, operation: int = 1) -> SendStream:
    payload = memoryview(random.Random(size).randbytes(size))
    return SendStream(operation=operation, prefix=b"head", payload=payload, priority=priority)


@given(st.integers(0, 20_000), st.integers(0, 2**32))
def test_a_message_goes_whole_in_whatever_bits_and_ends_with_its_acknowledgement(size: int, seed: int) -> None:
    rng, stack, one = random.Random(seed), Stack(window=30_000), stream(size)
    sent: list[SendStream] = []
    out = outgoing(stack, sent)
    expected = b"head" + bytes(one.payload or b"")
    out.submit(one)
    while 2 not in stack.ended:
        out.feed(rng.choice([1, 100, 1400, 16_000]))
        stack.send_all()
    assert stack.wire == {2: expected}
    out.collect()
    assert not sent
    stack.acked.add(2)
    out.collect()
    out.collect()
    assert sent == [one]
    out.feed(1)
    assert not out.has_work


def test_no_more_waits_in_the_stack_than_it_was_told() -> None:
    stack, one = Stack(), stream(100_000)
    out = outgoing(stack)
    out.submit(one)
    for _ in range(3):
        out.feed(10_000)
        assert len(stack.wire[2]) == 10_000
    stack.send_all()
    out.feed(10_000)
    assert len(stack.wire[2]) == 20_000


def test_levels_are_served_strictly_and_equals_take_turns(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("transport.engine.aioquic.send_streams.TURN_BYTES", 10_000)
    stack = Stack()
    out = outgoing(stack)
    for operation, level in ((1, 5), (2, 4), (3, 4), (4, 1)):
        out.submit(stream(40_000, priority=level, operation=operation))
    order: list[int] = []
    before: dict[int, int] = {}
    while out.has_work:
        out.feed(1400)
        order += [stream_id for stream_id, data in stack.wire.items() if len(data) > before.get(stream_id, 0)]
        before = {stream_id: len(data) for stream_id, data in stack.wire.items()}
        stack.send_all()
    urgent, one, other, last = 2, 6, 10, 14
    end = {number: len(order) - order[::-1].index(number) for number in (urgent, one, other, last)}
    assert end[urgent] <= order.index(one) + 1 <= order.index(other) < end[one]  # then two in turns
    assert max(end[one], end[other]) <= order.index(last) + 1


def test_a_chunk_of_a_collective_is_not_interrupted() -> None:
    stack = Stack()
    out, one, other = outgoing(stack), stream(512 * 1024, operation=1), stream(512 * 1024, operation=2)
    out.submit(one)
    out.submit(other)
    while one.fed < one.total:
        out.feed(1400)
        stack.send_all()
    assert other.fed < 1400


def test_nothing_is_handed_on_beyond_the_peers_credit() -> None:
    stack = Stack(window=1000, credit=1500)
    out, one, two = outgoing(stack), stream(5000, operation=1), stream(5000, operation=2)
    out.submit(one)
    out.submit(two)
    for _ in range(10):
        out.feed(14_000)
        stack.send_all()
    assert (one.fed, two.fed) == (1000, 500)
    stack.data_credit = 10_000
    out.feed(14_000)
    assert (one.fed, two.fed) == (1000, 1000)


def test_the_last_credit_is_for_control_for_heads_and_for_what_was_granted() -> None:
    stack = Stack(window=30_000, credit=100_000)
    out = outgoing(stack)

    def settle() -> None:
        for _ in range(100):
            out.feed(1400)
            stack.send_all()

    flood = [stream(30_000, operation=number) for number in range(1, 4)]
    for one in flood:
        out.submit(one)
    settle()
    assert sum(one.fed for one in flood) == 75_000
    control, posted = stream(500, priority=1, operation=8), stream(9000, operation=9)
    unposted = stream(20_000, operation=10)
    for one in (control, posted, unposted):
        out.submit(one)
    settle()
    assert control.fed == control.total
    assert (posted.fed, unposted.fed) == (8192, 8192)
    stack.limits[posted.stream_id] = 40_000
    settle()
    assert posted.fed == posted.total
    assert unposted.fed == 8192


def test_an_urgent_message_takes_the_next_stream_that_the_peer_allows() -> None:
    stack = Stack(streams=1)
    out = outgoing(stack)
    first, waiting, urgent = stream(100), stream(100, operation=2), stream(100, priority=1, operation=3)
    for one in (first, waiting, urgent):
        out.submit(one)
        out.feed(1400)
    assert (first.stream_id, waiting.stream_id, urgent.stream_id) == (2, -1, -1)
    stack.streams_allowed = 2
    out.feed(1400)
    assert (waiting.stream_id, urgent.stream_id) == (-1, 6)


def test_a_message_that_is_given_up_goes_no_further_and_stops_no_other() -> None:
    stack = Stack()
    sent: list[SendStream] = []
    out = outgoing(stack, sent)
    begun, unbegun, other = stream(10_000), stream(10_000, operation=2), stream(500, operation=3)
    out.submit(begun)
    out.feed(1400)
    for one in (unbegun, other):
        out.submit(one)
    for one in (begun, unbegun):
        out.give_up(one, WireCode.CANCELLED)
        assert one.payload is None
    out.feed(1400)
    assert stack.resets == {2: WireCode.CANCELLED}
    assert (len(stack.wire[2]), len(stack.wire[6])) == (1400, 504)
    stack.acked |= {2, 6}
    out.collect()
    assert sent == [other]


# Receiving


class Desk:
    """A matcher with one connection."""

    def __init__(self, *, store: int = 8 * MIB, window: int = MIB) -> None:
        self.events: list[Event] = []
        self.floors: dict[str, int] = {}
        self.begun: dict[str, int] = {}
        self.said: list[tuple[int, bool]] = []
        self.matcher = Matcher(
            "p", store_bytes_max=store, floors=self.floors, begun=self.begun, emit=self.events.append
        )
        self.operations = 0
        self.window = window
        self.channel = self.connect()

    def connect(self, account: object = None) -> Incoming:
        self.stack = Stack(data_limit=self.window)
        channel = incoming(self.stack, window=self.window, say=self.say)
        channel.begin(self.matcher, account=account)
        return channel

    def say(self, frame: bytes, behind_bytes_max: float) -> bool:
        ((_, fields),) = FrameReader().feed(frame)
        _, step, waits = read_hold(fields)
        if len(self.said) >= 4 and behind_bytes_max < math.inf:
            return False
        self.said.append((step, waits))
        return True

    def taken(self) -> list[tuple[int, bool]]:
        said, self.said = self.said, []
        return said

    def part(self, step: int, part: int) -> None:
        """An eighth of the store, of a collective."""
        header = Header(kind=Kind.COLLECTIVE, group="g", step=step, bucket=part, length=MIB - 4096)
        self.data(6 + 400 * step + 4 * part, encode_header(header), False)

    def post_part(self, step: int, part: int) -> None:
        key = MatchKey(kind=Kind.COLLECTIVE, group="g", step=step, bucket=part)
        if step > self.begun.get("g", -1):
            self.begun["g"] = step
            self.matcher.release("g", step)
        self.operations += 1
        self.matcher.post(Post(self.operations, "p", key, memoryview(bytearray(MIB))))

    def data(self, stream_id: int, data: bytes, end: bool) -> None:
        """The next bytes of a stream, as far as the peer may send them."""
        say(self.channel, self.stack, stream_id, data, end=end)

    def post(self, buffer: bytearray | None, tag: int = 0) -> int:
        self.operations += 1
        view = None if buffer is None else memoryview(buffer)
        self.matcher.post(Post(self.operations, "p", MatchKey(kind=Kind.BULK, tag=tag), view))
        return self.operations


class BeyondCredit(Exception):
    """aioquic would close the connection."""


def incoming(
    stack: Stack, *, window: int, say: Callable[[bytes, float], bool] = lambda _frame, _most: False
) -> Incoming:
    return Incoming(
        stack,  # type: ignore[arg-type]
        first_id=2,
        stream_window_bytes=window // 16,
        window_bytes=window,
        message_bytes_max=2**40,
        on_control=lambda kind, fields: None,
        say=say,
    )


def say(channel: Incoming, stack: Stack, stream_id: int, data: bytes, *, end: bool) -> None:
    if stack.received_bytes + len(data) > stack.data_limit:
        raise BeyondCredit
    stack.received_bytes += len(data)
    stack.highest[stream_id] = stack.highest.get(stream_id, 0) + len(data)
    channel.on_data(stream_id, data, end=end)
    channel.update()


def wire(payload: bytes, tag: int = 0, **fields: object) -> bytes:
    return encode_header(Header(kind=Kind.BULK, tag=tag, length=len(payload), **fields)) + payload  # type: ignore[arg-type]


@given(st.binary(min_size=1, max_size=3000), st.integers(0, 2**32), st.booleans())
def test_bits_of_any_size_make_the_message(payload: bytes, seed: int, early: bool) -> None:
    rng = random.Random(seed)
    desk = Desk()
    buffer = bytearray(len(payload))
    if early:
        desk.post(buffer)
    data = wire(payload)
    at = 0
    while at < len(data):
        stop = min(at + rng.randint(1, 1500), len(data))
        desk.data(6, data[at:stop], stop == len(data) and rng.random() < 0.5)
        at = stop
    if not desk.events:
        desk.data(6, b"", True)
    if not early:
        assert [type(event) for event in desk.events] == [UnexpectedMessage]
        desk.events.clear()
        desk.post(buffer)
    assert [type(event) for event in desk.events] == [Received]
    assert buffer == payload
    assert desk.matcher.idle
    assert desk.matcher.reserved == 0


@given(st.permutations(range(4)), st.booleans())
def test_messages_with_one_key_are_delivered_as_they_were_completed(order: list[int], hello: bool) -> None:
    desk = Desk()
    if not hello:
        desk.channel = incoming(desk.stack, window=desk.window)
    for number in range(4):
        desk.data(6 + 4 * number, wire(bytes([number]))[:-1], False)
    for number in order:
        desk.data(6 + 4 * number, bytes([number]), True)
    if not hello:
        desk.channel.begin(desk.matcher)
    for _ in range(4):
        desk.post(None)
    assert [event.payload[0] for event in desk.events if isinstance(event, Received)] == order


def test_a_posted_message_is_granted_whole_and_an_unposted_one_only_while_there_is_room() -> None:
    desk = Desk(store=MIB, window=MIB)
    desk.post(bytearray(10 * MIB), tag=1)
    for number, (tag, size) in enumerate(((1, 10 * MIB), (2, MIB // 4), (3, MIB))):
        head = encode_header(Header(kind=Kind.BULK, tag=tag, length=size))
        desk.data(6 + 4 * number, head, False)
    grants = desk.stack.granted
    assert grants[6] > 10 * MIB
    assert grants[10] > MIB // 4
    assert 14 not in grants  # the third would take more than half of the store
    assert desk.matcher.reserved < MIB
    desk.post(None, tag=3)
    assert desk.stack.granted[14] > MIB


def test_a_stalled_message_is_granted_when_another_is_taken() -> None:
    desk = Desk(store=MIB, window=MIB)
    for number, tag in enumerate((1, 2)):
        head = encode_header(Header(kind=Kind.BULK, tag=tag, length=300_000))
        desk.data(6 + 4 * number, head, False)
    assert set(desk.stack.granted) == {6}
    desk.post(None, tag=1)
    assert desk.stack.granted[10] > 300_000


def test_held_bytes_narrow_the_window_and_posted_ones_do_not() -> None:
    desk = Desk(store=100_000, window=MIB)
    desk.post(bytearray(4 * MIB), tag=1)
    data = wire(bytes(4 * MIB), tag=1)
    for start in range(0, len(data), 100_000):
        desk.data(6, data[start : start + 100_000], start + 100_000 >= len(data))
    assert isinstance(desk.events[-1], Received)
    pieces = until_refused(desk, wire(bytes(60_000), tag=99)[:50_000], first=2)
    assert 16 <= pieces <= 21  # a window of 1 MiB holds 20 pieces of 50 kB


def test_what_the_store_takes_whole_does_not_narrow_the_window() -> None:
    desk = Desk(store=8 * MIB, window=MIB)
    whole = until_refused(desk, wire(bytes(70_000), tag=99)[:50_000], first=1)
    assert 74 <= whole <= 84  # 58 that fit half of the store, and then a window of 1 MiB
    desk = Desk(store=8 * MIB, window=MIB)
    whole = until_refused(desk, wire(bytes(50_000), tag=99), first=1, end=True)
    assert 175 <= whole <= 185  # 161 that fit the store, as they fit a stream's window


def test_complete_messages_that_the_store_does_not_take_narrow_the_window_until_they_are_asked_for() -> None:
    desk = Desk(store=50_000, window=MIB)
    for first in (1, 1001):
        count = until_refused(desk, wire(bytes(50_000), tag=99), first=first, end=True)
        assert 16 <= count <= 21
        assert desk.stack.streams_held == count
        for _ in range(count):
            desk.post(None, tag=99)
        desk.channel.update()
        assert desk.stack.streams_held == 0


def test_a_header_alone_takes_no_memory() -> None:
    desk = Desk(store=64 * MIB, window=32 * MIB)
    tracemalloc.start()
    for number in range(1, 1000):
        desk.data(2 + 4 * number, encode_header(Header(kind=Kind.BULK, length=20 * MIB)), False)
    _, most = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert most < 8 * MIB


def until_refused(desk: Desk, data: bytes, *, first: int, end: bool = False) -> int:
    """How many streams that begin with these bytes are taken before one is refused."""
    for number in range(first, 5000):
        try:
            desk.data(2 + 4 * number, data, end)
        except BeyondCredit:
            return number - first
    raise AssertionError("never refused")


def test_a_million_empty_messages_are_stopped_by_their_overhead() -> None:
    desk = Desk(store=200_000)
    for number in range(1, 200):
        desk.data(2 + 4 * number, wire(b""), True)
        if desk.stack.streams_held:
            break
    else:
        raise AssertionError("streams are still granted")
    desk.post(None)
    desk.channel.update()
    assert not desk.stack.streams_held


def test_a_longer_message_than_its_buffer_fails_the_post_and_stops_the_stream() -> None:
    desk = Desk()
    operation = desk.post(bytearray(3))
    desk.data(6, wire(b"four")[:-1], False)
    (event,) = desk.events
    assert isinstance(event, OperationFailed)
    assert event.operation == operation
    assert isinstance(event.error, PeerError)
    assert desk.stack.stopped == {6: WireCode.BUFFER_TOO_SMALL}


def test_a_reset_fails_the_post_that_the_message_had_taken() -> None:
    desk = Desk()
    desk.post(bytearray(100))
    desk.data(6, wire(bytes(100))[:50], False)
    desk.channel.on_reset(6, WireCode.CANCELLED)
    (event,) = desk.events
    assert isinstance(event, OperationFailed)
    assert isinstance(event.error, CancelledError)
    assert "CANCELLED" in str(event.error)


def test_a_reset_of_a_waiting_message_frees_its_memory() -> None:
    desk = Desk()
    desk.data(6, wire(bytes(100))[:50], False)
    desk.channel.on_reset(6, 0)
    assert desk.matcher.reserved == 0
    assert desk.matcher.idle


def test_posts_of_a_lost_connection_are_first_in_line_again() -> None:
    desk = Desk()
    first, second = desk.post(bytearray(10)), desk.post(bytearray(10))
    desk.data(6, wire(b"x" * 10)[:-2], False)
    desk.matcher.disconnected(desk.channel)
    other = desk.connect()
    other.on_data(6, wire(b"y" * 10), end=True)
    (event,) = desk.events
    assert isinstance(event, Received)
    assert event.operation == first
    assert event.payload == b"y" * 10
    desk.matcher.fail_posts(lambda: ConnectionLostError("p", "gone"))
    assert isinstance(desk.events[-1], OperationFailed)
    assert desk.events[-1].operation == second


def test_a_complete_message_outlives_its_connection() -> None:
    desk = Desk()
    desk.data(6, wire(b"kept"), True)
    desk.matcher.disconnected(desk.channel)
    desk.post(None)
    assert isinstance(desk.events[-1], Received)
    assert desk.events[-1].payload == b"kept"


def test_an_abandoned_step_is_dropped_now_and_later() -> None:
    desk = Desk()
    desk.data(6, wire(b"a", group="g", step=1), True)
    desk.data(10, wire(b"b" * 99, group="g", step=1)[:-9], False)
    desk.floors["g"] = 2
    desk.matcher.discard()
    assert desk.matcher.idle
    assert desk.matcher.reserved == 0
    desk.data(14, wire(b"c", group="g", step=1), True)
    desk.data(18, wire(b"d", group="h", step=1), True)
    assert [event.header.group for event in desk.events if isinstance(event, UnexpectedMessage)] == ["g", "h"]
    assert not desk.matcher.idle


@pytest.mark.parametrize("data", [b"", b"\x05", wire(b"abc")[:-1], wire(b"abc") + b"d"])
def test_a_message_of_another_length_than_it_says_is_refused(data: bytes) -> None:
    with pytest.raises(WireError):
        Desk().data(6, data, True)


def test_a_message_that_ends_short_is_not_kept_as_if_it_were_whole() -> None:
    desk = Desk()
    desk.data(6, wire(b"abc")[:-1], False)
    with pytest.raises(WireError):
        desk.data(6, b"", True)
    desk.matcher.disconnected(desk.channel)
    assert desk.matcher.idle


# What a verified peer may make us keep


def test_dust_is_refused() -> None:
    desk = Desk()
    desk.stack.pieces = PIECES_MAX
    desk.channel.check_kept()
    desk.stack.pieces += 1
    with pytest.raises(WireError, match="dust"):
        desk.channel.check_kept()


def test_little_is_kept_before_the_hello() -> None:
    stack = Stack(data_limit=32 * MIB)
    channel = incoming(stack, window=32 * MIB)
    for number in range(1, 4):
        say(channel, stack, number * 4 + 2, bytes(300_000), end=False)
    with pytest.raises(WireError, match="before its hello"):
        say(channel, stack, 18, bytes(300_000), end=False)
    with pytest.raises(WireError, match="before its hello"):
        channel.check_kept()  # what lies behind gaps counts, too


def test_ranks_that_share_a_name_have_a_store_each() -> None:
    desk = Desk(store=MIB, window=MIB)
    first = desk.stack
    other = desk.connect(account=7)
    for number in range(1, 4):
        say(desk.channel, first, 2 + 4 * number, wire(bytes(400_000))[:100], end=False)
    assert set(first.granted) == {6}
    say(other, desk.stack, 6, wire(bytes(400_000), tag=7)[:100], end=False)
    assert desk.matcher._reserved[7] > 400_000
    assert desk.stack.granted[6] > 400_000
    desk.matcher.disconnected(other)
    assert desk.matcher._reserved[7] == 0


@pytest.mark.parametrize("window", [MIB, 32 * MIB])  # less than a part for each stream, and more
def test_an_operation_that_comes_when_half_of_the_store_is_taken_is_held_back_until_it_begins(window: int) -> None:
    desk = Desk(window=window)
    for part in range(4):
        desk.part(5, part)
    assert desk.taken() == []
    desk.part(5, 4)
    desk.part(5, 5)
    desk.part(6, 0)
    assert desk.taken() == [(5, True), (6, True)]
    desk.post_part(5, 0)
    assert desk.taken() == [(5, False)]
    desk.part(5, 6)
    assert desk.taken() == []
    desk.post_part(6, 1)
    assert desk.taken() == [(6, False)]


def test_a_hold_ends_with_its_connection_and_there_are_no_more_than_there_is_room_for() -> None:
    desk = Desk()
    for step in range(12):
        desk.part(step, 0)
    assert len(desk.taken()) == 4
    first, desk.channel = desk.channel, desk.connect()
    for part in range(5):
        desk.part(12, part)
    assert desk.taken() == [(12, True)]
    desk.matcher.disconnected(first)
    desk.matcher.release("g", 12)
    assert desk.taken() == [(12, False)]
