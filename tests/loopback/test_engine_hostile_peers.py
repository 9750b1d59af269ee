"""Peers that break the protocol, built on bare aioquic: each is refused with its code, and the engine goes on."""

from __future__ import annotations

import contextlib
import datetime
import socket
import ssl
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, TypeVar

import pytest
from aioquic.quic.configuration import QuicConfiguration
from aioquic.quic.connection import QuicConnection
from aioquic.quic.events import ConnectionTerminated, HandshakeCompleted, StopSendingReceived, StreamDataReceived
from cryptography import x509
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import Encoding, load_pem_private_key
from cryptography.x509.oid import NameOID
from engine_support import (
    EACH,
    ConnectionDown,
    ConnectionUp,
    Node,
    connected,
    engines,
    over,
    pytest_generate_tests,
)
from patience import wait_until

from hive_qos.errors import CancelledError, ConnectionLostError, PeerError
from transport.engine.base import Credentials, EngineSettings, Received, Trust
from transport.identity import ca_init, ca_issue, ephemeral_identity, load_identity
from transport.identity.authority import certificate_builder, private_pem, subject_names
from transport.wire.cbor import encode_map
from transport.wire.errors import WireCode
from transport.wire.header import Header, Kind, encode_header
from transport.wire.hello import FrameType, encode_frame
from transport.wire.varint import encode_varint

T = TypeVar("T")
HELLO = encode_frame(FrameType.HELLO, {0: 1, 2: "mallory", 5: "job", 6: b"run"})


class RawPeer:
    """A client of bare aioquic that sends what it likes. Streams: 2 is its control stream, 6 and on are messages."""

    def __init__(
        self, address: tuple[str, int], credentials: Credentials | None, *, alpn: str = "hive-tensor/1"
    ) -> None:
        configuration = QuicConfiguration(alpn_protocols=[alpn], verify_mode=ssl.CERT_NONE, max_datagram_size=1400)
        if credentials is not None:
            chain = x509.load_pem_x509_certificates(credentials.certificate_chain_pem)
            configuration.certificate, configuration.certificate_chain = chain[0], chain[1:]
            configuration.private_key = load_pem_private_key(credentials.private_key_pem, password=None)
        self.credentials = credentials
        self.quic = QuicConnection(configuration=configuration)
        self.sock = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
        self.sock.bind(("127.0.0.1", 0))
        self.sock.settimeout(0.02)
        self.address = address
        self.quic.connect(address, now=time.monotonic())
        self.events: list[Any] = []

    def run(self, kind: type[Any]) -> Any:
        """Exchange packets until an event of a kind comes."""
        return self.until(lambda: self._taken(kind), what=lambda: f"no {kind.__name__} but {self.events}")

    def until(self, found: Callable[[], T | None], *, what: Callable[[], object] = lambda: "it never came") -> T:
        """Exchange packets until there is something."""

        def look() -> T | None:
            self._exchange()
            return found()

        return wait_until(look, what=what, pause_s=0.0)

    def for_a_while(self, seconds: float) -> None:
        """Exchange packets for so long, to see that nothing comes of it."""
        end = time.monotonic() + seconds
        while time.monotonic() < end:
            self._exchange()

    def delivered(self, stream: int) -> bool:
        """Whether all that was said on a stream so far has been acknowledged."""
        sender = self.quic._streams[stream].sender
        return sender._buffer_stop > 0 and sender._buffer_start == sender._buffer_stop

    def _exchange(self) -> None:
        now = time.monotonic()
        timer = self.quic.get_timer()
        if timer is not None and timer <= now:
            self.quic.handle_timer(now)
        for data, address in self.quic.datagrams_to_send(now):
            self.sock.sendto(data, address)
        with contextlib.suppress(TimeoutError):
            data, address = self.sock.recvfrom(65536)
            self.quic.receive_datagram(data, address, time.monotonic())
        while (event := self.quic.next_event()) is not None:
            self.events.append(event)

    def _taken(self, kind: type[Any]) -> Any:
        if self.quic._close_event is not None and kind is ConnectionTerminated:
            return self.quic._close_event
        for event in self.events:
            if isinstance(event, kind):
                self.events.remove(event)
                return event
        return None

    def greet(self) -> None:
        self.run(HandshakeCompleted)
        self.quic.send_stream_data(2, HELLO)

    def say(self, stream: int, data: bytes, *, end: bool = False) -> None:
        self.quic.send_stream_data(stream, data, end_stream=end)


