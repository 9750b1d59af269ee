"""Point-to-point messages over the engine in memory: order, sizes around the inline limit, anybody, errors."""

from __future__ import annotations

import asyncio
import json
import threading
import time
from types import SimpleNamespace

import numpy as np
import pytest
from patience import wait_until

from hive_qos.errors import (
    CancelledError,
    ConnectionLostError,
    MisuseError,
    PeerError,
    TimedOutError,
    TransportError,
)
from transport import Priority, TensorView, Work
from transport.collectives.membership import CLOSED_MAX
from transport.p2p.engine import INLINE_BYTES, TAKEN_BYTES, UNTAKEN_BYTES_MAX
from transport.p2p.operation import ASK, BODY, HEAD
from transport.wire.header import Kind


@pytest.mark.parametrize("size", [0, 1, INLINE_BYTES - 1, INLINE_BYTES, INLINE_BYTES + 1, 3 * INLINE_BYTES])
@pytest.mark.parametrize("known", [True, False])
@pytest.mark.parametrize("posted_first", [True, False])
def test_messages_of_every_size_arrive_whether_or_not_they_are_expected(make_world, size, known, posted_first):
    world = make_world(2)
    content = np.random.default_rng(size).integers(0, 256, size).astype("u1")
    into = np.zeros(size, "u1") if known else None
    receiving = world.groups[1].recv(into, 0, tag=3) if posted_first else None
    sending = world.groups[0].send(content, 1, tag=3)
    if receiving is None:
        settle(world)
        assert sending.done() == (size <= INLINE_BYTES)
        receiving = world.groups[1].recv(into, 0, tag=3)
    result = receiving.wait(30)
    sending.wait(30)
    received = into if known else result
    assert isinstance(received, np.ndarray)
    assert (received == content).all()
    assert (receiving.source, receiving.bytes_done, receiving.bytes_total) == (0, size, size)


def test_dtype_and_shape_of_the_unexpected_are_those_that_were_sent(make_world):
    world = make_world(2)
    for tensor in (np.zeros((2, 0, 3), "c8"), np.array(5, "i2"), np.ones((300, 200), bool)):
        world.groups[0].send(tensor, 1)
        received = world.groups[1].recv(None, 0).wait(30)
        assert isinstance(received, np.ndarray)
        assert (received.dtype, received.shape, received.tobytes()) == (tensor.dtype, tensor.shape, tensor.tobytes())
    world.groups[0].send(TensorView.from_memory(bytearray(8), dtype="bfloat16", shape=(2, 2)), 1)
    received = world.groups[1].recv(None, 0).wait(30)
    assert isinstance(received, TensorView)
    assert (received.dtype, received.shape) == ("bfloat16", (2, 2))


def test_tags_groups_and_directions_are_apart(make_world):
    world = make_world(2)
    subs = [group.subgroup([1, 0], name="s") for group in world.groups]
    world.groups[0].send(np.array([1]), 1, tag=0)
    subs[0].send(np.array([2]), 0, tag=0)
    world.groups[0].send(np.array([3]), 1, tag=2**40 - 1)
    world.groups[1].send(np.array([4]), 0, tag=0)
    assert world.groups[1].recv(None, 0, tag=2**40 - 1).wait(30) == [3]
    assert subs[1].recv(None, 1, tag=0).wait(30) == [2]
    assert world.groups[1].recv(None, 0, tag=0).wait(30) == [1]
    assert world.groups[0].recv(None, 1, tag=0).wait(30) == [4]


def test_order_holds_when_large_and_small_messages_and_priorities_mix(make_world):
    world = make_world(2)
    sizes = [10, 2_000_000, 3, 70_000, 0, 5]
    for i, size in enumerate(sizes):
        priority = [Priority.ACTIVATION, Priority.CONTROL, Priority.BULK][i % 3]
        world.groups[0].send(np.full(size, i, "u1"), 1, priority=priority)
    works = [world.groups[1].recv(None, 0) for _ in sizes]
    assert [np.asarray(work.wait(30)).size for work in works] == sizes


