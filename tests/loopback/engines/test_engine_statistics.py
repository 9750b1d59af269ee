"""What each figure of a connection says while a path is idle, full, slow or silent, with both engines."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager

from engine_relay import Relay, silent, straight
from engine_support import ConnectionUp, Node, connected, engines, pair, pytest_generate_tests, relayed
from patience import wait_until

from transport.engine.base import ConnectionStatistics, EngineSettings, SendDone

__all__ = ["engines", "pytest_generate_tests"]

PATIENT = EngineSettings(dead_after_s=60.0)
SIZE = 20_000_000
HANDSHAKE_BYTES_MAX = 20_000
"""Whether packets from before a connection was up count, too, is not said."""


class Slow(Relay):
    """Takes so long for each datagram, one after the other."""

    def __init__(self, server: tuple[str, int], datagram_s: float) -> None:
        self._datagram_s = datagram_s
        super().__init__(server, straight)

    def _forward(self, data: bytes, sender: tuple[str, int], *, from_client: bool) -> None:
        time.sleep(self._datagram_s)
        super()._forward(data, sender, from_client=from_client)


@contextmanager
def slowed(datagram_s: float) -> Iterator[tuple[Node, Node, int]]:
    with pair(settings=PATIENT) as (a, b):
        relay = Slow(b.address, datagram_s)
        try:
            a.dial(b, through=relay)
            yield a, b, a.take(ConnectionUp).connection
        finally:
            relay.close()


def now(node: Node, connection: int) -> ConnectionStatistics:
    wait_until(lambda: connection in node.engine.statistics())  # they are up to 100 ms old
    return node.engine.statistics()[connection]


def begin_to_move(a: Node, b: Node, up: int, size: int, *, tag: int = 0) -> int:
    b.post("a", bytearray(size), tag=tag)
    return a.send(up, bytes(size), tag=tag)


def test_a_silent_path_delivers_nothing_more() -> None:
    with relayed(straight, settings=PATIENT) as (a, b, up, _, relay):
        send = begin_to_move(a, b, up, SIZE)
        wait_until(lambda: now(a, up).delivered_bytes > 1_000_000)
        relay.fate = silent
        looks = [now(a, up)]

        def stuck() -> bool:
            looks.append(now(a, up))
            return looks[-1].delivered_bytes == looks[-2].delivered_bytes and looks[-1].delivery_rate_bits_per_s == 0

        wait_until(stuck, pause_s=0.4)  # a few of their intervals later
        assert looks[-1].delivered_bytes < SIZE
        relay.fate = straight
        assert isinstance(a.outcome(send), SendDone)
        wait_until(lambda: now(a, up).delivered_bytes >= SIZE, what=lambda: now(a, up))


def test_an_idle_sender_is_application_limited_and_one_with_a_full_window_is_not() -> None:
    with slowed(0.001) as (a, b, up):
        wait_until(lambda: now(a, up).application_limited)
        send = begin_to_move(a, b, up, SIZE)
        full = wait_until(lambda: limited_by_its_window(now(a, up)), what=lambda: now(a, up))
        assert full.delivery_rate_bits_per_s <= 8 * 1452 / 0.001
        a.engine.cancel(send)
        wait_until(lambda: now(a, up).application_limited)


def limited_by_its_window(found: ConnectionStatistics) -> ConnectionStatistics | None:
    return found if not found.application_limited and found.delivery_rate_bits_per_s > 0 else None


def test_the_shortest_round_trip_is_no_shorter_than_the_path() -> None:
    datagram_s = 0.05
    with slowed(datagram_s) as (a, b, up):
        for tag in range(3):
            assert isinstance(a.outcome(begin_to_move(a, b, up, 100, tag=tag)), SendDone)
        found = now(a, up)
        assert found.rtt_s_min >= 2 * datagram_s
        assert found.rtt_latest_s >= found.rtt_s_min
        assert found.rtt_s >= 2 * datagram_s


def test_both_ends_count_alike_what_went_between_them() -> None:
    with connected() as (a, b, up_a, up_b):
        assert isinstance(a.outcome(begin_to_move(a, b, up_a, 3_000_000)), SendDone)

        def at_rest() -> bool:
            sent, received = now(a, up_a).sent_bytes, now(b, up_b).received_bytes
            return received >= 3_000_000 and abs(sent - received) < HANDSHAKE_BYTES_MAX

        wait_until(at_rest, what=lambda: (now(a, up_a), now(b, up_b)))
        there, here = now(a, up_a), now(b, up_b)
        assert min(there.sent_bytes, here.received_bytes) >= 3_000_000
        assert there.delivered_bytes <= there.sent_bytes
        assert (there.peer, here.peer) == ("b", "a")
        assert (there.remote, here.remote) == (b.address, a.address)
