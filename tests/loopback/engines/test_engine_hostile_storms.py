"""Peers with a good certificate that do what is allowed, again and again: others go on, and nothing is left over.

See `engine_scene` for who is who.
"""

from __future__ import annotations

import ctypes
import random
import socket
import threading
from typing import Any

import pytest
from aioquic.quic.events import HandshakeCompleted
from engine_raw_peer import HELLO, RawPeer, message
from engine_scene import NATIVE, Scene, resident_bytes, scene
from engine_support import ConnectionDown, ConnectionUp, engines, over, pytest_generate_tests
from patience import wait_until

from hive_qos.errors import CancelledError, PeerError
from transport.engine.base import EngineSettings, OperationFailed
from transport.wire.error_codes import WireCode

__all__ = ["engines", "pytest_generate_tests", "scene"]
CONTROL_STREAM = 3
"""Of the victim, who was dialled; its messages have every fourth number from there on."""


@over(NATIVE)
def test_messages_of_one_key_of_which_every_other_is_given_up_find_a_post_each(scene: Scene) -> None:
    count = 60
    posts = [scene.victim.post("mallory", bytearray(40_000)) for _ in range(count)]
    scene.greet()
    mallory = scene.mallory
    streams = [6 + 4 * number for number in range(count)]
    payloads = {stream: random.Random(stream).randbytes(40_000) for stream in streams}
    for stream in streams:
        mallory.say(stream, message(payloads[stream])[:20_000])
    mallory.until(lambda: all(mallory.delivered(stream) for stream in streams))
    mallory.for_a_while(0.2)  # acknowledged is not read, and a reset may overtake what was not
    for stream in streams[::2]:
        mallory.quic.reset_stream(stream, WireCode.CANCELLED)
    for stream in reversed(streams[1::2]):
        mallory.say(stream, message(payloads[stream])[20_000:], end=True)
    outcomes = [mallory.until(lambda post=post: scene.victim.found_outcome(post)) for post in posts]
    given_up = [one for one in outcomes if isinstance(one, OperationFailed)]
    assert len(given_up) == count // 2
    assert all(isinstance(one.error, CancelledError) for one in given_up)
    received = {bytes(one.payload) for one in outcomes if not isinstance(one, OperationFailed)}
    assert received == {payloads[stream] for stream in streams[1::2]}
    for number, stream in enumerate(streams):
        again = scene.victim.post("mallory", None)
        mallory.say(streams[-1] + 4 + 4 * number, message(payloads[stream]), end=True)
        assert mallory.until(lambda again=again: scene.victim.found_outcome(again)).payload == payloads[stream]
    assert scene.victim.held("mallory") == 0


@over(NATIVE)
def test_a_peer_that_stops_every_stream_fails_what_was_for_itself(scene: Scene) -> None:
    connection = scene.greet()
    mallory = scene.mallory
    sends = [scene.victim.send(connection, bytes(50_000), tag=tag) for tag in range(200)]
    stopped: set[int] = set()

    def all_ended() -> bool:
        for stream in set(mallory.quic._streams) - stopped:
            if stream % 4 == CONTROL_STREAM % 4:  # the victim's, the control stream among them
                mallory.quic.stop_stream(stream, WireCode.CANCELLED)
                stopped.add(stream)
        outcomes = [scene.victim.found_outcome(send) for send in sends]
        for send, outcome in zip(tuple(sends), outcomes, strict=True):
            if outcome is not None:
                assert isinstance(outcome.error, (CancelledError, PeerError))
                sends.remove(send)
        return not sends

    mallory.until(all_ended, what=lambda: f"{len(sends)} sends have no end")
    scene.friend_is_heard()


@over(NATIVE)
def test_stopping_the_control_stream_harms_nobody(scene: Scene) -> None:
    scene.greet()
    scene.mallory.until(lambda: CONTROL_STREAM in scene.mallory.quic._streams)
    scene.mallory.quic.stop_stream(CONTROL_STREAM, WireCode.CANCELLED)
    scene.mallory.for_a_while(0.2)
    post = scene.victim.post("mallory", None)
    scene.mallory.say(6, message(b"still here"), end=True)
    assert scene.mallory.until(lambda: scene.victim.found_outcome(post)).payload == b"still here"
    scene.friend_is_heard()