def test_anybody_is_served_in_the_order_of_asking_and_mixes_with_named_senders(make_world):
    world = make_world(3)
    waiting = [world.groups[0].recv(None, None, tag=1) for _ in range(2)]
    world.groups[2].send(np.array([20]), 0, tag=1).wait(30)
    assert waiting[0].wait(30) == [20]
    assert waiting[0].source == 2
    world.groups[1].send(np.full(100_000, 10), 0, tag=1).wait(30)
    assert np.asarray(waiting[1].wait(30))[-1] == 10
    world.groups[2].send(np.array([21]), 0, tag=1).wait(30)
    world.groups[2].send(np.array([22]), 0, tag=1).wait(30)
    assert world.groups[0].recv(None, 2, tag=1).wait(30) == [21]
    assert world.groups[0].recv(None, None, tag=1).wait(30) == [22]


def test_a_message_that_does_not_fit_is_named_and_the_next_one_arrives(make_world):
    world = make_world(2)
    for tensor in (np.zeros(9), np.zeros(20_000), np.zeros(4, "f4"), np.ones(8, "f4")):
        world.groups[0].send(tensor, 1)
    for text in (r"float64\[9\]", r"float64\[20000\]", r"float32\[4\]"):
        with pytest.raises(PeerError, match=text + r" where float32\[8\]"):
            world.groups[1].recv(np.zeros(8, "f4"), 0).wait(30)
    last = np.zeros(8, "f4")
    world.groups[1].recv(last, 0).wait(30)
    assert last.sum() == 8


def test_errors_name_the_ranks_of_their_group(make_world):
    world = make_world(3)
    subs = world.results(lambda group: group.subgroup([2, 0, 1], name="s"))
    receiver = next(sub for sub in subs if sub.rank == 2)
    sender = next(sub for sub in subs if sub.rank == 0)
    with pytest.raises(TimedOutError, match="receive with tag 1 from rank 0 of group s"):
        receiver.recv(None, 0, tag=1, timeout_s=0.05).wait(30)
    sending = sender.send(np.zeros(INLINE_BYTES + 8, "u1"), 2)
    with pytest.raises(PeerError, match=r"^\S+ (peer )?rank 0.*from anybody of group s: it sent") as refused:
        receiver.recv(np.zeros(8, "f4"), None).wait(30)
    assert "rank 2" not in str(refused.value)
    with pytest.raises(PeerError, match=r"rank 2.*send with tag 0 to rank 2 of group s"):
        sending.wait(30)
    world.network.hold("rank-2", "rank-1")
    with pytest.raises(TimedOutError):
        sender.send(np.zeros(2 * INLINE_BYTES, "u1"), 2, tag=2, timeout_s=0.05).wait(30)
    world.network.release("rank-2", "rank-1")
    with pytest.raises(CancelledError, match="rank 0 gave the message up"):
        receiver.recv(np.zeros(2 * INLINE_BYTES, "u1"), 0, tag=2).wait(30)


def test_a_strided_target_is_filled(make_world):
    world = make_world(2)
    whole = np.zeros((4, 6))
    work = world.groups[1].recv(whole[::2, ::3], 0)
    world.groups[0].send(np.arange(4.0).reshape(2, 2), 1)
    work.wait(30)
    assert whole[::2, ::3].tolist() == [[0, 1], [2, 3]]
    assert whole.sum() == 6


def test_a_receive_times_out_and_later_ones_take_the_next_message(make_world):
    world = make_world(2)
    with pytest.raises(TimedOutError, match="receive with tag 0 from rank 0"):
        world.groups[1].recv(None, 0, timeout_s=0.05).wait(30)
    with pytest.raises(TimedOutError, match="anybody"):
        world.groups[1].recv(None, None, tag=9, timeout_s=0.05).wait(30)
    world.groups[0].send(np.array([1]), 1)
    world.groups[0].send(np.array([2]), 1)
    assert world.groups[1].recv(None, 0).wait(30) == [1]
    assert world.groups[1].recv(None, None).wait(30) == [2]


