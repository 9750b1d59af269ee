"""Peers that break the protocol, built on bare aioquic: each is refused with its code, and the engine goes on."""

from __future__ import annotations

import socket

import pytest
from aioquic.quic.events import ConnectionTerminated, HandshakeCompleted, StopSendingReceived, StreamDataReceived
from engine_raw_peer import HELLO, RawPeer, message, raw_header, victim
from engine_support import ConnectionDown, ConnectionUp, Node, connected, engines, pytest_generate_tests

from hive_qos.errors import CancelledError, ConnectionLostError, PeerError
from transport.engine.base import EngineSettings, Received
from transport.identity import ephemeral_identity
from transport.identity.credentials import Trust
from transport.wire.control_frames import encode_frame, encode_hold
from transport.wire.error_codes import WireCode
from transport.wire.header import Header, Kind, encode_header
from transport.wire.varint import encode_varint

__all__ = ["engines", "pytest_generate_tests", "victim"]


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
    "shape against length": (raw_header({0: 2, 8: "float32", 9: [3], 11: 13}), WireCode.LENGTH_MISMATCH),
    "shape that overflows": (raw_header({0: 2, 8: "int8", 9: [2**32, 2**32], 11: 0}), WireCode.LENGTH_MISMATCH),
    "another job than its hello's": (raw_header({0: 2, 1: "other", 11: 0}), WireCode.JOB_MISMATCH),
    "more than is accepted": (raw_header({0: 2, 11: 2**30 + 1}), WireCode.MESSAGE_TOO_LONG),
    "as long as a stream can be": (raw_header({0: 2, 11: 2**62 - 1}), WireCode.MESSAGE_TOO_LONG),
    "longer than a stream can be": (raw_header({0: 2, 11: 2**62}), WireCode.MESSAGE_TOO_LONG),
    "the longest that can be said": (raw_header({0: 2, 11: 2**64 - 1}), WireCode.MESSAGE_TOO_LONG),
    "less than nothing": (raw_header({0: 2, 11: -1}), WireCode.HEADER_INVALID),
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
    "a hold before its hello": (encode_hold("g", 1, waits=True), WireCode.PROTOCOL_VIOLATION),
    "a hold of neither kind": (HELLO + encode_frame(1, {0: "g", 1: 1, 2: 2}), WireCode.HEADER_INVALID),
    "a hold of no group": (HELLO + encode_frame(1, {0: "g" * 129}), WireCode.HEADER_INVALID),
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
