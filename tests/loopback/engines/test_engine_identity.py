"""Who may connect, by certificate and by number, and which code it is told who may not."""

from __future__ import annotations

import datetime
import socket
import ssl
import time
from pathlib import Path
from types import SimpleNamespace

import pytest
from aioquic._buffer import Buffer
from aioquic.quic.configuration import QuicConfiguration
from aioquic.quic.connection import QuicConnection
from aioquic.quic.events import ConnectionTerminated, HandshakeCompleted
from aioquic.quic.packet import QuicPacketType, QuicProtocolVersion, pull_quic_header
from aioquic.quic.packet_builder import QuicPacketBuilder
from aioquic.tls import Epoch
from cryptography import x509
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import Encoding, load_pem_private_key
from cryptography.x509.oid import NameOID
from engine_raw_peer import RawPeer, message, victim
from engine_support import (
    EACH,
    ConnectionDown,
    ConnectionUp,
    Node,
    bound_socket,
    connected,
    engines,
    over,
    pytest_generate_tests,
)

from hive_qos.errors import ConnectionLostError, PeerError
from transport.engine.base import Received
from transport.identity import ca_init, ca_issue, ca_revoke, ephemeral_identity, load_identity
from transport.identity.authority import certificate_builder, private_pem, subject_names
from transport.identity.credentials import Credentials, Trust
from transport.wire.control_frames import FrameType, encode_frame
from transport.wire.error_codes import WireCode

__all__ = ["engines", "pytest_generate_tests", "victim"]


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("cluster")
    for ca in ("ours", "theirs"):
        ca_init(folder / ca)
    for name, role in (("server", "job"), ("mate", "job"), ("broker", "broker")):
        ca_issue(folder / "ours", name, role=role, addresses=["127.0.0.1"], out=folder)
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


def close_unverified(sock: socket.socket, credentials: Credentials, *, code: WireCode) -> None:
    """Answer the first client on a socket with a close right behind the certificate, before the client's has come."""
    data, remote = sock.recvfrom(65536)
    configuration = QuicConfiguration(
        is_client=False, alpn_protocols=["hive-tensor/1"], verify_mode=ssl.CERT_NONE, max_datagram_size=1400
    )
    configuration.certificate = x509.load_pem_x509_certificate(credentials.certificate_chain_pem)
    configuration.private_key = load_pem_private_key(credentials.private_key_pem, password=None)
    named = pull_quic_header(Buffer(data=data), host_cid_length=8).destination_cid
    quic = QuicConnection(configuration=configuration, original_destination_connection_id=named)
    quic.receive_datagram(data, remote, time.monotonic())
    for answer, _ in quic.datagrams_to_send(time.monotonic()):
        sock.sendto(answer, remote)
    packets = QuicPacketBuilder(
        host_cid=quic.host_cid,
        peer_cid=quic._peer_cid.cid,
        is_client=False,
        max_datagram_size=1200,
        packet_number=quic._packet_number,
        quic_logger=None,
        version=QuicProtocolVersion.VERSION_1,
    )
    packets.start_packet(QuicPacketType.ONE_RTT, quic._cryptos[Epoch.ONE_RTT])
    quic._write_connection_close_frame(
        builder=packets, epoch=Epoch.ONE_RTT, error_code=code, frame_type=None, reason_phrase="gone"
    )
    for last in packets.flush()[0]:
        sock.sendto(last, remote)


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


@over(*EACH)
def test_who_has_shown_no_certificate_of_ours_cannot_say_that_we_count_as_gone(cluster: Path) -> None:
    """A rank is dialled at all addresses that it has told: at one of them may be somebody else."""
    credentials, trust = of_cluster(cluster, "mate")
    mate = Node("mate", credentials=credentials, trust=trust)
    mate.serve(trust)
    mallory = ephemeral_identity("mallory").credentials
    try:
        for _ in range(10):  # whether the certificate or the close is looked at first is a matter of microseconds
            with bound_socket("127.0.0.1") as sock:
                mate.engine.connect(mate.endpoint, sock.getsockname(), expected_peer="server")
                close_unverified(sock, mallory, code=WireCode.COUNTED_AS_GONE)
                error = mate.take(ConnectionDown).error
            assert isinstance(error, ConnectionLostError | PeerError)
            assert not isinstance(error, PeerError) or error.wire_code == WireCode.CERTIFICATE_UNTRUSTED
    finally:
        mate.engine.close()


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
        assert mate.take(ConnectionDown).error.wire_code == REFUSED[who]  # a PeerError
        reported = wrong.take(ConnectionDown).error
        assert isinstance(reported, PeerError)
        assert reported.wire_code == REFUSED[who]
    finally:
        mate.engine.close()
        wrong.engine.close()


@over(*EACH)
def test_pinned_peers_whose_clocks_are_years_apart_are_connected(monkeypatch: pytest.MonkeyPatch) -> None:
    class Later(datetime.datetime):
        @classmethod
        def now(cls, tz: datetime.tzinfo | None = None) -> datetime.datetime:  # type: ignore[override]  # typed as Self
            return datetime.datetime.now(tz) + datetime.timedelta(days=3 * 365)

    later = SimpleNamespace(datetime=Later, UTC=datetime.UTC)
    monkeypatch.setattr("transport.engine.admission.datetime", later)  # as of a host that lets others in
    with connected() as (a, b, up_a, _):
        post = b.post("a", None)
        a.send(up_a, b"in time")
        assert b.outcome(post).payload == b"in time"


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


@pytest.mark.parametrize("why", ["another job", "no job", "revoked"])
@pytest.mark.parametrize("dials", ["good", "bad"])
def test_a_certificate_of_the_cluster_is_refused_where_it_is_not_for_this_job_or_revoked(
    tmp_path: Path, why: str, dials: str
) -> None:
    ca, jobs = tmp_path / "ca", {"another job": ["other"], "no job": [], "revoked": ["job"]}[why]
    ca_init(ca)
    nodes = {}
    for name, named in (("good", ["job"]), ("bad", jobs)):
        files = ca_issue(ca, name, jobs=named, out=tmp_path)
        found = load_identity(ca=ca / "ca.crt", certificate=files.certificate, key=files.key)
        nodes[name] = Node(name, credentials=found.credentials)
    good, bad = nodes["good"], nodes["bad"]
    bad.serve(found.trust)
    if why == "revoked":
        ca_revoke(ca, "bad")
    certificate, key = tmp_path / "good.crt", tmp_path / "good.key"
    good.serve(load_identity(ca=ca / "ca.crt", certificate=certificate, key=key, job="job").trust)
    try:
        dialling, dialled = (good, bad) if dials == "good" else (bad, good)
        dialling.dial(dialled)
        code = WireCode.CERTIFICATE_REVOKED if why == "revoked" else WireCode.JOB_MISMATCH
        for node in (good, bad):
            error = node.take(ConnectionDown).error
            assert isinstance(error, PeerError)
            assert error.wire_code == code
        assert good.find(ConnectionUp) is None
    finally:
        for node in nodes.values():
            node.engine.close()


def test_ranks_of_one_host_are_counted_apart_and_their_host_is_bounded(
    victim: tuple[Node, RawPeer], monkeypatch: pytest.MonkeyPatch
) -> None:
    node, first = victim
    monkeypatch.setattr("transport.engine.admission.LINKS_PER_NAME_MAX", 6)
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
    monkeypatch.setattr("transport.engine.admission.LINKS_PER_NAME_MAX", 2)
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
