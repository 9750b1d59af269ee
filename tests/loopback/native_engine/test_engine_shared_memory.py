"""Native engines of one host send through memory that both share: the same messages and ends, and no packets."""

from __future__ import annotations

import array
import contextlib
import os
import random
import socket
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pytest
from engine_support import Node, connected, engines, over, pytest_generate_tests
from patience import LIMIT_S, wait_until

from hive_qos.errors import CancelledError, PeerError
from transport.engine.base import (
    ConnectionDown,
    ConnectionUp,
    EngineSettings,
    OperationFailed,
    Priority,
    Received,
    SendDone,
)
from transport.identity.credentials import Trust

__all__ = ["engines", "pytest_generate_tests"]

NATIVE = ("native", "native")
SHARING = EngineSettings(shared_memory=True)
EAGER_BYTES = 512 * 1024
LONG = random.Random(1).randbytes(9 * 2**20 + 77)


def statistic(node: Node, connection: int, name: str) -> int:
    found = node.engine.statistics().get(connection)
    return 0 if found is None else int(getattr(found, name))


@contextlib.contextmanager
def sharing(settings: EngineSettings = SHARING) -> Iterator[tuple[Node, Node, int, int]]:
    """Nodes that share memory already; it takes a moment after the connection is up."""
    with connected(settings=settings) as (a, b, to_b, to_a):

        def shared(sender: Node, connection: int, receiver: Node) -> bool:
            post = receiver.post(sender.name, None, tag=2**39)
            sender.send(connection, b"?", tag=2**39)
            assert isinstance(receiver.outcome(post), Received)
            return statistic(sender, connection, "shared_sent_bytes") > 0

        for ends in ((a, to_b, b), (b, to_a, a)):
            wait_until(lambda ends=ends: shared(*ends), pause_s=0.05)
        yield a, b, to_b, to_a


def received(node: Node, post: int) -> bytes:
    found = node.outcome(post)
    assert isinstance(found, Received), found
    return b"" if found.payload is None else bytes(found.payload)


@over(NATIVE)
def test_messages_of_all_lengths_arrive_both_ways_and_not_as_packets() -> None:
    lengths = [0, 1, 15, 16, 17, 4096, 65536, 65537, EAGER_BYTES, EAGER_BYTES + 1, 3 * 2**20, len(LONG)]
    with sharing() as (a, b, to_b, to_a):
        before = statistic(a, to_b, "sent_bytes")
        posts, sends = [], []
        for tag, length in enumerate(lengths):
            for sender, receiver, connection in ((a, b, to_b), (b, a, to_a)):
                posts.append(
                    (receiver, receiver.post(sender.name, bytearray(length) if tag % 2 else None, tag=tag), length)
                )
                sends.append((sender, sender.send(connection, LONG[:length], tag=tag)))
        for receiver, post, length in posts:
            assert received(receiver, post) == LONG[:length]
        for sender, send in sends:
            assert isinstance(sender.outcome(send), SendDone)
        for name in ("shared_sent_bytes", "shared_received_bytes"):  # of the last tick
            wait_until(lambda name=name: statistic(a, to_b, name) >= sum(lengths))
        assert statistic(a, to_b, "sent_bytes") - before < 100_000


@over(NATIVE)
def test_a_message_that_came_before_its_post_is_taken_whole_by_it() -> None:
    with sharing() as (a, b, to_b, _):
        lengths = (100, 10**5, 2 * 10**6)
        sends = [a.send(to_b, LONG[: length + tag], tag=tag) for tag, length in enumerate(lengths)]
        wait_until(lambda: b.held("a") >= sum(lengths))
        for tag, length in enumerate(lengths):
            assert received(b, b.post("a", bytearray(length + tag), tag=tag)) == LONG[: length + tag]
        assert all(isinstance(a.outcome(send), SendDone) for send in sends)


