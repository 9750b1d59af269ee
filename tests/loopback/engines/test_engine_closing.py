"""Whoever calls while another thread closes the engine: what is taken has its end, and what is not is refused."""

from __future__ import annotations

import functools
import itertools
import socket
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

import pytest
from engine_support import (
    ENDS,
    ConnectionDown,
    ConnectionUp,
    Node,
    WrappedSocket,
    bound_socket,
    connected,
    engines,
    over,
    pytest_generate_tests,
)
from patience import LIMIT_S, wait_until

from hive_qos.errors import MisuseError
from transport.identity.credentials import Trust
from transport.wire.error_codes import WireCode

__all__ = ["engines", "pytest_generate_tests"]
SOLE = (("aioquic", "aioquic"), ("native", "native"))
"""Only one engine closes; the other does not matter."""
HANDED_OVER: list[socket.socket] = []
"""The sockets that came with a test's calls."""
CLOSED_THERE: list[bool] = []
"""Of those that were refused: whether the engine had closed them."""


@contextmanager
def another_socket() -> Iterator[socket.socket]:
    """One to hand over with a call. Whoever calls closes it where it is refused."""
    sock = bound_socket("127.0.0.1")
    HANDED_OVER.append(sock)
    try:
        yield sock
    except MisuseError:
        CLOSED_THERE.append(sock.fileno() < 0)
        sock.close()
        raise


def all_closed() -> bool:
    return all(sock.fileno() < 0 for sock in HANDED_OVER)


def add_endpoint(node: Node, _: int) -> int:
    trust = Trust(pins={node.identity.pin: "a"})
    with another_socket() as sock:
        return node.engine.add_endpoint(sock, credentials=node.credentials, trust=trust, hello={}, bulk=False)


def rebind(node: Node, _: int) -> int:
    with another_socket() as sock:
        node.engine.rebind(node.endpoint, sock)
    return 0


CALLS: dict[str, Callable[[Node, int], int]] = {
    "send": lambda node, up: node.send(up, bytearray(100_000)),
    "post": lambda node, _: node.post("b", bytearray(10)),
    "connect": lambda node, _: node.engine.connect(node.endpoint, node.address, expected_peer="b"),
    "connect-from-nowhere": lambda node, _: node.engine.connect(99, node.address, expected_peer="b"),
    "add-endpoint": add_endpoint,
    "rebind": rebind,
}
OF_SOCKETS = ("add-endpoint", "rebind")
"""These have no event at their end, but a socket. A few are enough: a native endpoint has a thread of its own."""


PAUSE_S = 0.001
"""From call to call: each connection that is dialled is a handshake, which takes aioquic milliseconds."""


def all_taken(taken: list[tuple[str, int]]) -> bool:
    """Whether each call that has an event at its end has been taken once."""
    return CALLS.keys() - {*OF_SOCKETS} <= {call for call, _ in [*taken]}


@pytest.fixture(autouse=True)
def none_handed_over_yet() -> None:
    HANDED_OVER.clear()
    CLOSED_THERE.clear()


@over(*SOLE)
@pytest.mark.parametrize("call", CALLS)
def test_a_call_that_close_overtakes_is_refused(call: str, monkeypatch: pytest.MonkeyPatch) -> None:
    with connected() as (a, _b, up, _):
        real = a.engine._check_open  # type: ignore[attr-defined]

        def close_behind() -> None:
            real()
            a.engine.close()

        monkeypatch.setattr(a.engine, "_check_open", close_behind)
        with pytest.raises(MisuseError, match="the engine is closed"):
            CALLS[call](a, up)
        assert all(CLOSED_THERE)
        assert len(CLOSED_THERE) == (call in OF_SOCKETS)


@over(*SOLE)
@pytest.mark.parametrize("call", OF_SOCKETS)
def test_a_socket_that_comes_to_a_closed_engine_is_closed(call: str) -> None:
    with connected() as (a, _b, up, _):
        a.engine.close()
        with pytest.raises(MisuseError, match="the engine is closed"):
            CALLS[call](a, up)
        assert CLOSED_THERE == [True]


@over(*SOLE)
def test_a_socket_is_closed_too_where_the_rest_of_the_call_is_wrong() -> None:
    with connected() as (a, _b, up, _):
        nobody = Trust()
        for credentials, trust in (
            (a.credentials, nobody),
            (replace(a.credentials, private_key_pem=b"nothing"), Trust(pins={a.identity.pin: "a"})),
        ):
            with another_socket() as sock, pytest.raises(MisuseError):
                a.engine.add_endpoint(sock, credentials=credentials, trust=trust, hello={}, bulk=False)
            assert sock.fileno() < 0
        a.send(up, b"goes on")


