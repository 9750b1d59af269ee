"""What the native engine promises beyond the other: nothing in Python holds the network up, or is broken by it."""

from __future__ import annotations

import ctypes
import gc
import itertools
import queue
import random
import statistics
import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Sequence
from functools import partial

import numpy as np
import pytest
from engine_relay import first_data_lost, narrow, straight
from engine_support import (
    QUICK,
    ConnectionDown,
    ConnectionUp,
    Node,
    UnexpectedMessage,
    connected,
    engines,
    over,
    pair,
    pytest_generate_tests,
    relayed,
)
from patience import LIMIT_S, most_of, wait_until

from transport.engine import create_engine
from transport.engine.base import EngineSettings, Event, Priority, Received, SendDone

__all__ = ["engines", "pytest_generate_tests"]

NATIVE = ("native", "native")


def hold_the_interpreter(seconds: float) -> None:
    """Sleep with the GIL held, as a long call into a library does that does not let go of it."""
    ctypes.PyDLL(None).usleep(int(seconds * 1e6))


def received_bytes(node: Node) -> int:
    return sum(one.received_bytes for one in node.engine.statistics().values())


@over(NATIVE)
def test_a_long_hold_of_the_interpreter_stops_no_transfer_and_kills_nobody() -> None:
    with connected(settings=QUICK) as (a, b, up, _):
        payload = random.Random(1).randbytes(100 * 2**20)
        buffer = bytearray(len(payload))
        post = b.post("a", buffer)
        began = received_bytes(b)
        a.send(up, payload)
        hold_the_interpreter(2.5)  # more than twice the time after which a silent peer is dead
        arrived = received_bytes(b) - began
        assert arrived >= len(payload), "it was not moved while Python stood still"
        assert isinstance(b.outcome(post), Received)
        assert buffer == payload
        a.none(ConnectionDown, within_s=0.3)
        assert not [event for event in b.events if isinstance(event, ConnectionDown)]