@pytest.mark.parametrize(
    ("source", "size", "part"),
    [
        (0, 10, HEAD),
        (0, INLINE_BYTES + 1, HEAD),
        (0, INLINE_BYTES + 1, BODY),
        (None, INLINE_BYTES + 1, BODY),
    ],
)
def test_a_receive_whose_time_ends_while_its_message_is_reported_takes_that_message(make_world, source, size, part):
    world = make_world(2)
    runtime, engine = world.groups[1]._runtime, world.network.engines["rank-1"]
    deliver, came, ticked = engine.deliver, threading.Event(), []

    def end_its_time() -> None:
        came.wait(30)
        ticked.append(runtime._p2p.tick(time.monotonic() + 3600.0))

    def late(sender, header, payload) -> None:
        if header.kind is Kind.POINT_TO_POINT and header.bucket == part and not came.is_set():
            runtime._loop.call(end_its_time)  # the loop comes to it before it comes to the report of this message
            deliver(sender, header, payload)
            came.set()
        else:
            deliver(sender, header, payload)

    engine.deliver = late
    receiving = world.groups[1].recv(None, source)
    sends = [world.groups[0].send(np.full(size, content, "u1"), 1) for content in (1, 2)]
    assert np.asarray(receiving.wait(30))[-1] == 1
    assert np.asarray(world.groups[1].recv(None, source).wait(30))[-1] == 2
    for send in sends:
        send.wait(30)
    assert ticked


@pytest.mark.parametrize("source", [0, None])
@pytest.mark.parametrize("known", [True, False])
@pytest.mark.parametrize("lacks", [HEAD, BODY])
def test_a_receive_whose_message_comes_in_part_ends_in_time(make_world, source, known, lacks):
    world = make_world(2)
    engine = world.network.engines["rank-1"]
    deliver = engine.deliver

    def in_part(sender, header, payload) -> None:
        if header.kind is not Kind.POINT_TO_POINT or header.bucket != lacks:
            deliver(sender, header, payload)

    engine.deliver = in_part
    size = INLINE_BYTES + 1
    world.groups[0].send(np.zeros(size, "u1"), 1)
    with pytest.raises(TimedOutError, match=r"timeout of 0\.05 s"):
        world.groups[1].recv(np.zeros(size, "u1") if known else None, source, timeout_s=0.05).wait(30)


@pytest.mark.parametrize("size", [10, INLINE_BYTES])
def test_a_send_that_was_given_up_does_not_hold_up_those_after_it(make_world, size):
    world = make_world(2)
    world.network.hold("rank-0", "rank-1")
    with pytest.raises(TimedOutError):
        world.groups[0].send(np.zeros(size), 1, timeout_s=0.05).wait(30)
    after = world.groups[0].send(np.array([2]), 1)
    world.network.release("rank-0", "rank-1")
    after.wait(30)
    assert world.groups[1].recv(None, 0).wait(30) == [2]


@pytest.mark.parametrize("posted_first", [True, False])
def test_anybody_is_served_in_order_by_those_who_send_when_another_rank_gave_up(make_world, posted_first):
    world = make_world(3)

    def post() -> list[Work]:
        return [world.groups[1].recv(None, None) for _ in range(2)]

    receiving = post() if posted_first else []
    world.network.hold("rank-0", "rank-1")
    for _ in range(2):
        with pytest.raises(TimedOutError):
            world.groups[0].send(np.zeros(10), 1, timeout_s=0.05).wait(30)
    world.network.release("rank-0", "rank-1")
    settle(world)
    sends = [world.groups[2].send(np.array([content]), 1) for content in (20, 21)]
    receiving = receiving or post()
    assert [(work.wait(30), work.source) for work in receiving] == [([20], 2), ([21], 2)]
    for send in sends:
        send.wait(30)


def test_waiting_for_a_rank_that_dies_or_for_anybody_when_all_have_died(make_world):
    world = make_world(2)
    named = world.groups[0].recv(None, 1, timeout_s=60.0)
    anybody = world.groups[0].recv(None, None, timeout_s=60.0)
    world.network.kill("rank-1")
    with pytest.raises(ConnectionLostError, match="rank 1"):
        named.wait(30)
    with pytest.raises(TransportError, match="no other rank is left"):
        anybody.wait(30)
    with pytest.raises(ConnectionLostError, match="rank 1"):
        world.groups[0].send(np.zeros(3), 1, timeout_s=60.0).wait(30)