def message(payload: bytes, **fields: Any) -> bytes:
    return encode_header(Header(kind=Kind.POINT_TO_POINT, length=len(payload), **fields)) + payload


def raw_header(fields: dict[int, object]) -> bytes:
    body = encode_map(fields)
    return encode_varint(len(body)) + body


__all__ = ["engines", "pytest_generate_tests"]


@pytest.fixture
def victim(engines: tuple[str, str]) -> Iterator[tuple[Node, RawPeer]]:
    mallory = ephemeral_identity("mallory")
    # Patient: a raw peer acknowledges nothing while its test does something else.
    settings = EngineSettings(
        handshake_timeout_s=60.0, dead_after_s=60.0, message_bytes_max=2**30, unexpected_bytes_max=2**22
    )
    node = Node("victim", settings=settings)
    node.serve(Trust(pins={mallory.pin: "mallory"}))
    peer = RawPeer(node.address, mallory.credentials)
    yield node, peer
    peer.sock.close()
    node.engine.close()


def closed_with(node: Node, peer: RawPeer) -> WireCode:
    """The code that the peer was told, which must be the one that the caller was told."""
    event = peer.run(ConnectionTerminated)
    down = node.take(ConnectionDown)
    assert isinstance(down.error, PeerError)
    assert down.error.wire_code == event.error_code
    assert down.error.peer in ("mallory", f"127.0.0.1:{peer.sock.getsockname()[1]}")
    assert event.frame_type is None
    return WireCode(event.error_code)


def test_the_raw_peer_is_heard_when_it_behaves(victim: tuple[Node, RawPeer]) -> None:
    node, peer = victim
    peer.greet()
    peer.say(6, message(b"hello", tag=1), end=True)
    post = node.post("mallory", None, tag=1)
    peer.run(StreamDataReceived)
    assert peer.until(lambda: node.find(ConnectionUp)).peer == "mallory"
    assert peer.until(lambda: node.found_outcome(post)).payload == b"hello"


HEADERS = {
    "nothing": (b"\x00", WireCode.HEADER_INVALID),
    "too long": (encode_varint(4097), WireCode.HEADER_TOO_LARGE),
    "much too long": (encode_varint(2**60), WireCode.HEADER_TOO_LARGE),
    "not CBOR": (b"\x03\xff\xff\xff", WireCode.HEADER_INVALID),
    "truncated CBOR": (b"\x02\xa2\x00", WireCode.HEADER_INVALID),
    "no length": (raw_header({0: 2}), WireCode.HEADER_INVALID),
    "unknown kind": (raw_header({0: 99, 11: 0}), WireCode.HEADER_INVALID),
    "unknown dtype": (raw_header({0: 2, 8: "float3", 9: [1], 11: 1}), WireCode.DTYPE_UNKNOWN),
    "unknown codec": (raw_header({0: 2, 10: 7, 11: 1}), WireCode.CODEC_UNKNOWN),
    "shape against length": (raw_header({0: 2, 8: "float32", 9: [3], 11: 13}), WireCode.LENGTH_MISMATCH),
    "shape that overflows": (raw_header({0: 2, 8: "int8", 9: [2**32, 2**32], 11: 0}), WireCode.LENGTH_MISMATCH),
    "another job than its hello's": (raw_header({0: 2, 1: "other", 11: 0}), WireCode.JOB_MISMATCH),
    "more than is accepted": (raw_header({0: 2, 11: 2**30 + 1}), WireCode.MESSAGE_TOO_LONG),
}


