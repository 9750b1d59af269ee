"""Each exception of `transport.engine.aioquic.exceptions`, on two connections of aioquic's back to back in memory.

These fail when aioquic's private parts change. Time is virtual: a datagram takes `LATENCY_S`, a step goes to the next
timer.
"""

from __future__ import annotations

import ast
import ssl
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeGuard

import pytest
from aioquic.quic.configuration import QuicConfiguration
from aioquic.quic.connection import QuicConnection
from aioquic.quic.events import ConnectionTerminated, HandshakeCompleted, QuicEvent, StreamDataReceived
from cryptography import x509
from cryptography.hazmat.primitives.serialization import load_pem_private_key

from transport.engine.aioquic import exceptions
from transport.engine.aioquic.exceptions import CONTROLLERS, OpenedConnection
from transport.identity import ephemeral_identity

FOLDER = Path(exceptions.__file__).parent
LATENCY_S = 0.005
WINDOW, STREAM_WINDOW, STREAMS = 100_000, 20_000, 8
CLIENT, SERVER = ("192.0.2.1", 1), ("192.0.2.2", 2)
Drop = Callable[[bytes], bool]


def configuration(name: str, *, is_client: bool) -> QuicConfiguration:
    credentials = ephemeral_identity(name).credentials
    return QuicConfiguration(
        is_client=is_client,
        alpn_protocols=["test"],
        certificate=x509.load_pem_x509_certificate(credentials.certificate_chain_pem),
        private_key=load_pem_private_key(credentials.private_key_pem, password=None),
        congestion_control_algorithm=CONTROLLERS["cubic"],
        max_data=WINDOW,
        max_stream_data=STREAM_WINDOW,
        verify_mode=ssl.CERT_NONE,
    )


def opened() -> tuple[OpenedConnection, OpenedConnection]:
    """A client and a server for it."""
    client = OpenedConnection(streams_max=STREAMS, configuration=configuration("a", is_client=True))
    server = OpenedConnection(
        streams_max=STREAMS,
        configuration=configuration("b", is_client=False),
        original_destination_connection_id=client.original_destination_connection_id,
    )
    return client, server


class Pair:
    """A client `a` and a server `b`."""

    def __init__(self) -> None:
        self.now = 100.0
        self.a, self.b = opened()
        self.client_address: tuple[str, int] = CLIENT
        self.heard = {"a": 0, "b": 0}
        self.events: dict[str, list[QuicEvent]] = {"a": [], "b": []}
        self.a.connect(SERVER, self.now)
        self.settle()

    def settle(self, *, seconds: float = 1.0, drop: Drop = lambda data: False) -> None:
        """Exchange datagrams for a while of virtual time."""
        end = self.now + seconds
        while self.now < end:
            self.step(drop)

    def step(self, drop: Drop = lambda data: False) -> None:
        for quic in (self.a, self.b):
            timer = quic.get_timer()
            if timer is not None and timer <= self.now:
                quic.handle_timer(self.now)
        flying = [(self.b, "b", data, self.client_address) for data in self._out(self.a)]
        flying += [(self.a, "a", data, SERVER) for data in self._out(self.b)]
        self.now += LATENCY_S
        for quic, name, data, address in flying:
            if not drop(data):
                self.heard[name] += quic.hear(data, address, now=self.now)
                while (event := quic.next_event()) is not None:
                    self.events[name].append(event)

    def _out(self, quic: QuicConnection) -> list[bytes]:
        if quic.get_peer_address() is None:
            return []
        return [data for data, _ in quic.datagrams_to_send(self.now)]

    def send(self, size: int, *, end: bool = False) -> int:
        """Open a stream from `a`."""
        stream_id = self.a.get_next_available_stream_id(is_unidirectional=True)
        self.a.send_stream_data(stream_id, bytes(size), end_stream=end)
        return stream_id


@pytest.fixture
def pair() -> Pair:
    return Pair()


def common_name(certificate: x509.Certificate) -> Any:
    return certificate.subject.get_attributes_for_oid(x509.NameOID.COMMON_NAME)[0].value


# 1. Certificates


def test_each_side_has_the_others_certificate_when_the_handshake_is_complete(pair: Pair) -> None:
    for quic, name, peer in ((pair.a, "a", "b"), (pair.b, "b", "a")):
        assert any(isinstance(event, HandshakeCompleted) for event in pair.events[name])
        assert [common_name(certificate) for certificate in quic.peer_chain] == [peer]


