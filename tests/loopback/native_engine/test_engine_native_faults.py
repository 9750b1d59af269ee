"""Panics inside the native engine, wherever they happen: a clear error in Python, and never the end of the process.

They are provoked in a build that can be asked for them (feature `faults`); an ordinary build has nothing of it, and the
tests of this file are then not run. `make sanitize` builds and runs them.
"""

from __future__ import annotations

import importlib
import logging
from collections.abc import Iterator
from typing import Any

import pytest
from engine_support import (
    ConnectionDown,
    ConnectionUp,
    Node,
    connected,
    engines,
    over,
    pair,
    pytest_generate_tests,
)
from patience import wait_until

from hive_qos.errors import ConnectionLostError, MisuseError
from transport.collectives.schedule import Builder, Region
from transport.engine.base import (
    Collective,
    CollectiveEnded,
    EngineSettings,
    Member,
    OperationFailed,
    Priority,
    Received,
    SendDone,
)
from transport.identity.credentials import Trust

__all__ = ["engines", "pytest_generate_tests"]

NATIVE = ("native", "native")

if not hasattr(importlib.import_module("hive_qos_native").Core, "fault"):
    pytest.skip("this build panics for nobody: run tools/sanitize.sh faults", allow_module_level=True)


def ask_for_panic(node: Node, place: str) -> None:
    node.engine._core.fault(place)  # type: ignore[attr-defined]


@pytest.fixture
def three() -> Iterator[tuple[Node, Node, Node, int, int]]:
    """Node a, connected to b and to c: its connections' numbers."""
    nodes = [Node(name) for name in "abc"]
    a, b, c = nodes
    try:
        for node in nodes:
            node.serve(Trust(pins={one.identity.pin: one.name for one in nodes}))
        ups = []
        for other in (b, c):
            a.dial(other)
            ups.append(a.take(ConnectionUp).connection)
            other.take(ConnectionUp)
        yield a, b, c, ups[0], ups[1]
    finally:
        for node in nodes:
            node.engine.close()


def only_connection(node: Node) -> int:
    return wait_until(lambda: next(iter(node.engine.statistics()), 0))


def talks(sender: Node, receiver: Node, connection: int, tag: int = 77) -> None:
    send = sender.send(connection, b"as before", tag=tag)
    assert receiver.outcome(receiver.post(sender.name, None, tag=tag)).payload == b"as before"
    assert isinstance(sender.outcome(send), SendDone)


@over(NATIVE)
@pytest.mark.parametrize("place", ["send", "written"])
def test_a_panic_in_a_send_ends_its_connection_and_no_other(
    three: tuple[Node, Node, Node, int, int], place: str
) -> None:
    a, b, c, to_b, to_c = three
    payload = bytearray(100_000)
    waits = a.post("b", None, tag=5)
    ask_for_panic(a, place)
    send = a.send(to_b, payload)
    for operation in (send, waits):
        error = a.outcome(operation).error
        assert isinstance(error, ConnectionLostError)
        assert f"a fault was asked for: {place}" in str(error)
    assert "a fault was asked for" in str(a.take(ConnectionDown).error)
    assert b.take(ConnectionDown).error is not None
    payload.extend(b"it was given back")
    talks(a, c, to_c)
    talks(c, a, only_connection(c))
    a.dial(b)
    talks(a, b, a.take(ConnectionUp).connection)


@over(NATIVE)
def test_a_panic_in_a_receive_ends_its_connection_and_its_post_waits_for_another(
    three: tuple[Node, Node, Node, int, int],
) -> None:
    a, b, c, _, to_c = three
    up = only_connection(b)
    a.dial(b)  # a second connection, so that the first is not the last
    a.take(ConnectionUp)
    second = b.take(ConnectionUp).connection
    post = a.post("b", bytearray(9), tag=3)
    ask_for_panic(a, "receive")
    send = b.send(up, b"into fire", tag=3)
    assert isinstance(b.outcome(send), (OperationFailed, SendDone))
    assert "a fault was asked for: receive" in str(a.take(ConnectionDown).error)
    b.send(second, b"and again", tag=3)
    got = a.outcome(post)
    assert isinstance(got, Received)
    assert got.payload == b"and again"
    talks(a, c, to_c)