@pytest.mark.parametrize("name", HEADERS)
def test_a_malformed_header_closes_with_its_code(victim: tuple[Node, RawPeer], name: str) -> None:
    node, peer = victim
    data, code = HEADERS[name]
    peer.greet()
    peer.say(6, data)
    assert closed_with(node, peer) == code


def test_a_header_cut_off_by_the_end_of_the_stream_closes(victim: tuple[Node, RawPeer]) -> None:
    node, peer = victim
    peer.greet()
    peer.say(6, message(b"")[:-1], end=True)
    assert closed_with(node, peer) == WireCode.LENGTH_MISMATCH


@pytest.mark.parametrize("payload", [b"short", b"much too long"])
def test_a_message_of_another_length_than_it_says_closes(victim: tuple[Node, RawPeer], payload: bytes) -> None:
    node, peer = victim
    post = node.post("mallory", bytearray(100))
    peer.greet()
    peer.say(6, encode_header(Header(kind=Kind.POINT_TO_POINT, length=8)) + payload, end=True)
    assert closed_with(node, peer) == WireCode.LENGTH_MISMATCH
    assert isinstance(node.outcome(post).error, ConnectionLostError)


def test_a_stream_that_is_reset_in_the_middle_fails_its_post_only(victim: tuple[Node, RawPeer]) -> None:
    node, peer = victim
    post = node.post("mallory", bytearray(1000))
    peer.greet()
    peer.say(6, message(bytes(1000))[:500])
    peer.until(lambda: peer.delivered(6))
    # Acknowledged is not read: a reset that overtakes the header fails nothing, and the post waits on. What comes later
    # and is there shows that this was read as well.
    later = node.post("mallory", None, tag=1)
    peer.say(10, message(b"later", tag=1), end=True)
    assert peer.until(lambda: node.found_outcome(later)).payload == b"later"
    peer.for_a_while(0.1)
    peer.quic.reset_stream(6, WireCode.CANCELLED)
    assert isinstance(peer.until(lambda: node.found_outcome(post)).error, CancelledError)
    peer.say(14, message(b"next"), end=True)
    post = node.post("mallory", None)
    assert peer.until(lambda: node.found_outcome(post)).payload == b"next"


def test_messages_before_the_hello_wait_for_it(victim: tuple[Node, RawPeer]) -> None:
    node, peer = victim
    post = node.post("mallory", None)
    peer.run(HandshakeCompleted)
    peer.say(2, b"")  # opened, and silent
    peer.say(6, message(b"early"), end=True)
    peer.until(lambda: peer.delivered(6))
    peer.for_a_while(0.2)
    node.none((ConnectionUp, Received), within_s=0.05)  # type: ignore[arg-type]  # isinstance takes a tuple
    peer.say(2, HELLO)
    assert peer.until(lambda: node.found_outcome(post)).payload == b"early"


CONTROL = {
    "another version": (encode_frame(0, {0: 2}), WireCode.VERSION_UNSUPPORTED),
    "no version": (encode_frame(0, {2: "x"}), WireCode.HELLO_INVALID),
    "another job": (encode_frame(0, {0: 1, 5: "other"}), WireCode.JOB_MISMATCH),
    "no job": (encode_frame(0, {0: 1}), WireCode.JOB_MISMATCH),
    "another run": (encode_frame(0, {0: 1, 5: "job", 6: b"earlier"}), WireCode.JOB_MISMATCH),
    "a run that is no bytes": (encode_frame(0, {0: 1, 5: "job", 6: "x"}), WireCode.HELLO_INVALID),
    "hello twice": (HELLO + HELLO, WireCode.PROTOCOL_VIOLATION),
    "an endless frame": (b"\x00" + encode_varint(5000), WireCode.PROTOCOL_VIOLATION),
    "garbage": (b"\x00\x02\xff\xff", WireCode.HEADER_INVALID),
}