@over(NATIVE)
def test_what_the_store_has_no_room_for_waits_at_its_sender_and_others_pass() -> None:
    with sharing(replace(SHARING, unexpected_bytes_max=2**20)) as (a, b, to_b, _):
        sends = {tag: a.send(to_b, LONG, tag=tag) for tag in range(20)}
        wanted = b.post("a", bytearray(len(LONG)), tag=100)
        a.send(to_b, LONG, tag=100)
        assert received(b, wanted) == LONG
        assert b.held("a") < 3 * 2**20
        assert not any(a.found_outcome(send) for send in sends.values())
        for tag, send in sends.items():
            assert received(b, b.post("a", bytearray(len(LONG)), tag=tag)) == LONG
            assert isinstance(a.outcome(send), SendDone)


@over(NATIVE)
def test_many_small_messages_fill_no_more_than_the_store_and_all_arrive() -> None:
    with sharing(replace(SHARING, unexpected_bytes_max=2**20)) as (a, b, to_b, _):
        count = 3000
        sends = [a.send(to_b, LONG[:100], tag=tag) for tag in range(count)]
        wait_until(lambda: b.held("a") > 2**19)
        for tag in range(count):
            assert b.held("a") < 2 * 2**20
            assert received(b, b.post("a", None, tag=tag)) == LONG[:100]
        assert all(isinstance(a.outcome(send), SendDone) for send in sends)


@over(NATIVE)
def test_a_send_that_is_given_up_half_way_ends_the_receive_and_no_other_message() -> None:
    with sharing() as (a, b, to_b, _):
        waits = [a.send(to_b, LONG, tag=tag) for tag in range(9)]  # nobody takes them: the store has room for six
        wait_until(lambda: b.held("a") > len(waits) * EAGER_BYTES)
        for send in waits[6:]:
            a.engine.cancel(send)
            ended = a.outcome(send)
            assert isinstance(ended, OperationFailed)
            assert isinstance(ended.error, CancelledError)
        for tag in range(6):
            assert received(b, b.post("a", bytearray(len(LONG)), tag=tag)) == LONG


@over(NATIVE)
def test_a_message_that_is_not_wanted_is_stopped() -> None:
    with sharing() as (a, b, to_b, _):
        short = b.post("a", bytearray(10), tag=1)
        send = a.send(to_b, LONG, tag=1)
        for node, operation in ((b, short), (a, send)):
            ended = node.outcome(operation)
            assert isinstance(ended, OperationFailed)
            assert isinstance(ended.error, PeerError)
        withdrawn = b.post("a", bytearray(len(LONG)), tag=2)
        b.engine.cancel(withdrawn)
        assert isinstance(b.outcome(withdrawn), OperationFailed)
        post = b.post("a", bytearray(len(LONG)), tag=3)
        assert isinstance(a.outcome(a.send(to_b, LONG, tag=3)), SendDone)
        assert received(b, post) == LONG


@over(NATIVE)
def test_an_urgent_message_overtakes_what_waits_for_its_turn() -> None:
    with sharing() as (a, b, to_b, _):
        posts = [b.post("a", bytearray(len(LONG)), tag=tag) for tag in range(30)]
        urgent = b.post("a", bytearray(1000), tag=99)
        for tag in range(30):
            a.send(to_b, LONG, tag=tag)
        a.send(to_b, LONG[:1000], tag=99, priority=Priority.ACTIVATION)
        assert received(b, urgent) == LONG[:1000]
        assert sum(b.found_outcome(post) is not None for post in posts) < len(posts)


@over(NATIVE)
def test_hundreds_of_messages_at_once_arrive() -> None:
    with sharing() as (a, b, to_b, to_a):
        posts = []
        for tag in range(400):
            for sender, receiver in ((a, b), (b, a)):
                posts.append((receiver, receiver.post(sender.name, bytearray(30_000), tag=tag), tag))
        for tag in range(400):
            a.send(to_b, LONG[tag : tag + 30_000], tag=tag)
            b.send(to_a, LONG[tag : tag + 30_000], tag=tag)
        for receiver, post, tag in posts:
            assert received(receiver, post) == LONG[tag : tag + 30_000]