@over(*SOLE)
@pytest.mark.parametrize("call", OF_SOCKETS)
def test_a_socket_that_was_taken_when_the_call_is_interrupted_is_closed_by_the_engine_alone(
    call: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupt(_taken: bool) -> None:
        raise KeyboardInterrupt

    with connected() as (a, b, up, _):
        with monkeypatch.context() as patched:
            patched.setattr(sys.modules[type(a.engine).__module__], "check_taken", interrupt)
            with pytest.raises(KeyboardInterrupt):
                CALLS[call](a, up)
        assert not all_closed()
        a.send(up, b"goes on")
        assert b.outcome(b.post("a", None)).payload == b"goes on"
        assert not all_closed()
        a.engine.close()
        wait_until(all_closed, what=lambda: "a socket is left open")


@over(*SOLE)
def test_whatever_threads_call_while_an_engine_is_closed_ends_once_or_is_refused() -> None:
    for turn in range(20):
        with connected() as (a, _b, up, _):
            taken: list[tuple[str, int]] = []
            wrong: list[BaseException] = []
            begun = threading.Barrier(len(CALLS) + 1)

            def work(call: str, node: Node = a, up: int = up, begun: threading.Barrier = begun) -> None:
                begun.wait(LIMIT_S)
                try:
                    for _ in range(5) if call in OF_SOCKETS else itertools.count():
                        taken.append((call, CALLS[call](node, up)))  # noqa: B023 - joined in this turn
                        time.sleep(PAUSE_S)
                except MisuseError:
                    pass
                except BaseException as error:  # noqa: BLE001 - shown below
                    wrong.append(error)  # noqa: B023 - joined in this turn

            threads = [threading.Thread(target=work, args=(call,)) for call in CALLS]
            for thread in threads:
                thread.start()
            begun.wait(LIMIT_S)
            wait_until(functools.partial(all_taken, taken), what=lambda: wrong, pause_s=PAUSE_S)  # noqa: B023
            a.engine.close(timeout_s=0 if a.engine.name == "native" and turn % 2 else 2.0)
            for thread in threads:
                thread.join(LIMIT_S)
            assert not wrong
            wait_until(all_closed, what=lambda: "a socket is left open")
            ends = Counter(event.operation for event in a.events if isinstance(event, ENDS))
            attempts = Counter(event.attempt for event in a.events if isinstance(event, (ConnectionDown, ConnectionUp)))
            for call, number in taken:
                if call in OF_SOCKETS:
                    continue
                told = attempts if call.startswith("connect") else ends
                assert told[number] >= 1, f"turn {turn}: {call} {number} has no end"
                assert call.startswith("connect") or told[number] == 1, f"turn {turn}: {call} {number} ended twice"


class FullSocket(WrappedSocket):
    """A socket that has no room until `room_at`: for that it makes who does not block come again."""

    room_at = 0.0

    def sendto(self, data: bytes, address: Any) -> int:
        while time.monotonic() < self.room_at:
            if not self.gettimeout():
                raise BlockingIOError
            time.sleep(0.001)
        return super().sendto(data, address)


@over(("aioquic", "aioquic"))  # the other engine's socket cannot be wrapped
def test_a_goodbye_is_heard_though_the_socket_is_full() -> None:
    with connected(wrap=FullSocket) as (a, b, up, _):
        with a.standing_still():  # then all of this in one turn
            a.sock.room_at = time.monotonic() + 0.05  # type: ignore[attr-defined]
            a.send(up, bytes(1_000_000))
            a.engine.close(timeout_s=0)
        assert b.take(ConnectionDown).error is None


class CountingSocket(WrappedSocket):
    """A socket that counts what it sends."""

    sent_packets = 0

    def sendto(self, data: bytes, address: Any) -> int:
        self.sent_packets += 1
        return super().sendto(data, address)


@over(("aioquic", "aioquic"))  # as above
def test_closes_that_cross_do_not_answer_each_other() -> None:
    with connected(wrap=CountingSocket) as (a, b, up_a, up_b):
        with a.standing_still(), b.standing_still():
            before = [node.sock.sent_packets for node in (a, b)]  # type: ignore[attr-defined]
            for node, up in ((a, up_a), (b, up_b)):
                node.engine.disconnect(up, wire_code=WireCode.NO_ERROR, reason="moved")
        for node in (a, b):
            node.take(ConnectionDown)
        time.sleep(0.3)
        after = [node.sock.sent_packets for node in (a, b)]  # type: ignore[attr-defined]
        assert sum(after) - sum(before) < 20


@over(*SOLE)
def test_an_engine_whose_peer_closes_a_moment_earlier_does_not_wait_to_say_its_own_goodbye() -> None:
    """It waited for 0.3 s: the end was told before its own word could leave. That moment is swept over."""
    slow_s: dict[int, float] = {}
    for after_us in range(0, 1000, 25):
        with connected() as (a, b, _, _):
            closing = threading.Thread(target=a.engine.close)
            closing.start()
            until_s = time.monotonic() + after_us * 1e-6
            while time.monotonic() < until_s:
                pass
            began_s = time.monotonic()
            b.engine.close()
            if (took_s := time.monotonic() - began_s) > 0.25:
                slow_s[after_us] = took_s
            closing.join()
    assert len(slow_s) <= 2, slow_s  # a machine may stand still