@over(NATIVE)
def test_what_ended_while_python_stood_still_is_told_in_few_batches() -> None:
    """One call for each end would take the interpreter's lock a thousand times, from who computes."""
    count, size = 500, 20_000
    held_s = iter((0.5, 2.0, 5.0))
    with connected() as (a, b, up, _):
        batches: list[int] = []
        for node in (a, b):
            tell = node.engine.on_events
            node.engine.on_events = lambda events, tell=tell: (batches.append(len(events)), tell(events))  # type: ignore[assignment]

        def largest() -> int:
            posts = [b.post("a", bytearray(size), tag=tag) for tag in range(count)]
            sends = [a.send(up, bytes(size), tag=tag) for tag in range(count)]
            hold_the_interpreter(next(held_s))
            for node, operations in ((a, sends), (b, posts)):
                assert all(isinstance(node.outcome(one), (SendDone, Received)) for one in operations)
            return max(batches)

        most_of(largest, lambda found: found >= count // 2, windows=3)


@over(NATIVE)
def test_a_buffer_cannot_be_resized_while_it_is_lent_and_can_afterwards() -> None:
    with connected(settings=EngineSettings(unexpected_bytes_max=2**20)) as (a, b, up, _):
        payload, buffer = bytearray(8 * 2**20), bytearray(8 * 2**20)
        send = a.send(up, payload)
        post = b.post("a", buffer, tag=1)
        for lent in (payload, buffer):
            with pytest.raises(BufferError):
                lent.extend(b"more")
        a.engine.cancel(send)
        b.engine.cancel(post)
        a.outcome(send)
        b.outcome(post)
        gc.collect()
        for free in (payload, buffer):
            free.extend(b"more")


@over(NATIVE)
def test_a_tensor_that_nobody_else_holds_is_sent_whole() -> None:
    with connected() as (a, b, up, _):
        array = np.random.default_rng(1).integers(0, 255, 20 * 2**20, dtype=np.uint8)
        expected = array.tobytes()
        post = b.post("a", None)
        a.send(up, array.data)
        del array
        gc.collect()
        assert b.outcome(post).payload == expected


@over(("native", "native"), ("native", "aioquic"))
def test_urgent_messages_do_not_wait_behind_a_flood_to_the_same_peer() -> None:
    with connected() as (a, b, up, _):
        big = bytes(16 * 2**20)
        for tag in range(8):
            b.post("a", bytearray(len(big)), tag=tag)
            a.send(up, big, tag=tag, priority=Priority.BULK)
        post = b.post("a", None, tag=100)
        a.send(up, b"urgent", tag=100, priority=Priority.CONTROL)
        b.outcome(post)
        assert sum(isinstance(event, Received) for event in b.events) < 8


@over(NATIVE)
def test_a_thousand_streams_that_say_nothing_stop_nobody() -> None:
    settings = EngineSettings(streams_max=64, unexpected_bytes_max=2**20)
    with connected(settings=settings) as (a, b, up, _):
        flood = [a.send(up, bytes(100_000), tag=1000 + number) for number in range(200)]
        post = b.post("a", None, tag=1)
        a.send(up, b"through", tag=1, priority=Priority.CONTROL)
        assert b.held("a") <= settings.unexpected_bytes_max * 9 // 8 + 64 * 65536
        for number in range(200):
            b.post("a", None, tag=1000 + number)
        for send in flood:
            assert isinstance(a.outcome(send), SendDone)
        assert b.outcome(post).payload == b"through"


@over(NATIVE)
def test_a_goodbye_is_heard_in_time_over_a_real_path() -> None:
    with relayed(straight) as (a, b, _up, _, _relay):
        began = time.monotonic()
        a.engine.close()
        assert b.take(ConnectionDown).error is None
        assert time.monotonic() - began < 1


@over(NATIVE)
def test_other_congestion_controllers_move_messages_too() -> None:
    for name in ("cubic", "bbr"):
        with connected(settings=EngineSettings(congestion=name)) as (a, b, up, _):
            post = b.post("a", None)
            a.send(up, bytes(3_000_000))
            assert len(b.outcome(post).payload) == 3_000_000


@over(NATIVE)
def test_bulk_moves_under_the_delay_bound() -> None:
    with connected(bulk=True) as (a, b, up, _):
        post = b.post("a", None)
        a.outcome(a.send(up, bytes(20_000_000), priority=Priority.BULK))
        assert len(b.outcome(post).payload) == 20_000_000
        a.none(ConnectionDown, within_s=0.25)
        assert a.engine.statistics()[up].bulk


@over(NATIVE)
def test_peers_that_come_again_are_judged_again() -> None:
    with pair() as (a, b):
        for _ in range(3):
            a.dial(b)
            up = a.take(ConnectionUp).connection
            b.take(ConnectionUp)
            a.engine.disconnect(up, wire_code=0, reason="once more")
            assert b.take(ConnectionDown).error is None


@over(NATIVE)
def test_announced_messages_carry_every_field_of_their_header() -> None:
    from transport.wire.header import Header, Kind

    header = Header(
        kind=Kind.COLLECTIVE, job="job", group="größe", step=2**64 - 1, bucket=3, tag=2**63,
        dtype="bfloat16", shape=(2, 3), length=12, call="allreduce",
    )  # fmt: skip
    with connected() as (a, b, up, _):
        a.engine.send(up, header, memoryview(bytes(12)), priority=Priority.GRADIENT)
        assert b.take(UnexpectedMessage).header == header


@over(NATIVE)  # aioquic knows only what the kernel tells of a path's MTU
def test_a_path_that_swallows_long_datagrams_is_found_out_and_used() -> None:
    with relayed(narrow) as (a, b, up, _, _relay):
        payload = random.Random(2).randbytes(500_000)
        post = b.post("a", None)
        a.send(up, payload)
        assert b.outcome(post).payload == payload


@over(NATIVE)
def test_auto_takes_native_where_it_is_built() -> None:
    engine = create_engine("auto", EngineSettings(), lambda events: None)
    assert engine.name == "native"
    engine.close()


PROGRAM = """
import sys
sys.path[:0] = ["tests/loopback", "tests"]
import engine_support
from engine_support import connected
engine_support._pair = ("native", "native")
manager = connected()
a, b, up, _ = manager.__enter__()
a.send(up, bytes(50_000_000))
print("sending", flush=True)
{end}
"""


@over(NATIVE)
@pytest.mark.parametrize("end", ["sys.exit(0)", "raise KeyboardInterrupt", "import os; os._exit(0)"])
def test_an_interpreter_that_ends_in_the_middle_ends_quietly(end: str) -> None:
    command = [sys.executable, "-W", "ignore", "-c", PROGRAM.format(end=end)]
    result = subprocess.run(command, capture_output=True, text=True, timeout=30)
    assert result.stdout == "sending\n", result.stderr
    assert result.returncode in (0, 1, 130, -2)
    assert "FATAL" not in result.stderr
    assert "panicked" not in result.stderr


@over(NATIVE)
def test_the_thread_of_events_has_one_state_in_python_for_all_batches() -> None:
    kept, heard = threading.local(), queue.SimpleQueue[int]()

    def count(events: Sequence[Event]) -> None:
        kept.batches = getattr(kept, "batches", 0) + 1  # a state that is made anew knows nothing of before
        heard.put(kept.batches)

    engine = create_engine("native", QUICK, count)
    try:
        for batch in range(1, 4):
            engine.connect(99, ("127.0.0.1", 9), expected_peer="nobody")  # is told at once: there is no endpoint 99
            assert heard.get(timeout=LIMIT_S) == batch
    finally:
        engine.close()


@over(NATIVE)
def test_whoever_closes_an_engine_that_is_being_closed_returns_when_its_sockets_are_not_used_any_more() -> None:
    """For they are closed then, and others may get their numbers."""
    for _ in range(5):
        with connected() as (a, _, _, _):
            both = threading.Barrier(2)
            wait_until(a.engine.statistics)
            found: list[object] = []

            def close(a: Node = a, both: threading.Barrier = both, found: list[object] = found) -> None:
                both.wait(LIMIT_S)
                a.engine.close()
                found.append(a.engine._core.statistics())  # type: ignore[attr-defined]

            closing = [threading.Thread(target=close) for _ in range(2)]
            for thread in closing:
                thread.start()
            for thread in closing:
                thread.join(LIMIT_S)
            assert not any(thread.is_alive() for thread in closing)
            assert found == [[], []]  # of no connection any more


def alone_s(node: Node, other: Node, connection: int, *, tag: int) -> float:
    """How long a small message takes until its sender knows that it has arrived, while nothing else is under way."""
    other.post(node.name, None, tag=tag)
    began_s = time.monotonic()
    node.outcome(node.send(connection, b"a small one", tag=tag))
    return time.monotonic() - began_s


def median_alone_s(node: Node, other: Node, connection: int, tags: Iterator[int]) -> float:
    return statistics.median(alone_s(node, other, connection, tag=next(tags)) for _ in range(20))


@over(NATIVE)
def test_a_send_ends_promptly_though_the_wish_for_that_was_lost() -> None:
    """Which goes with the first packet of data each way; a lone packet is else acknowledged after 25 ms, for ever."""
    with relayed(first_data_lost(6)) as (a, b, up, down, _):
        for way in ((a, b, up), (b, a, down)):
            tags = itertools.count()
            usual_s = partial(median_alone_s, *way, tags)
            most_of(usual_s, lambda median_s: median_s < 0.02)


@over(NATIVE)
def test_what_was_acknowledged_arrives_though_its_sender_left_before_its_hello_was_judged(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Python stands still after it has let the peer in, and before it hears the peer's hello."""
    with pair(settings=EngineSettings(shared_memory=False)) as (a, b):
        greeted, go_on = b.engine._greeted, threading.Event()  # type: ignore[attr-defined]
        monkeypatch.setattr(b.engine, "_greeted", lambda *said: (go_on.wait(LIMIT_S), greeted(*said))[1])
        post = b.post("a", bytearray(1000))
        a.dial(b)
        sent = a.send(a.take(ConnectionUp).connection, bytes(1000))
        assert isinstance(a.outcome(sent), SendDone)
        a.engine.close()
        time.sleep(0.2)  # its goodbye is here
        go_on.set()
        assert isinstance(b.outcome(post), Received)
        assert b.take(ConnectionDown).error is None