@pytest.mark.parametrize("name", CONTROL)
def test_a_bad_control_stream_closes_with_its_code(victim: tuple[Node, RawPeer], name: str) -> None:
    node, peer = victim
    data, code = CONTROL[name]
    peer.run(HandshakeCompleted)
    peer.say(2, data)
    assert closed_with(node, peer) == code


def test_ending_the_control_stream_closes(victim: tuple[Node, RawPeer]) -> None:
    node, peer = victim
    peer.run(HandshakeCompleted)
    peer.say(2, HELLO, end=True)
    assert closed_with(node, peer) == WireCode.PROTOCOL_VIOLATION


def test_unknown_control_frames_and_keys_are_ignored(victim: tuple[Node, RawPeer]) -> None:
    node, peer = victim
    peer.run(HandshakeCompleted)
    peer.say(
        2, encode_frame(77, {1: 2}) + encode_frame(0, {0: 1, 5: "job", 6: b"run", 900: "new"}) + encode_frame(78, {})
    )
    assert peer.until(lambda: node.find(ConnectionUp)).hello[900] == "new"


def test_a_hello_that_never_comes_times_out() -> None:
    mallory = ephemeral_identity("mallory")
    node = Node("victim", settings=EngineSettings(handshake_timeout_s=2.0))
    node.serve(Trust(pins={mallory.pin: "mallory"}))
    peer = RawPeer(node.address, mallory.credentials)
    try:
        event = peer.run(ConnectionTerminated)
        assert event.error_code == WireCode.HANDSHAKE_TIMEOUT
        assert isinstance(node.take(ConnectionDown).error, ConnectionLostError)
    finally:
        peer.sock.close()
        node.engine.close()


def test_bidirectional_streams_are_refused_by_quic(victim: tuple[Node, RawPeer]) -> None:
    node, peer = victim
    peer.greet()
    peer.quic._remote_max_streams_bidi = 10  # it was given none; it does so all the same
    peer.say(0, b"x")
    assert peer.run(ConnectionTerminated).error_code in (0x04, 0x05)  # a limit of none, or a stream that cannot be
    assert node.take(ConnectionDown).error is not None


def test_more_than_the_window_is_refused_by_quic(victim: tuple[Node, RawPeer]) -> None:
    node, peer = victim
    peer.greet()
    peer.until(lambda: node.find(ConnectionUp))
    peer.say(6, message(bytes(3 * 2**20))[:300_000])  # too much to be granted whole
    peer.quic._streams[6].max_stream_data_remote = 2**40
    assert peer.run(ConnectionTerminated).error_code == 0x03
    assert node.take(ConnectionDown).error is not None


def test_a_refused_message_is_stopped_with_its_code(victim: tuple[Node, RawPeer]) -> None:
    node, peer = victim
    node.post("mallory", bytearray(10))
    peer.greet()
    peer.say(6, message(bytes(100_000))[:5000])
    assert peer.run(StopSendingReceived).error_code == WireCode.BUFFER_TOO_SMALL


def test_another_application_protocol_gets_no_connection(victim: tuple[Node, RawPeer]) -> None:
    node, _ = victim
    peer = RawPeer(node.address, ephemeral_identity("mallory").credentials, alpn="h3")
    event = peer.run(ConnectionTerminated)
    assert event.error_code == 0x100 + 120  # no_application_protocol (RFC 7301)
    node.none(ConnectionUp, within_s=0.05)
    peer.sock.close()