# 2. Credit for the peer


def test_of_streams_the_peer_may_open_so_many_of_one_kind_and_none_of_the_other(pair: Pair) -> None:
    assert pair.a._remote_max_streams_uni == STREAMS
    assert pair.a._remote_max_streams_bidi == 0


def test_no_limit_moves_but_by_a_grant(pair: Pair) -> None:
    first = pair.send(2 * STREAM_WINDOW)
    pair.settle()
    assert (pair.a.sent_of(first), pair.a.stream_limit_of(first)) == (STREAM_WINDOW, STREAM_WINDOW)
    pair.b.grant_stream(first, STREAM_WINDOW + 500)
    pair.settle()
    assert pair.a.sent_of(first) == STREAM_WINDOW + 500
    for _ in range(STREAMS - 1):
        pair.send(STREAM_WINDOW)
    pair.settle()
    assert (pair.a.data_credit, pair.b.received_bytes, pair.b.data_limit) == (0, WINDOW, WINDOW)
    pair.b.grant_data(WINDOW + 1000)
    pair.settle()
    assert pair.b.received_bytes == WINDOW + 1000
    assert (pair.a.data_credit, pair.b.data_limit) == (0, WINDOW + 1000)


def test_a_grant_that_is_lost_is_given_again(pair: Pair) -> None:
    first = pair.send(2 * STREAM_WINDOW)
    pair.settle()
    pair.b.grant_stream(first, 2 * STREAM_WINDOW)
    pair.b.grant_data(2 * WINDOW)
    pair.settle(seconds=0.05, drop=lambda data: True)
    pair.settle(seconds=5)
    assert pair.a.sent_of(first) == 2 * STREAM_WINDOW
    assert pair.a.data_credit == 2 * WINDOW - 2 * STREAM_WINDOW


def test_streams_that_end_let_the_peer_open_others_unless_they_are_held(pair: Pair) -> None:
    pair.b.streams_held = STREAMS
    for _ in range(STREAMS):
        assert pair.a.may_open_stream
        pair.send(10, end=True)
    pair.settle()
    assert not pair.a.may_open_stream
    pair.b.streams_held -= 1
    pair.settle()
    pair.a.send_ping(1)
    pair.settle()
    assert pair.a.may_open_stream
    pair.send(10)
    assert not pair.a.may_open_stream


def test_what_has_come_is_counted_with_its_gaps_and_pieces(pair: Pair) -> None:
    first = pair.send(10)
    pair.settle()
    lost = iter([True])
    pair.a.send_stream_data(first, bytes(3000))
    pair.step(drop=lambda data: len(data) > 1000 and next(lost, False))
    assert pair.b.highest_of([first]) == pair.b.received_bytes == 3010
    assert pair.b.pieces == 1
    assert pair.b.highest_of([first + 4]) == 0
    pair.settle()
    assert pair.b.pieces == 0
    received = [event.data for event in pair.events["b"] if isinstance(event, StreamDataReceived)]
    assert sum(map(len, received)) == 3010


# 3. What the peer grants, and what became of what was sent


def test_what_was_sent_and_what_was_acknowledged_is_known(pair: Pair) -> None:
    assert pair.a.first_stream_limit == STREAM_WINDOW
    assert pair.a.data_credit == WINDOW
    first = pair.send(3000, end=True)
    assert (pair.a.sent_of(first), pair.a.is_acked(first)) == (0, False)
    pair.step()
    assert (pair.a.sent_of(first), pair.a.is_acked(first)) == (3000, False)
    assert pair.a.data_credit == WINDOW - 3000
    while not pair.a.is_acked(first):
        pair.step()
    pair.settle()
    assert pair.a.is_acked(first)  # also when aioquic has forgotten it
    unfinished = pair.send(3000)
    pair.settle()
    assert (pair.a.sent_of(unfinished), pair.a.is_acked(unfinished)) == (3000, False)
    pair.a.reset_stream(unfinished, 7)
    pair.settle()
    assert pair.a.is_acked(unfinished)


# 4. The state of the connection