def test_receiving_from_anybody_when_all_have_left_takes_what_they_sent_and_then_ends(make_world):
    world = make_world(3)
    pair = [group.subgroup([0, 1], name="pair") for group in world.groups[:2]]
    for group in (world.groups[1], pair[1]):
        group.send(np.array([1]), 0).wait(30)
    world.network.kill("rank-1")
    wait_until(world.groups[0].lost_ranks, what=world.groups[0].lost_ranks)
    assert pair[0].recv(None, None, timeout_s=60.0).wait(30) == [1]
    with pytest.raises(TransportError, match="no other rank is left"):
        pair[0].recv(None, None, timeout_s=60.0).wait(30)
    assert world.groups[0].recv(None, None, timeout_s=60.0).wait(30) == [1]
    receiving = world.groups[0].recv(None, None, timeout_s=60.0)
    world.groups[2].send(np.array([2]), 0).wait(30)
    assert receiving.wait(30) == [2]


def test_receiving_from_anybody_ends_where_the_last_message_of_all_who_left_is_void(make_world):
    world = make_world(2)
    world.network.hold("rank-1", "rank-0")
    with pytest.raises(TimedOutError):
        world.groups[1].send(np.zeros(10), 0, timeout_s=0.05).wait(30)
    world.network.release("rank-1", "rank-0")
    settle(world)
    world.network.kill("rank-1")
    wait_until(world.groups[0].lost_ranks, what=world.groups[0].lost_ranks)
    with pytest.raises(TransportError, match="no other rank is left"):
        world.groups[0].recv(None, None, timeout_s=60.0).wait(30)


def test_messages_under_way_survive_a_reconnect(make_world):
    world = make_world(2, reconnect_s=30.0)
    world.network.hold("rank-0", "rank-1")
    sending = world.groups[0].send(np.arange(50_000), 1)
    receiving = world.groups[1].recv(None, 0)
    world.network.cut("rank-0", "rank-1")
    world.network.release("rank-0", "rank-1")
    sending.wait(30)
    assert np.asarray(receiving.wait(30))[-1] == 49_999


def test_aborting_a_group_ends_its_messages(make_world):
    world = make_world(2)
    works = [world.groups[0].recv(None, 1), world.groups[0].recv(None, None, tag=4)]
    world.groups[0].abort("enough")
    for work in works:
        with pytest.raises(CancelledError, match="enough"):
            work.wait(30)


def sent_bytes(world) -> int:
    return sum(header.length for _, _, header in world.network.sent)


def stored(world) -> int:
    """Messages that lie unclaimed in any engine."""
    return sum(len(waiting) for engine in world.network.engines.values() for waiting in engine._stored.values())


def settle(world) -> None:
    """Messages before these two have been handled on both ranks."""
    world.run(lambda group: group.barrier().wait(30))
    world.run(lambda group: group.barrier().wait(30))


def test_a_large_body_leaves_when_it_is_asked_for(make_world):
    world = make_world(2)
    content = np.ones(INLINE_BYTES + 1, "u1")
    sending = world.groups[0].send(content, 1)
    settle(world)
    assert sent_bytes(world) < INLINE_BYTES
    assert (world.groups[1].recv(None, 0).wait(30) == content).all()
    sending.wait(30)


@pytest.mark.parametrize("again_first", [True, False])
def test_a_receive_that_ends_takes_its_asking_back_and_the_next_one_asks_again(make_world, again_first):
    """Or the body of a later send would leave for nobody, and keep all that is behind it waiting."""
    world = make_world(2)
    content, into = np.ones(INLINE_BYTES + 1, "u1"), np.zeros(INLINE_BYTES + 1, "u1")
    with pytest.raises(TimedOutError):
        world.groups[1].recv(into, 0, timeout_s=0.05).wait(30)
    settle(world)
    receiving = world.groups[1].recv(into, 0) if again_first else None
    sending = world.groups[0].send(content, 1)
    if receiving is None:
        settle(world)
        assert sent_bytes(world) < INLINE_BYTES
        receiving = world.groups[1].recv(into, 0)
    receiving.wait(30)
    sending.wait(30)
    assert (into == content).all()
    settle(world)
    assert stored(world) == 0