@over(NATIVE)
@pytest.mark.parametrize("by", ["send", "nobody"])
def test_a_panic_in_the_stack_of_a_connection_ends_that_one(three: tuple[Node, Node, Node, int, int], by: str) -> None:
    """Whichever connection has something to send next; keep-alives are that, too."""
    a, b, c, to_b, to_c = three
    payload = bytearray(1_000_000)
    others = {to_b: (b, c, to_c), to_c: (c, b, to_b)}
    waits = {to_b: a.post("b", None, tag=5), to_c: a.post("c", None, tag=5)}
    ask_for_panic(a, "stack")
    send = a.send(to_b, payload) if by == "send" else None
    down = a.take(ConnectionDown)
    assert "failed on this connection: a fault was asked for: stack" in str(down.error)
    peer, survivor, to_survivor = others[down.connection or 0]
    assert isinstance(a.outcome(waits[down.connection or 0]).error, ConnectionLostError)
    assert peer.take(ConnectionDown).error is not None  # nobody said goodbye: it notices the silence
    if send is not None and down.connection == to_b:
        assert isinstance(a.outcome(send).error, ConnectionLostError)
        payload.extend(b"it was given back")
    talks(a, survivor, to_survivor)
    talks(survivor, a, only_connection(survivor))
    a.dial(peer)
    talks(a, peer, a.take(ConnectionUp).connection)


@over(NATIVE)
def test_a_panic_in_the_course_of_a_connection_ends_that_one(three: tuple[Node, Node, Node, int, int]) -> None:
    a, b, c, to_b, to_c = three
    talks(a, b, to_b)  # the tasks of these connections have seen that they are up
    talks(a, c, to_c)
    ask_for_panic(a, "connection")
    attempt = a.dial(b)
    down = a.take(ConnectionDown, lambda event: "asked for: connection" in str(event.error))
    assert down.attempt == attempt
    talks(a, b, to_b)
    talks(a, c, to_c)


@over(NATIVE)
def test_a_panic_in_the_stack_of_an_endpoint_loses_its_connections_and_the_endpoint_goes_on(
    three: tuple[Node, Node, Node, int, int],
) -> None:
    a, b, c, to_b, _ = three
    payload = bytearray(64_000_000)  # more than the store keeps: it cannot be done before the panic
    open_operations = [a.send(to_b, payload), a.post("b", bytearray(10), tag=5), a.post("c", None, tag=5)]
    ask_for_panic(a, "endpoint")  # at the next datagram; keep-alives are that, too
    for operation in open_operations:
        error = a.outcome(operation).error
        assert isinstance(error, ConnectionLostError)
        assert "failed on this connection: a fault was asked for: endpoint" in str(error)
    payload.extend(b"it was given back")
    for other in (b, c):
        assert "a fault was asked for: endpoint" in str(a.take(ConnectionDown).error)
        assert other.take(ConnectionDown).error is not None
    a.dial(b)
    talks(a, b, a.take(ConnectionUp).connection)
    c.dial(a)
    talks(c, a, c.take(ConnectionUp, lambda up: up.attempt is not None).connection)


@over(NATIVE)
def test_who_dialled_an_endpoint_that_panicked_is_told_at_once() -> None:
    patient = EngineSettings(keep_alive_s=0.2, dead_after_s=600.0)  # the silence would not be noticed while we wait
    with connected(settings=patient) as (a, b, _, _):
        ask_for_panic(b, "endpoint")
        assert "a fault was asked for: endpoint" in str(b.take(ConnectionDown).error)
        assert "reset by peer" in str(a.take(ConnectionDown).error)


@over(NATIVE)
def test_a_panic_while_the_stack_dials_fails_that_attempt_with_its_words(
    three: tuple[Node, Node, Node, int, int],
) -> None:
    a, b, _, _, _ = three
    ask_for_panic(a, "dial")
    attempt = a.dial(b)
    down = a.take(ConnectionDown, lambda event: event.attempt == attempt and event.connection is None)
    assert "a fault was asked for: dial" in str(down.error)
    b.take(ConnectionDown)
    a.dial(b)
    talks(a, b, a.take(ConnectionUp).connection)


@over(NATIVE)
def test_an_endpoint_that_panics_again_and_again_ends_the_engine_with_the_reason() -> None:
    with pair() as (a, b):
        waits = a.post("b", None)

        def over() -> bool:
            ask_for_panic(a, "endpoint")
            b.dial(a)
            return bool(a.engine._core.over)  # type: ignore[attr-defined]

        wait_until(over)
        assert "a fault was asked for: endpoint" in str(a.outcome(waits).error)
        works_anew(a, b)


