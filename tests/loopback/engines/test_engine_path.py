"""What an engine knows of its path beside delay and loss: how large packets may be, and which came marked."""

from __future__ import annotations

import random
import socket
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from engine_relay import Relay, narrow, straight
from engine_support import ConnectionUp, Node, connected, engines, over, pair, pytest_generate_tests, relayed
from patience import most_of, wait_until

from transport.engine.base import ConnectionStatistics, EngineSettings, SendDone

__all__ = ["engines", "pytest_generate_tests"]

NATIVE, PURE = ("native", "native"), ("aioquic", "aioquic")
ECT_0, CE = 2, 3  # RFC 3168
SOL_UDP, UDP_SEGMENT, UDP_GRO = 17, 103, 104  # linux/udp.h
MTU_LEAST, MTU_FULL = 1200, EngineSettings().datagram_bytes
MTU_GROWN = MTU_FULL - 16  # and more: native's packets have no rest behind their whole cipher blocks


class MarkingRelay(Relay):
    """Carries the two ECN bits of each datagram along, as routers do, and sets "congestion experienced" if told to."""

    def __init__(self, server: tuple[str, int]) -> None:
        self.congested = False
        self.seen: set[int] = set()
        super().__init__(server, straight)

    def _take(self, sock: socket.socket) -> tuple[bytes, tuple[str, int]]:
        sock.setsockopt(socket.IPPROTO_IP, socket.IP_RECVTOS, 1)
        data, extra, _, sender = sock.recvmsg(65536, 64)
        ecn = extra[0][2][0] & 3 if extra else 0
        self.seen.add(ecn)
        for out in (self._front, self._back):
            out.setsockopt(socket.IPPROTO_IP, socket.IP_TOS, CE if ecn == ECT_0 and self.congested else ecn)
        return data, sender


class PieceRelay(Relay):
    """Takes datagrams as the kernel joins them, and has it cut them again on the far side: UDP's GRO and GSO."""

    def __init__(self, server: tuple[str, int]) -> None:
        self.pieces = self.datagrams = 0
        self._size = 0
        super().__init__(server, straight)

    def _take(self, sock: socket.socket) -> tuple[bytes, tuple[str, int]]:
        sock.setsockopt(SOL_UDP, UDP_GRO, 1)
        data, extra, _, sender = sock.recvmsg(65536, 64)
        self._size = int.from_bytes(extra[0][2][:2], sys.byteorder) if extra else len(data)
        if sock is self._front:
            self.pieces, self.datagrams = self.pieces + 1, self.datagrams - (-len(data) // self._size)
        for out in (self._front, self._back):
            out.setsockopt(SOL_UDP, UDP_SEGMENT, self._size)
        return data, sender


@over(NATIVE)
def test_many_packets_go_in_one_call_and_come_in_one() -> None:
    """Of an ordinary transfer, with a path behind it that joins and cuts as a network card does."""
    with pair() as (a, b):
        relay = PieceRelay(b.address)
        try:
            a.dial(b, through=relay)
            b.take(ConnectionUp)
            up = a.take(ConnectionUp).connection

            def packets_a_call() -> float:
                relay.pieces = relay.datagrams = 0
                move(a, b, up, 4_000_000)
                return relay.datagrams / relay.pieces

            most_of(packets_a_call, lambda found: found >= 3)
        finally:
            relay.close()


@contextmanager
def marked() -> Iterator[tuple[Node, Node, int, MarkingRelay]]:
    with pair() as (a, b):
        relay = MarkingRelay(b.address)
        try:
            a.dial(b, through=relay)
            b.take(ConnectionUp)
            yield a, b, a.take(ConnectionUp).connection, relay
        finally:
            relay.close()


def now(node: Node, connection: int) -> ConnectionStatistics:
    wait_until(lambda: connection in node.engine.statistics())  # they are up to 100 ms old
    return node.engine.statistics()[connection]


def move(a: Node, b: Node, up: int, count: int = 1_000_000) -> None:
    payload = random.Random(count).randbytes(count)
    post = b.post("a", None)
    send = a.send(up, payload)
    assert b.outcome(post).payload == payload
    assert isinstance(a.outcome(send), SendDone)


@over(NATIVE, ("native", "aioquic"))
def test_packets_grow_to_what_the_path_takes() -> None:
    with relayed(straight) as (a, b, up, _, _relay):
        move(a, b, up)
        wait_until(lambda: MTU_GROWN < now(a, up).path_mtu_bytes <= MTU_FULL)


@over(NATIVE, PURE)
def test_packets_stay_within_a_path_that_swallows_longer_ones() -> None:
    with relayed(narrow) as (a, b, up, _, _relay):
        move(a, b, up)
        assert MTU_LEAST <= now(a, up).path_mtu_bytes <= 1300


@over(NATIVE)
def test_a_path_that_becomes_narrower_without_a_word_is_noticed() -> None:
    with relayed(straight) as (a, b, up, _, relay):
        move(a, b, up)
        wait_until(lambda: MTU_GROWN < now(a, up).path_mtu_bytes <= MTU_FULL)
        relay.fate = narrow
        move(a, b, up)
        wait_until(lambda: now(a, up).path_mtu_bytes <= 1300)
        move(a, b, up, 2_000_000)


@over(NATIVE)
def test_marks_of_congestion_make_the_sender_slower() -> None:
    with marked() as (a, b, up, relay):
        move(a, b, up, 4_000_000)
        assert ECT_0 in relay.seen, "it does not say that it understands marks"
        before = now(a, up).congestion_window_bytes
        relay.congested = True
        while now(a, up).congestion_window_bytes >= before / 2:
            move(a, b, up)  # every packet is marked: in the end the window is as small as it gets


@over(PURE)
def test_an_engine_without_marks_asks_for_none() -> None:
    with marked() as (a, b, up, relay):
        move(a, b, up)
        assert relay.seen == {0}


@over(NATIVE)
def test_sockets_get_the_room_that_a_burst_needs() -> None:
    """100 ms of a fast link are megabytes; the kernel gives what it allows, and counts twice of that."""
    allowed = int(Path("/proc/sys/net/core/rmem_max").read_text())
    with connected() as (a, b, _, _):
        for node in (a, b):
            assert node.sock.getsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF) >= 2 * min(allowed, 8 * 2**20)