def test_a_taking_back_that_comes_after_the_next_asking_costs_no_message(make_world):
    world = make_world(2)
    engine = world.network.engines["rank-0"]
    deliver, kept = engine.deliver, []

    def late(sender, header, payload) -> None:
        if header.bucket == ASK and header.length:
            kept.append((sender, header, payload))
        else:
            deliver(sender, header, payload)

    engine.deliver = late
    content, into = np.ones(INLINE_BYTES + 1, "u1"), np.zeros(INLINE_BYTES + 1, "u1")
    with pytest.raises(TimedOutError):
        world.groups[1].recv(into, 0, timeout_s=0.05).wait(30)
    receiving = world.groups[1].recv(into, 0)
    wait_until(lambda: kept)
    settle(world)
    deliver(*kept[0])
    settle(world)
    world.groups[0].send(content, 1).wait(30)
    receiving.wait(30)
    assert (into == content).all()


@pytest.mark.parametrize("size", [INLINE_BYTES, INLINE_BYTES + 1])
def test_a_message_whose_receives_end_again_and_again_arrives_at_last(make_world, size):
    """Asked for, taken back, asked for and so on, before it is sent and afterwards."""
    world = make_world(2)
    content, into = np.ones(size, "u1"), np.zeros(size, "u1")
    for _ in range(3):
        with pytest.raises(TimedOutError):
            world.groups[1].recv(into, 0, timeout_s=0.01).wait(30)
    world.network.hold("rank-0", "rank-1")  # so that the head does not come to the next ones
    sending = world.groups[0].send(content, 1)
    for _ in range(3):
        with pytest.raises(TimedOutError):
            world.groups[1].recv(into, 0, timeout_s=0.01).wait(30)
    world.network.release("rank-0", "rank-1")
    world.groups[1].recv(into, 0).wait(30)
    sending.wait(30)
    assert (into == content).all()
    settle(world)
    assert stored(world) == 0


def test_a_sender_whose_body_is_on_its_way_hears_that_it_is_not_wanted_any_more(make_world):
    world = make_world(2)
    sending = world.groups[0].send(np.ones(INLINE_BYTES + 1, "u1"), 1)
    settle(world)  # the head is there
    world.network.hold("rank-0", "rank-1")
    with pytest.raises(TimedOutError):
        world.groups[1].recv(None, 0, timeout_s=0.2).wait(30)
    with pytest.raises(PeerError, match=r"not done within the timeout of 0\.2 s"):
        sending.wait(30)
    world.network.release("rank-0", "rank-1")
    world.groups[0].send(np.array([2]), 1)
    assert world.groups[1].recv(None, 0).wait(30) == [2]
    settle(world)
    assert stored(world) == 0
    assert not world.groups[0]._runtime._p2p._bodies


def test_who_sends_first_is_received_first_from_anybody(make_world):
    world = make_world(3)
    for count, rank in enumerate([2, 1, 1, 2, 1], 1):
        world.groups[rank].send(np.array([count]), 0).wait(30)
        settle(world)
    assert [np.asarray(world.groups[0].recv(None, None).wait(30))[0] for _ in range(5)] == [1, 2, 3, 4, 5]


def test_a_receive_that_is_cancelled_while_its_message_comes_takes_it(make_world):
    world = make_world(2)
    content = np.ones(INLINE_BYTES + 1, "u1")
    for known in (True, False):
        into = np.zeros(content.size, "u1") if known else None
        sending = world.groups[0].send(content, 1)
        settle(world)  # its head is there, and its body waits to be asked for
        world.network.hold("rank-0", "rank-1")
        receiving = world.groups[1].recv(into, 0)
        p2p = world.groups[1]._runtime._p2p
        wait_until(lambda p2p=p2p: any(op.has_begun for op in p2p.of_group(None)))
        receiving.cancel()
        world.network.release("rank-0", "rank-1")
        result = receiving.wait(30)
        assert (into if known else result).sum() == content.size
        sending.wait(30)


@pytest.mark.parametrize("source", [0, None])
def test_a_receive_that_is_cancelled_ends_and_the_next_one_takes_its_message(make_world, source):
    world = make_world(2)

    async def run() -> None:
        group, into = world.groups[1], np.zeros(4)
        for _ in range(2):
            work = group.recv(into, source)
            with pytest.raises(TimeoutError):
                await asyncio.wait_for(work, 0.05)
            assert isinstance(work.exception(), CancelledError), "so `into` is the caller's again"
        world.groups[0].send(np.ones(4), 1)
        await group.recv(into, source)
        assert into.sum() == 4
        ended = group.recv(None, source)
        world.groups[0].send(np.ones(5), 1)
        assert (await ended).sum() == 5
        ended.cancel()
        assert ended.result().sum() == 5
        barrier = group.barrier()
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(barrier, 0.05)
        world.groups[0].barrier()
        await barrier

    asyncio.run(run())