def test_datagrams_of_noise_disturb_nobody() -> None:
    with connected() as (a, b, up, _), socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as noise:
        for data in (b"", b"\x00", b"\xff" * 5, b"\xc0\x00\x00\x00\x01\x08" + bytes(1300), b"\x40" * 1400, bytes(1200)):
            noise.sendto(data, b.address)
            a.sock.sendto(data, b.address)
        a.send(up, b"fine")
        assert b.outcome(b.post("a", None)).payload == b"fine"


# Identity


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("cluster")
    for ca in ("ours", "theirs"):
        ca_init(folder / ca)
    for name, role in (("server", "job"), ("mate", "job"), ("broker", "broker")):
        ca_issue(folder / "ours", name, role=role, out=folder)
    ca_issue(folder / "theirs", "stranger", out=folder)
    return folder


def of_cluster(folder: Path, name: str, *, ca: str = "ours") -> tuple[Credentials, Trust]:
    found = load_identity(ca=folder / ca / "ca.crt", certificate=folder / f"{name}.crt", key=folder / f"{name}.key")
    return found.credentials, found.trust


def expired(folder: Path) -> Credentials:
    """A certificate of the right CA and role that ended an hour ago."""
    ca = x509.load_pem_x509_certificate((folder / "ours" / "ca.crt").read_bytes())
    ca_key = load_pem_private_key((folder / "ours" / "ca.key").read_bytes(), password=None)
    assert isinstance(ca_key, ec.EllipticCurvePrivateKey)
    key = ec.generate_private_key(ec.SECP256R1())
    builder = certificate_builder(
        subject=x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "late")]),
        issuer=ca.subject,
        public_key=key.public_key(),
        days=-1 / 24,
    ).add_extension(subject_names("late", role="job"), critical=False)
    certificate = builder.sign(ca_key, hashes.SHA256())
    assert certificate.not_valid_after_utc < datetime.datetime.now(datetime.UTC)
    return Credentials(certificate.public_bytes(Encoding.PEM), private_pem(key))


def credentials_for(folder: Path, who: str) -> Credentials | None:
    if who == "nobody":
        return None
    if who == "expired":
        return expired(folder)
    if who == "ephemeral":
        return ephemeral_identity("ephemeral").credentials
    return of_cluster(folder, who, ca="theirs" if who == "stranger" else "ours")[0]


REFUSED = {
    "nobody": WireCode.CERTIFICATE_MISSING,
    "stranger": WireCode.CERTIFICATE_UNTRUSTED,
    "ephemeral": WireCode.CERTIFICATE_UNTRUSTED,
    "expired": WireCode.CERTIFICATE_EXPIRED,
    "broker": WireCode.ROLE_REFUSED,
}


@over(*EACH)
@pytest.mark.parametrize("who", REFUSED)
def test_a_client_that_is_not_who_it_should_be_is_closed_before_its_hello_counts(cluster: Path, who: str) -> None:
    credentials, trust = of_cluster(cluster, "server")
    node = Node("server", credentials=credentials, trust=trust)
    node.serve(trust)
    try:
        peer = RawPeer(node.address, credentials_for(cluster, who))
        peer.greet()
        peer.say(6, message(b"evil"), end=True)
        event = peer.run(ConnectionTerminated)
        peer.sock.close()
        assert event.error_code == REFUSED[who]
        down = node.take(ConnectionDown)
        assert isinstance(down.error, PeerError)
        assert down.error.wire_code == REFUSED[who]
        node.none((ConnectionUp, Received), within_s=0.05)  # type: ignore[arg-type]  # isinstance takes a tuple
    finally:
        node.engine.close()


