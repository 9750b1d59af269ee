"""The address of one side changes: what it dialled moves along, what it accepted ends, and nobody is led astray."""

from __future__ import annotations

import os
import random
import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager

import pytest
from engine_relay import Relay, straight
from engine_support import (
    ConnectionDown,
    ConnectionUp,
    Node,
    bound_socket,
    connected,
    engines,
    over,
    pair,
    pytest_generate_tests,
    relayed,
)
from patience import wait_until

from hive_qos.errors import ConnectionLostError
from transport.engine.base import ConnectionStatistics, EngineSettings, OperationFailed, Received, SendDone

__all__ = ["engines", "pytest_generate_tests"]

ELSEWHERE, THIEF = "127.0.0.2", "127.0.0.3"
WINDOW_FIRST_MAX = 20_000
"""A connection begins with ten packets or so (RFC 9002 7.2); after a few megabytes it has many more."""

SHORT_OF_ROOM = EngineSettings(unexpected_bytes_max=2**20)
PATIENT = EngineSettings(dead_after_s=60.0)


def rebind(node: Node, host: str = ELSEWHERE) -> None:
    node.sock = bound_socket(host)
    node.address = node.sock.getsockname()[:2]
    node.engine.rebind(node.endpoint, node.sock)


def now(node: Node, connection: int) -> ConnectionStatistics:
    wait_until(lambda: connection in node.engine.statistics())  # they are up to 100 ms old
    return node.engine.statistics()[connection]


def test_what_the_moving_side_dialled_goes_on_from_the_new_address_in_the_middle_of_messages() -> None:
    rng = random.Random(1)
    there, back = rng.randbytes(20_000_000), rng.randbytes(20_000_000)
    with connected(settings=SHORT_OF_ROOM) as (a, b, up_a, up_b):
        sends = [(a, a.send(up_a, there)), (b, b.send(up_b, back))]
        for node, up in ((a, up_a), (b, up_b)):
            wait_until(lambda node=node, up=up: now(node, up).received_bytes > 10_000)
        rebind(a)  # both have begun, and cannot end before somebody takes them
        posts = [(b, b.post("a", bytearray(len(there))), there), (a, a.post("b", bytearray(len(back))), back)]
        for node, post, payload in posts:
            outcome = node.outcome(post)
            assert isinstance(outcome, Received)
            assert outcome.payload == payload
        for node, send in sends:
            assert isinstance(node.outcome(send), SendDone)
        wait_until(lambda: now(b, up_b).remote == a.address)
        assert not [event for node in (a, b) for event in node.events if isinstance(event, ConnectionDown)]


def test_an_endpoint_moves_as_often_as_its_host_and_keeps_few_sockets_of_before() -> None:
    rng = random.Random(3)
    with connected() as (a, b, up_a, _):
        opened: list[int] = []
        for number in range(40):
            rebind(a, ELSEWHERE if number % 2 else "127.0.0.1")
            wait_until(lambda: [one for one in b.engine.statistics().values() if one.remote == a.address])
            opened.append(len(os.listdir("/proc/self/fd")))
        assert opened[-1] <= opened[20] + 2
        post, payload = b.post("a", None), rng.randbytes(1_000_000)
        assert isinstance(a.outcome(a.send(up_a, payload)), SendDone)
        assert b.outcome(post).payload == payload


def test_an_endpoint_that_nobody_is_connected_to_is_reached_at_its_new_address() -> None:
    with pair() as (a, b):
        rebind(b)
        a.dial(b)
        assert a.take(ConnectionUp).remote == b.address


def test_both_sides_measure_the_new_path_afresh() -> None:
    payload = random.Random(2).randbytes(8_000_000)
    with connected() as (a, b, up_a, up_b):
        for node, other, up in ((a, b, up_a), (b, a, up_b)):
            while now(node, up).congestion_window_bytes <= WINDOW_FIRST_MAX:
                post = other.post(node.name, bytearray(len(payload)))
                assert isinstance(node.outcome(node.send(up, payload)), SendDone)
                other.outcome(post)
        rebind(a)
        wait_until(lambda: now(b, up_b).remote == a.address)
        for node, up in ((a, up_a), (b, up_b)):
            wait_until(lambda node=node, up=up: now(node, up).congestion_window_bytes <= WINDOW_FIRST_MAX)


def test_what_the_moving_side_accepted_ends_there_and_is_dialled_again() -> None:
    with connected() as (a, b, _, up_b):
        send = b.send(up_b, bytes(50_000_000))
        rebind(b)
        assert b.take(ConnectionDown).connection == up_b
        outcome = b.outcome(send)
        assert isinstance(outcome, OperationFailed)
        assert isinstance(outcome.error, ConnectionLostError)
        b.dial(a)  # who has moved knows where the other is
        up = a.take(ConnectionUp)
        assert up.remote == b.address
        post = b.post("a", None)
        a.send(up.connection, b"found again")
        assert b.outcome(post).payload == b"found again"