def test_small_messages_that_nobody_takes_are_bounded_and_later_ones_wait_for_their_receives(make_world):
    world = make_world(2)
    size = INLINE_BYTES // 8
    content = np.zeros(size, "u1")
    for _ in range(2):
        before, count = sent_bytes(world), 2 * UNTAKEN_BYTES_MAX // size
        sends = [world.groups[0].send(np.full(size, number % 251, "u1"), 1) for number in range(count)]
        settle(world)
        assert sent_bytes(world) - before < UNTAKEN_BYTES_MAX + 2**20
        assert not sends[-1].done()
        world.groups[0].send(np.array([7]), 1, tag=1)
        assert world.groups[1].recv(None, 0, tag=1).wait(30) == [7]
        for number, send in enumerate(sends):
            received = world.groups[1].recv(None if number % 2 else content, 0).wait(30)
            assert ((content if received is None else received) == number % 251).all()
            send.wait(30)
        settle(world)
        assert stored(world) == 0


def test_what_nobody_takes_is_bounded_over_all_groups_and_a_group_that_is_forgotten_counts_no_more(make_world):
    world, content = make_world(2), np.zeros(INLINE_BYTES, "u1")
    p2p = world.groups[0]._runtime._p2p
    (first, taker), (second, other) = [[group.subgroup([0, 1], name=name) for group in world.groups] for name in "ab"]
    count = UNTAKEN_BYTES_MAX // INLINE_BYTES
    sends = [first.send(content, 1) for _ in range(count // 2)] + [second.send(content, 1) for _ in range(count)]
    settle(world)
    assert [send.done() for send in sends] == [True] * count + [False] * (count // 2)
    for _ in range(count):
        other.recv(content, 0).wait(30)
    wait_until(lambda: p2p._untaken_bytes == {1: UNTAKEN_BYTES_MAX // 2}, what=lambda: p2p._untaken_bytes)
    wait_until(lambda: not p2p._ops)  # a group with something under way stays known
    for group in (first, taker, second, other):
        group.close()
    for one in [group.subgroup([0, 1]) for group in world.groups for _ in range(CLOSED_MAX + 1)]:
        one.close()
    wait_until(lambda: p2p._untaken_bytes == {1: 0} and not p2p._inline and not p2p._posted)


def test_what_nobody_has_taken_of_a_group_counts_no_more_when_that_is_closed(make_world):
    world, content = make_world(2), np.zeros(INLINE_BYTES, "u1")
    p2p = world.groups[0]._runtime._p2p
    first, taker = (group.subgroup([0, 1], name="a") for group in world.groups)
    for _ in range(UNTAKEN_BYTES_MAX // INLINE_BYTES):
        first.send(content, 1).wait(30)
    assert p2p._untaken_bytes == {1: UNTAKEN_BYTES_MAX}
    first.close()
    taker.close()
    wait_until(lambda: p2p._untaken_bytes == {1: 0})
    world.groups[0].send(content, 1).wait(30)  # it leaves without a receive


def test_what_is_taken_of_many_groups_is_said_for_all_of_them(make_world):
    world, content = make_world(2), np.zeros(TAKEN_BYTES // 4, "u1")
    pairs = [[group.subgroup([0, 1], name=f"g{number}") for group in world.groups] for number in range(8)]
    for pair in pairs:
        pair[0].send(content, 1).wait(30)
        pair[1].recv(content, 0).wait(30)
    wait_until(lambda: world.groups[0]._runtime._p2p._untaken_bytes == {1: 0})


def test_messages_that_are_given_up_before_they_leave_count_for_nothing(make_world):
    world = make_world(2)
    world.groups[0].send(np.zeros(10, "u1"), 1).wait(30)
    world.network.hold("rank-0", "rank-1")
    for send in [world.groups[0].send(np.zeros(INLINE_BYTES, "u1"), 1, timeout_s=0.1) for _ in range(3)]:
        with pytest.raises(TimedOutError):
            send.wait(30)
    world.network.release("rank-0", "rank-1")
    settle(world)
    assert {key: one.sent for key, one in world.groups[0]._runtime._p2p._inline.items()} == {("w", 1): 10}


def test_a_sender_whose_messages_are_taken_waits_for_no_receive(make_world):
    world, content = make_world(2), np.zeros(INLINE_BYTES, "u1")
    for _ in range(4 * UNTAKEN_BYTES_MAX // INLINE_BYTES):
        world.groups[0].send(content, 1).wait(30)
        world.groups[1].recv(content, 0).wait(30)


def test_a_sender_learns_that_its_message_did_not_fit(make_world):
    world = make_world(2)
    sending = world.groups[0].send(np.zeros(INLINE_BYTES + 8, "u1"), 1)
    with pytest.raises(PeerError, match=r"where float32\[8\]"):
        world.groups[1].recv(np.zeros(8, "f4"), 0).wait(30)
    with pytest.raises(PeerError, match=r"where float32\[8\]"):
        sending.wait(30)


@pytest.mark.parametrize("held", [True, False])
@pytest.mark.parametrize("size", [10, 80_000, INLINE_BYTES + 1])
def test_nothing_is_left_in_the_store_of_messages_that_were_given_up(make_world, size, held):
    world = make_world(2)
    if held:  # so that the head does not arrive before it is given up
        world.network.hold("rank-0", "rank-1")
    arrived = not held and size <= INLINE_BYTES
    given_up = world.groups[0].send(np.zeros(size, "u1"), 1, timeout_s=30.0 if arrived else 0.05)
    if not arrived:
        with pytest.raises(TimedOutError):
            given_up.wait(30)
    world.network.release("rank-0", "rank-1")
    world.groups[0].send(np.array([2]), 1).wait(30)
    if arrived:
        assert world.groups[1].recv(None, 0).wait(30).size == size
    settle(world)  # or the receive may take the head of what was given up, before that is known, and be told so
    assert world.groups[1].recv(None, 0).wait(30) == [2]
    settle(world)
    assert stored(world) == 0


@pytest.mark.parametrize("size", [10, INLINE_BYTES + 1])
def test_messages_that_arrive_twice_are_taken_once_and_not_kept(make_world, size):
    world = make_world(2)
    one, other = (world.network.engines[f"rank-{rank}"] for rank in range(2))
    deliver = other.deliver

    def twice(sender, header, payload) -> None:
        deliver(sender, header, payload)
        if header.kind is Kind.POINT_TO_POINT:
            deliver(sender, header, payload)

    other.deliver = twice
    content = np.ones(size, "u1")
    for early in (False, True, False):
        receiving = world.groups[1].recv(None, 0) if early else None
        sending = world.groups[0].send(content, 1)
        settle(world)
        assert ((receiving or world.groups[1].recv(None, 0)).wait(30) == content).all()
        sending.wait(30)
    settle(world)
    assert stored(world) == 0
    assert one is not other


def resized_away(size: int) -> TensorView:
    """What looks, when the operation has ended, as a torch tensor does that was resized away; its memory is sound."""
    places = iter((1, 2))
    return TensorView(memoryview(bytearray(size)), dtype="uint8", shape=(size,), place=lambda: next(places))


@pytest.mark.parametrize("size", [10, 2 * INLINE_BYTES])
def test_a_tensor_that_was_resized_away_ends_what_it_was_lent_for_as_misuse(make_world, size):
    world = make_world(2)
    sending = world.groups[0].send(resized_away(size), 1)
    world.groups[1].recv(None, 0).wait(30)
    receiving = world.groups[1].recv(resized_away(size), 0)
    world.groups[0].send(np.zeros(size, "u1"), 1).wait(30)
    reducing = [group.allreduce(resized_away(size)) for group in world.groups]
    broadcasting = world.groups[0].broadcast(resized_away(size), 0)
    try:
        world.groups[1].broadcast(np.zeros(size, "u1"), 0).wait(30)
    except CancelledError as given_up:  # or it has everything before rank 0 gives up
        assert "freed while it was lent" in str(given_up)  # noqa: PT017 - either may happen
    places = [[np.zeros(size, "u1") for _ in range(2)] for _ in range(2)]
    gathering = [group.all_gather(out, resized_away(size)) for group, out in zip(world.groups, places, strict=True)]
    for work in (sending, receiving, *reducing, broadcasting, *gathering):
        with pytest.raises(MisuseError, match="freed while it was lent"):
            work.wait(30)


@pytest.mark.parametrize(
    "head",
    ["[" * 60_000, '{"dtype": "float32", "shape": ' + "[" * 60_000, "[]", "", "NaN", "1" * 60_000],
    ids=["deep", "deep inside", "a list", "nothing", "no object", "a long number"],
)
def test_a_head_that_is_none_ends_the_receive_that_took_it_and_names_its_sender(make_world, monkeypatch, head):
    world = make_world(2)
    monkeypatch.setattr("transport.p2p.operation.json", SimpleNamespace(dumps=lambda _: head, loads=json.loads))
    world.groups[0].send(np.zeros(2 * INLINE_BYTES, "u1"), 1)
    with pytest.raises(PeerError, match="rank 0"):
        world.groups[1].recv(None, 0).wait(30)
    monkeypatch.undo()
    world.groups[0].send(np.ones(3), 1, tag=1).wait(30)
    assert world.groups[1].recv(None, 0, tag=1).wait(30).sum() == 3


def test_tags_that_are_used_once_leave_nothing_but_their_numbers(make_world):
    world = make_world(2)
    for tag in range(30):
        taking = [world.groups[0].recv(np.zeros(3), 1 if tag % 2 else None, tag) for _ in range(2)]
        for _ in taking:
            world.groups[1].send(np.ones(3), 0, tag).wait(30)
        for work in taking:
            work.wait(30)
        world.groups[1].send(np.ones(3), 0, tag).wait(30)  # it waits for its receiver
        world.groups[0].recv(None, None, tag).wait(30)
    p2p = world.groups[0]._runtime._p2p
    anybody = p2p._any_source
    assert [anybody._heads, anybody._waiting, p2p._ops, p2p._posted, p2p._unexpected] == [{}, {}, {}, {}, set()]


def test_a_group_that_was_closed_says_so_and_is_forgotten_when_many_others_have_been_closed(make_world):
    world = make_world(2)
    first = [group.subgroup([0, 1], name="first") for group in world.groups]
    for pair in (first, *([group.subgroup([0, 1]) for group in world.groups] for _ in range(CLOSED_MAX + 1))):
        works = [group.allreduce(np.ones(3)) for group in pair]
        works += [pair[0].send(np.ones(3), 1), pair[1].recv(np.zeros(3), 0)]
        for work in works:
            work.wait(30)
        for group in pair:
            group.close()
            group.close()
    for call in (first[0].barrier, lambda: first[0].send(np.ones(3), 1), lambda: first[0].recv(None, 1)):
        with pytest.raises(MisuseError, match="group first has been closed"):
            call()
    for group in world.groups:
        runtime = group._runtime
        known = runtime._groups.by_name
        # Each with the group in which its ranks agree on their links.
        wait_until(lambda known=known: len(known) == 2 * (CLOSED_MAX + 1), what=lambda known=known: known)
        assert not [name for name in known if name.startswith("first")]
        assert not [key for key in runtime._in_flight._done if key[0].startswith("first")]
        numbers = runtime._p2p._sent if group.rank == 0 else runtime._p2p._taken
        assert len(numbers._next) == CLOSED_MAX


def test_abort_ends_what_others_exchange_with_this_rank_and_nothing_else(make_world):
    world = make_world(3)
    first, second, third = world.groups
    begun = [second.recv(np.zeros(3), 0), second.send(np.zeros(10**6), 0, tag=1), third.recv(np.zeros(3), 0)]
    between = second.recv(np.zeros(3), 2, tag=2)
    first.abort("the stage failed")
    for work in begun:
        with pytest.raises(CancelledError, match="rank 0 gave up: the stage failed"):
            work.wait(10)
    third.send(np.ones(3), 1, tag=2).wait(10)
    between.wait(10)
    first.send(np.ones(3), 1).wait(10)
    second.recv(np.zeros(3), 0).wait(10)