def descriptors() -> dict[str, str]:
    found = {}
    for name in os.listdir("/proc/self/fd"):
        with contextlib.suppress(FileNotFoundError):
            found[name] = os.readlink(f"/proc/self/fd/{name}")
    return found


@over(NATIVE)
def test_nothing_is_left_of_engines_that_shared_memory() -> None:
    before = descriptors()
    for _ in range(3):
        with sharing() as (a, b, to_b, _):
            a.send(to_b, LONG, tag=1)  # nobody takes it
            assert "memfd:hive-qos" not in "".join(descriptors().values()), "mapped, and closed"
            b.engine.close()
            a.take(ConnectionDown)
    left = {name: what for name, what in descriptors().items() if name not in before}
    assert not left
    with open("/proc/self/maps", encoding="utf-8") as maps:
        assert "memfd:hive-qos" not in maps.read()


@over(NATIVE, ("native", "aioquic"), ("aioquic", "native"))
@pytest.mark.parametrize("wanted", [True, False], ids=["wanted here", "off on one side"])
def test_where_one_side_has_it_not_messages_go_as_packets(engines: tuple[str, str], wanted: bool) -> None:
    other = replace(SHARING, shared_memory=wanted and engines != NATIVE)
    with connected(settings=SHARING, other_settings=other) as (a, b, to_b, _):
        post = b.post("a", bytearray(2**20))
        a.send(to_b, LONG[: 2**20])
        assert received(b, post) == LONG[: 2**20]
        wait_until(lambda: statistic(a, to_b, "sent_bytes") > 2**20)
        assert statistic(a, to_b, "shared_sent_bytes") == 0


def visit(place: str, token: bytes, descriptor: int | None) -> bytes:
    """What one who comes to a meeting place with this is answered."""
    with socket.socket(socket.AF_UNIX) as visitor:
        visitor.settimeout(LIMIT_S)
        visitor.connect(f"\0{place}")
        passed: list[Any] = []
        if descriptor is not None:
            passed = [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", [descriptor]))]
        visitor.sendmsg([token], passed)
        with contextlib.suppress(ConnectionResetError):
            return visitor.recv(100)
        return b""


@over(NATIVE)
def test_a_stranger_is_not_answered_and_disturbs_nobody() -> None:
    with sharing() as (a, b, to_b, _):
        place: str = b.engine._core.meeting_place  # type: ignore[attr-defined]
        memory = os.memfd_create("strange", os.MFD_ALLOW_SEALING)
        try:
            os.ftruncate(memory, 4096 + 2 * 2**21)
            for token, descriptor in ((b"?" * 32, memory), (b"short", memory), (b"?" * 32, None), (b"?" * 500, memory)):
                assert visit(place, token, descriptor) == b""
        finally:
            os.close(memory)
        post = b.post("a", bytearray(len(LONG)))
        a.send(to_b, LONG)
        assert received(b, post) == LONG


@over(NATIVE)
def test_a_meeting_place_that_is_none_of_ours_is_not_dialled() -> None:
    with socket.socket(socket.AF_UNIX) as elsewhere:
        elsewhere.bind("\0" + f"not-hive-{os.getpid()}")
        elsewhere.listen()
        elsewhere.setblocking(False)
        a = Node("a", settings=SHARING)
        b = Node("b", settings=replace(SHARING, shared_memory=False))
        try:
            trust = Trust(pins={a.identity.pin: "a", b.identity.pin: "b"})
            a.serve(trust)
            hello = {2: "b", 5: "job", 6: b"run", 7: f"not-hive-{os.getpid()}", 64: 0}
            b.endpoint = b.engine.add_endpoint(b.sock, credentials=b.credentials, trust=trust, hello=hello, bulk=False)
            a.dial(b)
            to_b = a.take(ConnectionUp).connection
            post = b.post("a", bytearray(1000))
            a.send(to_b, LONG[:1000])
            assert received(b, post) == LONG[:1000]
            wait_until(lambda: statistic(a, to_b, "sent_bytes") > 1000)  # a tick later
            with pytest.raises(BlockingIOError):
                elsewhere.accept()
        finally:
            a.engine.close()
            b.engine.close()