@over(("aioquic", "aioquic"))
@pytest.mark.parametrize(("host", "other"), [("::1", "127.0.0.1"), ("127.0.0.1", "::1")])
def test_what_a_socket_of_the_other_family_cannot_reach_ends_and_the_endpoint_goes_on(host: str, other: str) -> None:
    with connected(host=host) as (a, b, up_a, _):
        send = a.send(up_a, bytes(50_000_000))
        rebind(a, other)
        assert a.take(ConnectionDown).connection == up_a
        assert isinstance(a.outcome(send), OperationFailed)
        rebind(b, other)
        a.dial(b)
        assert a.take(ConnectionUp).remote == b.address


def test_an_attempt_that_is_not_up_ends_at_once() -> None:
    with pair() as (a, b), bound_socket("127.0.0.1") as nobody:
        attempt = a.engine.connect(a.endpoint, nobody.getsockname(), expected_peer="b")
        rebind(a)
        assert a.take(ConnectionDown).attempt == attempt
        a.dial(b)
        assert b.take(ConnectionUp).remote == a.address


def test_a_host_can_move_again_and_again_and_back() -> None:
    with connected() as (a, b, up_a, up_b):
        for number, host in enumerate([ELSEWHERE, THIEF, "127.0.0.1"]):
            rebind(a, host)
            wait_until(lambda: now(b, up_b).remote == a.address)
            post = b.post("a", None, tag=number)
            a.send(up_a, host.encode() * 1000, tag=number)
            assert b.outcome(post).payload == host.encode() * 1000


class Thief(Relay):
    """Takes the client's packets for a while and sends them on from another address, as if the client had moved.

    `packets_max`: the rest of what it takes goes nowhere.
    """

    def __init__(self, server: tuple[str, int], packets_max: int) -> None:
        self.stealing = threading.Event()
        self._packets_max = packets_max
        self.stolen_packets = self.stolen_bytes = self.answered_bytes = 0
        self._hideout = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
        self._hideout.bind((THIEF, 0))
        self._hideout.setblocking(False)
        super().__init__(server, straight)

    def _forward(self, data: bytes, sender: tuple[str, int], *, from_client: bool) -> None:
        if from_client and self.stealing.is_set():
            if self.stolen_packets == self._packets_max:
                return
            self.stolen_packets += 1
            self.stolen_bytes += len(data)
            self._hideout.sendto(data, self._server)
        else:
            super()._forward(data, sender, from_client=from_client)

    def is_answered(self) -> bool:
        """Whether anything has come back, all of which is counted."""
        while True:
            try:
                self.answered_bytes += len(self._hideout.recv(65536))
            except BlockingIOError:
                return self.answered_bytes > 0

    def close(self) -> None:
        super().close()
        self._hideout.close()


@contextmanager
def robbed(packets_max: int) -> Iterator[tuple[Node, Node, int, int, Thief]]:
    with pair(settings=PATIENT) as (a, b):
        thief = Thief(b.address, packets_max)
        try:
            a.dial(b, through=thief)
            yield a, b, a.take(ConnectionUp).connection, b.take(ConnectionUp).connection, thief
        finally:
            thief.close()


@pytest.mark.parametrize("packets_max", [1, 1000])
def test_an_address_that_does_not_answer_the_challenge_gets_no_more_than_it_sent_three_times(packets_max: int) -> None:
    """Of one packet little may come back, and nothing beside it: no probe of the path's MTU."""
    payload = random.Random(3).randbytes(30_000_000)
    with robbed(packets_max) as (a, b, _, up_b, thief):
        home = now(b, up_b).remote
        post = a.post("b", bytearray(len(payload)))
        send = b.send(up_b, payload)
        wait_until(lambda: now(b, up_b).sent_bytes > 1_000_000)
        thief.stealing.set()
        wait_until(thief.is_answered)  # b has moved; where nothing more is stolen, it goes back after 3 s
        thief.stealing.clear()
        assert isinstance(b.outcome(send), SendDone)
        assert a.outcome(post).payload == payload
        assert thief.is_answered()
        # RFC 9000 8.1; quinn sends while a byte is left, so its last packet may go beyond.
        assert thief.answered_bytes <= 3 * thief.stolen_bytes + EngineSettings().datagram_bytes
        wait_until(lambda: now(b, up_b).remote == home)


def test_a_copy_that_comes_late_moves_nothing() -> None:
    with relayed(straight) as (a, b, up_a, up_b, relay), bound_socket(THIEF) as thief:
        post = b.post("a", None)
        a.send(up_a, bytes(3_000_000))
        b.outcome(post)
        home = now(b, up_b).remote
        old = relay.to_server
        post = b.post("a", None, tag=1)
        a.send(up_a, b"newer", tag=1)
        b.outcome(post)
        for _ in range(10):
            thief.sendto(old, b.address)
        post = b.post("a", None, tag=2)
        a.send(up_a, bytes(1_000_000), tag=2)
        b.outcome(post)
        assert now(b, up_b).remote == home