def works_anew(broken: Node, other: Node) -> None:
    """An engine that is opened in the process of one that broke is as good as any."""
    broken.engine.close()
    fresh = Node("fresh")
    try:
        trust = Trust(pins={fresh.identity.pin: fresh.name, other.identity.pin: other.name})
        other.engine._endpoints[other.endpoint].trust = trust  # type: ignore[attr-defined]
        fresh.serve(trust)
        fresh.dial(other)
        talks(fresh, other, fresh.take(ConnectionUp).connection)
    finally:
        fresh.engine.close()


def ends_whole(node: Node, operations: list[int], place: str) -> None:
    for operation in operations:
        error = node.outcome(operation).error
        assert isinstance(error, ConnectionLostError)
        assert f"a fault was asked for: {place}" in str(error)
    node.take(ConnectionDown)
    with pytest.raises(MisuseError, match="closed"):
        node.post("b", None)


@over(NATIVE)
@pytest.mark.parametrize("place", ["tick", "accept", "matcher", "driver"])
def test_a_panic_in_what_all_connections_share_ends_the_engine_with_every_operation(place: str) -> None:
    with connected() as (a, b, up, other):
        waiting = [a.post("b", bytearray(10), tag=tag) for tag in range(5)]
        # Nobody takes it, and it is more than the store keeps.
        waiting.append(a.send(up, bytes(64_000_000), tag=9))
        ask_for_panic(a, place)
        if place == "accept":
            b.dial(a)
        elif place == "matcher":
            b.send(other, b"x", tag=99)
        ends_whole(a, waiting, place)
        assert b.take(ConnectionDown).error is not None
        works_anew(a, b)


@over(NATIVE)
def test_a_panic_in_what_carries_out_collectives_ends_the_engine_and_gives_the_tensors_back() -> None:
    with connected() as (a, b, _, _):
        lent = bytearray(8)
        builder = Builder(rank=0, size=2)
        builder.receive(1, 0, Region(0, 0, 8))
        members = [Member(rank, name, "a test", "a test") for rank, name in enumerate("ab")]
        collectives = a.engine.collectives
        assert collectives is not None
        number = collectives.start(
            Collective(
                schedule=builder.done().encoded,
                buffers=[memoryview(lent)],
                dtype="float32",
                item_bytes=4,
                reduce_op="sum",
                job="",
                group="g",
                step=0,
                operation=1,
                members=members,
                rank=0,
                priority=Priority.GRADIENT,
                order=0,
            )
        )
        waiting = [a.post("b", bytearray(10), tag=1)]
        wait_until(lambda: list(collectives.progress(number)[1]) == [1])
        ask_for_panic(a, "collective")
        collectives.stop(number)
        assert a.take(CollectiveEnded) == CollectiveEnded(number, complete=False, bytes_done=0)
        lent.extend(b"it was given back")
        ends_whole(a, waiting, "collective")
        works_anew(a, b)


@over(NATIVE)
def test_a_panic_in_the_event_thread_loses_no_operation() -> None:
    with connected() as (a, _b, _, _):
        waiting = [a.post("b", None, tag=tag) for tag in range(5)]  # without a buffer: its release is an event too
        ask_for_panic(a, "tell")
        a.engine.cancel(waiting[0])
        error = a.outcome(waiting[0]).error
        assert "a fault was asked for: tell" in str(error)
        ends_whole(a, waiting[1:], "tell")


@over(NATIVE)
def test_a_panic_below_a_python_call_on_the_event_thread_is_told(caplog: pytest.LogCaptureFixture) -> None:
    """The event thread calls Python, which calls Rust, which panics: pyo3 carries it through as a BaseException."""
    with pair() as (a, b):
        waiting = a.post("b", None)

        class Panic(BaseException):
            pass

        def fail(*_: Any) -> None:
            raise Panic("as pyo3 raises it")

        engine: Any = a.engine
        engine._judge = fail
        with caplog.at_level(logging.ERROR):
            a.dial(b)
            assert "as pyo3 raises it" in str(a.outcome(waiting).error)
            a.take(ConnectionDown)
        assert "the transport engine failed" in caplog.text
