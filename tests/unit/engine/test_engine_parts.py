"""The engine's parts without a network: ranges, frames, matching, credit, pacing, and the delay-bounded controller."""

from __future__ import annotations

import enum
import random
from collections.abc import Callable
from itertools import pairwise
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hive_qos.errors import CancelledError, ConnectionLostError, PeerError
from transport.engine.aioquic.frames import read_varint
from transport.engine.aioquic.matching import Mailbox
from transport.engine.aioquic.receive_streams import PIECES_MAX, Incoming, TransportViolation
from transport.engine.aioquic.send_streams import Outgoing
from transport.engine.aioquic.streams import Post, SendStream
from transport.engine.base import Event, OperationFailed, Received, UnexpectedMessage
from transport.wire.error_codes import WireCode, WireError
from transport.wire.header import Header, Kind, MatchKey, encode_header

MIB = 2**20


class State(enum.Enum):
    ACKED = 0
    LOST = 1


# Sending


def outgoing(sent: list[SendStream], *, window: int = MIB, credit: int = 16 * MIB, streams: int = 100) -> Outgoing:
    found = Outgoing(first_id=2, on_sent=sent.append)
    found.credit_bytes, found.streams_allowed, found.stream_window_bytes = credit, streams, window
    return found


def stream(size: int, *, priority: int = 3, operation: int = 1) -> SendStream:
    payload = memoryview(random.Random(size).randbytes(size))
    return SendStream(operation=operation, prefix=b"head", payload=payload, priority=priority)


@given(st.integers(0, 20_000), st.integers(0, 2**32))
def test_everything_arrives_whatever_is_lost(size: int, seed: int) -> None:
    rng = random.Random(seed)
    sent: list[SendStream] = []
    out = outgoing(sent)
    one = stream(size)
    expected = b"head" + bytes(one.payload or b"")
    out.submit(one)
    got = bytearray(len(expected))
    for _ in range(3000):
        if sent:
            break
        handlers: list[tuple[Callable[..., None], tuple[Any, ...]]] = []
        parts: list[bytes] = []
        out.fill(parts, rng.choice([100, 700, 1400]), handlers)
        for handler, arguments in handlers:
            lost = rng.random() < 0.3
            if not lost:
                _, start, stop = arguments
                got[start:stop] = b"".join(one.read(start, stop))  # integers, by construction
            handler(State.LOST if lost else State.ACKED, *arguments)
    assert sent == [one]
    assert got == expected