@over(NATIVE)
def test_datagrams_of_every_length_for_a_connection_that_lives_disturb_nobody(scene: Scene) -> None:
    scene.greet()
    mallory, noise = scene.mallory, random.Random(1)
    before = resident_bytes()
    mine = bytes([0x40]) + mallory.quic._peer_cid.cid
    for length in [*range(1600), 9000, 65_507]:
        for start in (mine, b"\x00", b"\xc0\x00\x00\x00\x01\x08" + mine[1:], b"\xf0\x00\x00\x00\x01\xff"):
            mallory.sock.sendto((start + noise.randbytes(length))[:length], scene.victim.address)
    post = scene.victim.post("mallory", None)
    mallory.say(6, message(b"still here"), end=True)
    assert mallory.until(lambda: scene.victim.found_outcome(post)).payload == b"still here"
    scene.friend_is_heard()
    assert resident_bytes() - before < 32 * 2**20


@over(NATIVE)
def test_a_peer_whose_every_packet_comes_from_another_port_is_heard_and_costs_nothing(scene: Scene) -> None:
    scene.greet()
    mallory, first = scene.mallory, scene.mallory.sock
    before = resident_bytes()
    for number in range(100):
        with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as sock:
            sock.bind(("127.0.0.1", 0))
            sock.settimeout(0.001)
            mallory.sock = sock
            mallory.say(6 + 4 * number, message(b"from elsewhere", tag=number), end=True)
            mallory.for_a_while(0.005)
    mallory.sock = first
    for number in range(100):
        post = scene.victim.post("mallory", None, tag=number)
        assert mallory.until(lambda post=post: scene.victim.found_outcome(post)).payload == b"from elsewhere"
    scene.friend_is_heard()
    assert resident_bytes() - before < 32 * 2**20


@over(NATIVE)
def test_connections_that_come_and_go_leave_nothing_over(scene: Scene) -> None:
    """Half of them go while Python judges them, the others after their hello."""
    victim, credentials = scene.victim, scene.mallory.credentials
    threads = threading.active_count()

    def come_and_go(times: int) -> None:
        for number in range(times):
            peer = RawPeer(victim.address, credentials)
            peer.sock.settimeout(0.001)
            peer.run(HandshakeCompleted)
            if number % 2:
                peer.quic.send_stream_data(2, HELLO)
                peer.until(lambda: victim.find(ConnectionUp, lambda up: up.peer == "mallory"))
            peer.quic.close(error_code=0)
            peer.for_a_while(0.005)
            peer.sock.close()

    come_and_go(30)
    before = resident_bytes()
    come_and_go(120)
    wait_until(lambda: len(victim.engine._links) <= 2)  # type: ignore[attr-defined]
    assert resident_bytes() - before < 32 * 2**20
    assert threading.active_count() <= threads
    scene.friend_is_heard()
    assert victim.find(ConnectionDown, lambda down: down.peer == "friend") is None


@over(NATIVE)
@pytest.mark.parametrize(
    "scene",
    [EngineSettings(handshake_timeout_s=60.0, dead_after_s=60.0, unexpected_bytes_max=2**24)],
    indirect=True,
)
def test_a_message_that_waits_keeps_nothing_else_of_its_connection(scene: Scene) -> None:
    """Each connection leaves one message that nobody takes, beside a window full of what nobody can read."""
    victim, credentials = scene.victim, scene.mallory.credentials
    before = resident_bytes()
    for number in range(5):
        peer = RawPeer(victim.address, credentials)
        peer.greet()
        peer.until(lambda: victim.find(ConnectionUp, lambda up: up.peer == "mallory"))
        peer.say(6, message(b"stays", tag=number), end=True)
        unread = []
        for stream in range(10, 10 + 4 * 16, 4):
            peer.say(stream, bytes(500_000))
            sender: Any = peer.quic._streams[stream].sender
            sender._pending.subtract(0, 1)  # the first byte, which never comes
            unread.append(sender)
        peer.until(lambda unread=unread: all(list(one._acked) == [range(1, 500_000)] for one in unread))
        for sender in unread:
            sender._buffer.clear()  # this side's memory is not what is measured
        peer.quic.close(error_code=0)
        peer.until(lambda: victim.find(ConnectionDown, lambda down: down.peer == "mallory"))
        peer.sock.close()
    assert victim.held("mallory") > 0
    ctypes.CDLL(None).malloc_trim(0)  # what was freed and not given back is not kept by anybody
    assert resident_bytes() - before < 24 * 2**20
    scene.friend_is_heard()