def test_an_end_is_known_at_once_with_its_reason(pair: Pair) -> None:
    assert pair.a.confirmed
    assert pair.b.confirmed
    assert pair.a.close_event is None
    pair.a.close(error_code=7, reason_phrase="enough")
    assert isinstance(pair.a.close_event, ConnectionTerminated)
    pair.step()
    assert pair.b.close_event is not None
    assert (pair.b.close_event.error_code, pair.b.close_event.reason_phrase) == (7, "enough")
    assert pair.b.close_event.frame_type is None  # of the application


def test_a_client_whose_handshake_is_complete_is_not_confirmed_before_the_server_says_so() -> None:
    a, b = opened()
    a.connect(SERVER, 1.0)
    for data, _ in a.datagrams_to_send(1.0):
        b.hear(data, CLIENT, now=1.0)
    for data, _ in b.datagrams_to_send(1.0):
        a.hear(data, SERVER, now=1.0)
    assert a.peer_chain
    assert not a.confirmed


# 5. Life


def test_only_what_the_peer_has_sealed_is_heard(pair: Pair) -> None:
    pair.a.send_ping(1)
    ((good, _),) = pair.a.datagrams_to_send(pair.now)
    deadline = pair.b.get_timer()
    spoiled = bytearray(good)
    spoiled[-1] ^= 1
    for bad in (b"", b"\x40", bytes(spoiled), good[:20], bytes([0xC0, *good[1:]])):
        assert not pair.b.hear(bad, CLIENT, now=pair.now)
    assert pair.b.get_timer() == deadline
    assert pair.b.hear(good, CLIENT, now=pair.now)
    assert not pair.b.hear(good, CLIENT, now=pair.now)  # a copy
    pair.b.close()
    pair.settle()
    assert not pair.b.hear(good, CLIENT, now=pair.now)


# 6. The path


def test_the_path_is_measured_and_forgotten_where_it_is_another(pair: Pair) -> None:
    assert pair.b.proved_address == CLIENT
    assert not pair.b.path_is_new()
    first = pair.send(15_000)
    pair.settle()
    smoothed_s, latest_s = pair.a.rtt_s
    assert latest_s == pytest.approx(2 * LATENCY_S, rel=0.5)
    assert smoothed_s == pytest.approx(2 * LATENCY_S, rel=0.5)
    before = pair.a.controller
    assert before.delivered_bytes >= 15_000
    assert before.rtt_s_min == pytest.approx(2 * LATENCY_S)
    initial = type(before)(max_datagram_size=QuicConfiguration().max_datagram_size).congestion_window
    assert before.congestion_window > initial
    pair.client_address = ("192.0.2.3", 3)
    pair.a.change_connection_id()
    pair.a.restart_path()
    after = pair.a.controller
    assert after.congestion_window == initial
    assert (after.delivered_bytes, after.bytes_in_flight) == (before.delivered_bytes, before.bytes_in_flight)
    assert pair.a.rtt_s == (0.0, 0.0)
    pair.settle()
    assert pair.a.rtt_s[1] == pytest.approx(2 * LATENCY_S, rel=0.5)  # a probe has measured it
    assert pair.b.proved_address == pair.client_address
    assert pair.b.path_is_new()
    assert not pair.b.path_is_new()
    assert pair.a.sent_of(first) == 15_000


def test_losses_are_counted(pair: Pair) -> None:
    pair.send(15_000)
    lost = iter([True])
    pair.step(drop=lambda data: len(data) > 1000 and next(lost, False))
    pair.settle()
    assert pair.a.controller.lost_packets == 1


# And nowhere else


def private(tree: ast.AST, *, of_self: bool) -> set[str]:
    """Private attributes that a file names, of `self` or of anything else."""
    found = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Attribute) and node.attr.startswith("_") and not node.attr.startswith("__"):
            named = node.value.id if isinstance(node.value, ast.Name) else ""
            if (named == "self") == of_self:
                found.add(node.attr)
    return found


def is_assigned(node: ast.AST) -> TypeGuard[ast.Attribute]:
    return isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Store)


def test_no_other_file_names_a_private_part_of_aioquic() -> None:
    for path in FOLDER.glob("*.py"):
        if path.name != "exceptions.py":
            found = private(ast.parse(path.read_text()), of_self=False)
            assert found <= {"_abandon_in_child"}, f"{path.name}: {found}"
    tree = ast.parse((FOLDER / "session.py").read_text())
    own = private(tree, of_self=True) | {node.attr for node in ast.walk(tree) if is_assigned(node)}
    assert not own & (vars(opened()[0]) | vars(QuicConnection)).keys()