def test_levels_are_served_strictly_and_equals_take_turns(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("transport.engine.aioquic.send_streams.TURN_BYTES", 10_000)
    out = outgoing([])
    for operation, level in ((1, 5), (2, 4), (3, 4), (4, 1)):
        out.submit(stream(40_000, priority=level, operation=operation))
    order = []
    while out.has_work:
        handlers: list[tuple[object, tuple[SendStream, int, int]]] = []
        out.fill([], 1400, handlers)  # narrower than what it takes
        order += [arguments[0].operation for _, arguments in handlers]
    first = {operation: order.index(operation) for operation in (1, 2, 3, 4)}
    last = {operation: len(order) - 1 - order[::-1].index(operation) for operation in (1, 2, 3, 4)}
    assert last[4] <= first[2] < first[3] < last[2]  # the urgent one first, then two in turns
    assert max(last[2], last[3]) <= first[1]


def test_nothing_is_sent_beyond_the_peers_credit() -> None:
    out = outgoing([], window=1000, credit=1500)
    one, two = stream(5000, operation=1), stream(5000, operation=2)
    out.submit(one)
    out.submit(two)
    for _ in range(10):
        out.fill([], 1400, [])
    assert one.next_offset == 1000
    assert two.next_offset == 500
    assert not out.has_work
    out.allow_bytes(10_000)
    out.fill([], 1400, [])
    assert two.next_offset == 1000


def test_the_last_credit_is_for_control_for_heads_and_for_what_was_granted() -> None:
    out = outgoing([], window=30_000, credit=100_000)
    out.reserve_bytes = 25_000
    flood = [stream(30_000, operation=number) for number in range(1, 4)]
    for one in flood:
        out.submit(one)
    for _ in range(200):
        out.fill([], 1400, [])
    assert not out.has_work
    assert sum(one.next_offset for one in flood) == 75_000
    control, posted, unposted = (
        stream(500, priority=1, operation=8),
        stream(9000, operation=9),
        stream(20_000, operation=10),
    )
    for one in (control, posted, unposted):
        out.submit(one)
    for _ in range(200):
        out.fill([], 1400, [])
    assert control.next_offset == control.total
    assert (posted.next_offset, unposted.next_offset) == (8192, 8192)
    out.allow_stream(posted.stream_id, 40_000)
    for _ in range(20):
        out.fill([], 1400, [])
    assert posted.next_offset == posted.total
    assert unposted.next_offset == 8192


def test_an_urgent_message_takes_the_next_stream_that_the_peer_allows() -> None:
    out = outgoing([], streams=1)
    first, waiting, urgent = stream(100), stream(100, operation=2), stream(100, priority=1, operation=3)
    out.submit(first)
    out.fill([], 1400, [])
    out.submit(waiting)
    out.submit(urgent)
    out.streams_allowed = 2
    out.fill([], 1400, [])
    assert urgent.stream_id == 6
    assert waiting.stream_id == -1


def test_a_reset_is_repeated_until_it_is_acknowledged() -> None:
    out = outgoing([])
    one = stream(10_000)
    out.submit(one)
    out.fill([], 1400, [])
    out.give_up(one, WireCode.CANCELLED)
    assert one.payload is None
    for state in (State.LOST, State.ACKED):
        parts: list[bytes] = []
        handlers: list[tuple[Callable[..., None], tuple[Any, ...]]] = []
        out.fill(parts, 1400, handlers)
        assert parts[0][0] == 0x04
        handlers[0][0](state, *handlers[0][1])
    assert not out.has_work
    assert not out.streams


# Receiving


class Desk:
    """A mailbox with one connection."""

    def __init__(self, *, store: int = 8 * MIB, window: int = MIB, streams_max: int = 16) -> None:
        self.events: list[Event] = []
        self.mailbox = Mailbox("p", store_bytes_max=store, emit=self.events.append)
        self.operations = 0
        self.window = window
        self.streams_max = streams_max
        self.channel = self.connect()

    def connect(self) -> Incoming:
        channel = Incoming(
            first_id=2,
            stream_window_bytes=self.window // 16,
            window_bytes=self.window,
            streams_max=self.streams_max,
            message_bytes_max=2**40,
            on_control=lambda kind, fields: None,
        )
        channel.begin(self.mailbox)
        return channel

    def post(self, buffer: bytearray | None, tag: int = 0) -> int:
        self.operations += 1
        view = None if buffer is None else memoryview(buffer)
        self.mailbox.post(Post(self.operations, "p", MatchKey(kind=Kind.BULK, tag=tag), view))
        return self.operations

    def granted(self) -> dict[int, int]:
        """MAX_STREAM_DATA frames that are due, by stream."""
        parts: list[bytes] = []
        self.channel.fill(parts, 100_000, [])
        found = {}
        for part in parts:
            if part[0] == 0x11:
                number, at = read_varint(part, 1)
                found[number] = read_varint(part, at)[0]
        return found


def wire(payload: bytes, tag: int = 0, **fields: object) -> bytes:
    return encode_header(Header(kind=Kind.BULK, tag=tag, length=len(payload), **fields)) + payload  # type: ignore[arg-type]


@given(st.binary(min_size=1, max_size=3000), st.integers(0, 2**32), st.booleans())
def test_pieces_in_any_order_and_repeated_make_the_message(payload: bytes, seed: int, early: bool) -> None:
    rng = random.Random(seed)
    desk = Desk()
    buffer = bytearray(len(payload))
    if early:
        desk.post(buffer)
    data = wire(payload)
    cuts = sorted({0, len(data), *(rng.randrange(len(data)) for _ in range(8))})
    pieces = list(pairwise(cuts)) * 2
    rng.shuffle(pieces)
    for start, stop in pieces:
        desk.channel.on_stream(6, start, data[start:stop], stop == len(data))
    if not early:
        assert [type(event) for event in desk.events] == [UnexpectedMessage]
        desk.events.clear()
        desk.post(buffer)
    assert [type(event) for event in desk.events] == [Received]
    assert buffer == payload
    assert desk.mailbox.idle
    assert desk.mailbox.reserved == 0


def test_a_posted_message_is_granted_whole_and_an_unposted_one_only_while_there_is_room() -> None:
    desk = Desk(store=MIB, window=MIB)
    desk.post(bytearray(10 * MIB), tag=1)
    for number, (tag, size) in enumerate(((1, 10 * MIB), (2, MIB // 4), (3, MIB))):
        head = encode_header(Header(kind=Kind.BULK, tag=tag, length=size))
        desk.channel.on_stream(6 + 4 * number, 0, head, False)
    grants = desk.granted()
    assert grants[6] > 10 * MIB
    assert grants[10] > MIB // 4
    assert 14 not in grants  # the third would take more than half of the store
    assert desk.mailbox.reserved < MIB
    desk.post(None, tag=3)
    assert desk.granted()[14] > MIB


def test_a_stalled_message_is_granted_when_another_is_taken() -> None:
    desk = Desk(store=MIB, window=MIB)
    for number, tag in enumerate((1, 2)):
        head = encode_header(Header(kind=Kind.BULK, tag=tag, length=300_000))
        desk.channel.on_stream(6 + 4 * number, 0, head, False)
    assert set(desk.granted()) == {6}
    desk.post(None, tag=1)
    assert desk.granted()[10] > 300_000


def test_held_bytes_narrow_the_window_and_posted_ones_do_not() -> None:
    desk = Desk(store=100_000, window=MIB, streams_max=100)
    desk.post(bytearray(4 * MIB), tag=1)
    data = wire(bytes(4 * MIB), tag=1)
    desk.channel.on_stream(6, 0, data[:1000], False)
    for start in range(1000, len(data), 100_000):
        desk.granted()  # sends MAX_DATA when it is due
        desk.channel.on_stream(6, start, data[start : start + 100_000], start + 100_000 >= len(data))
    assert isinstance(desk.events[-1], Received)
    pieces = until_refused(desk, wire(bytes(60_000), tag=99)[:50_000], first=2, end=False, match="more than the")
    assert 16 <= pieces <= 21  # a window of 1 MiB holds 20 pieces of 50 kB


def test_what_the_store_takes_whole_does_not_narrow_the_window() -> None:
    desk = Desk(store=8 * MIB, window=MIB, streams_max=200)
    whole = until_refused(desk, wire(bytes(60_000), tag=99)[:50_000], first=1, end=False, match="more than the")
    assert 80 <= whole <= 90  # 67 that fit half of the store, and then a window of 1 MiB


def until_refused(desk: Desk, data: bytes, *, first: int, end: bool, match: str) -> int:
    """How many streams with these bytes are taken before one is refused."""
    for number in range(first, 5000):
        desk.granted()
        try:
            desk.channel.on_stream(2 + 4 * number, 0, data, end)
        except TransportViolation as error:
            assert match in error.reason  # noqa: PT017 - where it is raised is what is asked
            return number - first
    raise AssertionError("never refused")


def test_a_million_empty_messages_are_stopped_by_their_overhead() -> None:
    desk = Desk(store=200_000, streams_max=64)
    assert until_refused(desk, wire(b""), first=1, end=True, match="are allowed") < 200


def test_a_longer_message_than_its_buffer_fails_the_post_and_stops_the_stream() -> None:
    desk = Desk()
    operation = desk.post(bytearray(3))
    desk.channel.on_stream(6, 0, wire(b"four")[:-1], False)
    (event,) = desk.events
    assert isinstance(event, OperationFailed)
    assert event.operation == operation
    assert isinstance(event.error, PeerError)
    parts: list[bytes] = []
    desk.channel.fill(parts, 1000, [])
    assert parts == [bytes((0x05, 6, WireCode.BUFFER_TOO_SMALL))]


def test_a_reset_fails_the_post_that_the_message_had_taken() -> None:
    desk = Desk()
    desk.post(bytearray(100))
    desk.channel.on_stream(6, 0, wire(bytes(100))[:50], False)
    desk.channel.on_reset(6, WireCode.DEADLINE_PASSED, 60)
    (event,) = desk.events
    assert isinstance(event, OperationFailed)
    assert isinstance(event.error, CancelledError)
    assert "DEADLINE_PASSED" in str(event.error)


def test_a_reset_of_a_waiting_message_frees_its_memory() -> None:
    desk = Desk()
    desk.channel.on_stream(6, 0, wire(bytes(100))[:50], False)
    desk.channel.on_reset(6, 0, 50)
    assert desk.mailbox.reserved == 0
    assert desk.mailbox.idle


def test_posts_of_a_lost_connection_are_first_in_line_again() -> None:
    desk = Desk()
    first, second = desk.post(bytearray(10)), desk.post(bytearray(10))
    desk.channel.on_stream(6, 0, wire(b"x" * 10)[:-2], False)
    desk.mailbox.disconnected(desk.channel)
    other = desk.connect()
    other.on_stream(6, 0, wire(b"y" * 10), True)
    (event,) = desk.events
    assert isinstance(event, Received)
    assert event.operation == first
    assert event.payload == b"y" * 10
    desk.mailbox.fail_posts(lambda: ConnectionLostError("p", "gone"))
    assert isinstance(desk.events[-1], OperationFailed)
    assert desk.events[-1].operation == second


def test_a_complete_message_outlives_its_connection() -> None:
    desk = Desk()
    desk.channel.on_stream(6, 0, wire(b"kept"), True)
    desk.mailbox.disconnected(desk.channel)
    desk.post(None)
    assert isinstance(desk.events[-1], Received)
    assert desk.events[-1].payload == b"kept"


def test_an_abandoned_step_is_dropped_now_and_later() -> None:
    desk = Desk()
    desk.channel.on_stream(6, 0, wire(b"a", group="g", step=1), True)
    desk.channel.on_stream(10, 0, wire(b"b" * 99, group="g", step=1)[:-9], False)
    desk.mailbox.discard(group="g", before_step=2)
    assert desk.mailbox.idle
    assert desk.mailbox.reserved == 0
    desk.channel.on_stream(14, 0, wire(b"c", group="g", step=1), True)
    desk.channel.on_stream(18, 0, wire(b"d", group="h", step=1), True)
    assert [event.header.group for event in desk.events if isinstance(event, UnexpectedMessage)] == ["g", "h"]
    assert not desk.mailbox.idle


@pytest.mark.parametrize(
    ("frames", "error"),
    [
        ([(6, 0, b"\x05", True)], WireError),
        ([(4, 0, b"x", False)], TransportViolation),
        ([(7, 0, b"x", False)], TransportViolation),
        ([(6, 0, b"", True)], WireError),
        ([(6, 0, wire(b"abc"), False), (6, 3, b"", True)], TransportViolation),
        ([(6, 2**40, b"x", False)], TransportViolation),
        ([(6 + 4 * 16, 0, b"x", False)], TransportViolation),
    ],
)
def test_what_quic_forbids_is_refused(frames: list[tuple[int, int, bytes, bool]], error: type[Exception]) -> None:
    desk = Desk()
    for frame in frames[:-1]:
        desk.channel.on_stream(*frame)
    with pytest.raises(error):
        desk.channel.on_stream(*frames[-1])


# What a verified peer may make us keep


def feed(channel: Incoming, frames: list[tuple[int, int, bytes, bool]]) -> None:
    for frame in frames:
        channel.on_stream(*frame)


def dust(channel: Incoming, *, streams: int, frames: int) -> int:
    """One byte each, with gaps, never the front; how many are taken."""
    taken = 0
    for number in range(1, streams + 1):
        for piece in range(frames):
            try:
                channel.on_stream(number * 4 + 2, 2 * piece + 2, b"x", False)
            except WireError as error:
                assert error.wire_code == WireCode.PROTOCOL_VIOLATION  # noqa: PT017 - where it is raised is asked
                return taken
            taken += 1
    raise AssertionError(f"{taken} pieces were taken")


def test_pieces_are_bounded_in_all_streams_together_with_and_without_headers() -> None:
    assert dust(Desk(streams_max=100).channel, streams=99, frames=500) <= PIECES_MAX
    desk = Desk(streams_max=100)
    for number in range(1, 99):
        desk.channel.on_stream(number * 4 + 2, 0, wire(bytes(20_000), tag=number)[:50], False)
    pieces = [(number * 4 + 2, at, b"x", False) for number in range(1, 99) for at in range(100, 20_000, 2)]
    with pytest.raises(WireError, match="dust"):
        feed(desk.channel, pieces)


def test_packets_that_follow_a_lost_first_one_are_one_piece_and_are_given_back_when_it_comes() -> None:
    desk = Desk(store=64 * MIB, window=16 * MIB, streams_max=1000)
    data = wire(bytes(600_000))
    for number in range(1, 40):
        stream_id = number * 4 + 2
        desk.granted()  # sends MAX_DATA when it is due
        for start in range(1200, len(data), 1200):
            desk.channel.on_stream(stream_id, start, data[start : start + 1200], start + 1200 >= len(data))
        desk.channel.on_stream(stream_id, 0, data[:1200], False)
        assert isinstance(desk.events[-1], UnexpectedMessage)
        desk.post(None)
    assert desk.channel._pieces == 0


def test_the_control_stream_in_dust_is_refused() -> None:
    channel = Desk().channel
    with pytest.raises(WireError, match="dust"):
        feed(channel, [(2, at, b"x", False) for at in range(2, 400, 2)])


def test_little_is_kept_before_the_hello() -> None:
    channel = Incoming(
        first_id=2,
        stream_window_bytes=MIB,
        window_bytes=32 * MIB,
        streams_max=100,
        message_bytes_max=2**40,
        on_control=lambda kind, fields: None,
    )
    with pytest.raises(WireError, match="before its hello"):
        feed(channel, [(number * 4 + 2, 0, bytes(300_000), False) for number in range(1, 10)])
    assert channel.received_bytes < 2 * MIB


def test_ranks_that_share_a_name_have_a_store_each() -> None:
    desk = Desk(store=MIB, window=MIB)
    other = Incoming(
        first_id=2,
        stream_window_bytes=MIB // 16,
        window_bytes=16 * MIB,
        streams_max=16,
        message_bytes_max=2**40,
        on_control=lambda kind, fields: None,
    )
    other.begin(desk.mailbox, account=7)
    for number in range(1, 4):
        desk.channel.on_stream(2 + 4 * number, 0, wire(bytes(400_000))[:100], False)
    assert set(desk.granted()) == {6}
    other.on_stream(6, 0, wire(bytes(400_000), tag=7)[:100], False)
    assert desk.mailbox._reserved[7] > 400_000
    assert other.has_work  # its credit
    desk.mailbox.disconnected(other)
    assert desk.mailbox._reserved[7] == 0
