"""A rate given from outside: obeyed, reached, shared, taken away and forgotten, over both engines.

Noise makes things late: how long a message takes at least is asserted every time, how long at most for the best of
several.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager

import pytest
from engine_support import ConnectionUp, Node, connected, engines, over, pair, pytest_generate_tests  # noqa: F401
from patience import most_of

from hive_qos.errors import ConfigurationError, MisuseError
from transport.engine import create_engine
from transport.engine.base import EngineSettings, SendDone
from transport.engine.congestion.pacer import RATE_VALID_S

FOLLOWS = EngineSettings(congestion="auto")
RATE = 40_000_000
DATAGRAM, HEADERS, HEADROOM = 1452, 62, 0.95
BURST_BYTES = 60_000
"""Of each connection: what a bucket holds, and what the stacks send in one piece (64 KiB at most)."""


def bound_s(payload_bytes: int, *, rate: int = RATE, connections: int = 1) -> float:
    """The shortest time in which so much may go, with no packet larger than allowed."""
    wire_bytes = (payload_bytes - connections * BURST_BYTES) * (DATAGRAM + HEADERS) / DATAGRAM
    return wire_bytes * 8 / (HEADROOM * rate)


def move(a: Node, b: Node, ups: list[int], size: int) -> float:
    """Send a message over each connection at once; gives the seconds until all are acknowledged."""
    posts = [b.post("a", bytearray(size), tag=tag) for tag in range(len(ups))]
    began_s = time.monotonic()
    sends = [a.send(up, bytes(size), tag=tag) for tag, up in enumerate(ups)]
    for send in sends:
        assert isinstance(a.outcome(send), SendDone)
    took_s = time.monotonic() - began_s
    for post in posts:
        assert len(b.outcome(post).payload) == size
    return took_s


@contextmanager
def given(node: Node, bits_per_s: int) -> Iterator[None]:
    """A rate that is given again in time, as a broker does."""
    import threading

    over = threading.Event()

    def give() -> None:
        while not over.is_set():
            node.engine.set_rate(node.endpoint, bits_per_s)
            over.wait(RATE_VALID_S / 30)

    giving = threading.Thread(target=give)
    node.engine.set_rate(node.endpoint, bits_per_s)
    giving.start()
    try:
        yield
    finally:
        over.set()
        giving.join()


def test_a_rate_is_never_exceeded_and_is_reached() -> None:
    size = 3_000_000
    with connected(settings=FOLLOWS) as (a, b, up, _), given(a, RATE):
        move(a, b, [up], 200_000)  # the round trip is known, and datagrams are as large as they get

        def measure() -> float:
            took_s = move(a, b, [up], size)
            assert took_s >= bound_s(size)
            return took_s

        most_of(measure, lambda took_s: took_s < 1.2 * bound_s(size))


def two_connections(a: Node, b: Node) -> list[int]:
    """Their round trips are known."""
    ups = []
    for _ in range(2):
        a.dial(b)
        ups.append(a.take(ConnectionUp).connection)
    move(a, b, ups, 200_000)
    return ups


def test_connections_of_an_endpoint_have_the_rate_together() -> None:
    size = 2_000_000
    with pair(settings=FOLLOWS) as (a, b), given(a, RATE):
        ups = two_connections(a, b)

        def measure() -> float:
            took_s = move(a, b, ups, size)
            assert took_s >= bound_s(2 * size, connections=2)
            return took_s

        most_of(measure, lambda took_s: took_s < 1.2 * bound_s(2 * size))


def test_one_of_two_connections_has_all_of_the_rate_while_the_other_says_nothing() -> None:
    size = 2_000_000
    with pair(settings=FOLLOWS) as (a, b), given(a, RATE):
        ups = two_connections(a, b)
        most_of(lambda: move(a, b, ups[:1], size), lambda took_s: took_s < 1.2 * bound_s(size))


def test_a_rate_is_changed_and_taken_away_while_messages_flow() -> None:
    size = 3_000_000
    with connected(settings=FOLLOWS) as (a, b, up, _):
        with given(a, RATE // 10):
            post, send = b.post("a", bytearray(size)), a.send(up, bytes(size))
            began_s = time.monotonic()
            time.sleep(0.3)
            assert a.found_outcome(send) is None
        slow_s = time.monotonic() - began_s
        with given(a, RATE):
            a.outcome(send)
        assert time.monotonic() - began_s >= bound_s(size) - slow_s
        assert len(b.outcome(post).payload) == size
        a.engine.set_rate(a.endpoint, None)
        most_of(lambda: move(a, b, [up], size), lambda took_s: took_s < 0.8 * bound_s(size))


def test_a_rate_that_is_not_given_again_is_forgotten() -> None:
    size, rate = 2_000_000, 400_000
    with connected(settings=FOLLOWS) as (a, b, up, _):
        a.engine.set_rate(a.endpoint, rate)
        given_s = time.monotonic()
        post, send = b.post("a", bytearray(size)), a.send(up, bytes(size))
        a.outcome(send)
        took_s = time.monotonic() - given_s
        assert RATE_VALID_S <= took_s < bound_s(size, rate=rate)  # 44 s, if it were not forgotten
        assert len(b.outcome(post).payload) == size


def test_without_a_rate_and_under_other_controls_nothing_holds_messages_back() -> None:
    size = 3_000_000
    for congestion in ("auto", "cubic"):
        with connected(settings=EngineSettings(congestion=congestion)) as (a, b, up, _):
            if congestion == "cubic":
                a.engine.set_rate(a.endpoint, 1000)
            most_of(lambda a=a, b=b, up=up: move(a, b, [up], size), lambda took_s: took_s < 0.8 * bound_s(size))


def test_a_rate_that_cannot_be_is_refused_at_the_call() -> None:
    with connected(settings=FOLLOWS) as (a, _b, _up, _):
        for wrong in (0, -1):
            with pytest.raises(MisuseError, match="above 0"):
                a.engine.set_rate(a.endpoint, wrong)
        a.engine.set_rate(a.endpoint + 999, RATE)
    with pair(settings=FOLLOWS, bulk=True) as (a, _), pytest.raises(MisuseError, match="bulk"):
        a.engine.set_rate(a.endpoint, RATE)


@over(("aioquic", "aioquic"))  # the native engine has all of them
def test_a_congestion_control_that_an_engine_lacks_is_named_with_those_that_it_has() -> None:
    with pytest.raises(ConfigurationError, match=r"bbr.*aioquic engine has auto, cubic, reno"):
        create_engine("aioquic", EngineSettings(congestion="bbr"), lambda events: None)