@pytest.mark.parametrize("who", ["stranger", "ephemeral", "expired", "broker"])
def test_a_server_that_is_not_who_it_should_be_is_told_so_by_the_dialling_side(cluster: Path, who: str) -> None:
    credentials, trust = of_cluster(cluster, "mate")
    mate = Node("mate", credentials=credentials, trust=trust)
    wrong_credentials = credentials_for(cluster, who)
    assert wrong_credentials is not None
    wrong = Node("wrong", credentials=wrong_credentials, trust=Trust(ca_pem=trust.ca_pem, roles=frozenset({"job"})))
    try:
        for node in (mate, wrong):
            node.serve(trust)
        mate.dial(wrong, expected=None)
        assert mate.take(ConnectionDown).error.wire_code == REFUSED[who]  # type: ignore[union-attr]  # a PeerError
        told = wrong.take(ConnectionDown).error
        assert isinstance(told, PeerError)
        assert told.wire_code == REFUSED[who]
    finally:
        mate.engine.close()
        wrong.engine.close()


def test_nodes_of_one_cluster_know_each_other_by_their_certificates(cluster: Path) -> None:
    nodes = []
    for name in ("server", "mate"):
        credentials, trust = of_cluster(cluster, name)
        nodes.append(Node(name, credentials=credentials, trust=trust))
        nodes[-1].serve(trust)
    server, mate = nodes
    try:
        mate.dial(server)
        assert mate.take(ConnectionUp).peer == "server"
        assert server.take(ConnectionUp).peer == "mate"
        mate.dial(server, expected="somebody-else")
        error = mate.take(ConnectionDown).error
        assert isinstance(error, PeerError)
        assert error.wire_code == WireCode.PEER_UNEXPECTED
    finally:
        for node in nodes:
            node.engine.close()


def test_set_trust_counts_for_new_connections_only() -> None:
    with connected() as (a, b, up, _):
        b.engine.set_trust(b.endpoint, Trust(pins={bytes(32): "nobody"}))
        a.dial(b)
        assert a.take(ConnectionDown).error.wire_code == WireCode.CERTIFICATE_UNTRUSTED  # type: ignore[union-attr]
        a.send(up, b"the old one lives")
        assert b.outcome(b.post("a", None)).payload == b"the old one lives"


def allow_links(node: Node, count: int, monkeypatch: pytest.MonkeyPatch) -> None:
    module = "native_engine" if node.engine.name == "native" else "aioquic_core"
    monkeypatch.setattr(f"transport.engine.{module}.LINKS_PER_NAME_MAX", count)


def test_ranks_of_one_host_are_counted_apart_and_their_host_is_bounded(
    victim: tuple[Node, RawPeer], monkeypatch: pytest.MonkeyPatch
) -> None:
    node, first = victim
    allow_links(node, 6, monkeypatch)
    peers = [first, *(RawPeer(node.address, first.credentials) for _ in range(6))]
    for rank, peer in enumerate(peers[:6]):
        peer.run(HandshakeCompleted)
        peer.say(2, encode_frame(FrameType.HELLO, {0: 1, 5: "job", 6: b"run", 64: rank}))
        assert peer.until(lambda: node.find(ConnectionUp)).hello[64] == rank
    assert peers[6].run(ConnectionTerminated).error_code == WireCode.TOO_MANY_CONNECTIONS
    for peer in peers:
        peer.sock.close()


def test_connections_without_a_hello_count(victim: tuple[Node, RawPeer], monkeypatch: pytest.MonkeyPatch) -> None:
    node, first = victim
    allow_links(node, 2, monkeypatch)
    peers = [first, *(RawPeer(node.address, first.credentials) for _ in range(2))]
    for peer in peers[:2]:
        peer.until(lambda peer=peer: peer.quic._handshake_confirmed)
    assert peers[2].run(ConnectionTerminated).error_code == WireCode.TOO_MANY_CONNECTIONS
    for peer in peers:
        peer.sock.close()


def test_a_ninth_connection_between_two_nodes_is_refused() -> None:
    with connected() as (a, b, _up, _):
        for _ in range(7):
            a.dial(b)
            a.take(ConnectionUp)
        a.dial(b)
        down = a.take(ConnectionDown)
        assert isinstance(down.error, PeerError)
        assert down.error.wire_code == WireCode.TOO_MANY_CONNECTIONS
