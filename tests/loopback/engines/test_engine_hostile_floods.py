"""Peers with a good certificate that want to hurt: what they cost is bounded, and nobody else notices them.

Each test has a victim, an honest friend that is connected to it, and mallory, who is bare aioquic and trusted as well.
"""

from __future__ import annotations

import contextlib
import threading
import time
from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest
from aioquic.quic.configuration import QuicConfiguration
from aioquic.quic.connection import QuicConnection
from aioquic.quic.events import ConnectionTerminated, HandshakeCompleted
from aioquic.tls import Epoch
from cryptography import x509
from cryptography.hazmat.primitives.serialization import Encoding
from engine_raw_peer import RawPeer, message
from engine_scene import NATIVE, SETTINGS, Scene, closed_with, resident_bytes, scene
from engine_support import (
    EACH,
    ConnectionDown,
    ConnectionUp,
    Node,
    bound_socket,
    engines,
    over,
    pytest_generate_tests,
)
from patience import most_of, wait_until

from hive_qos.errors import CancelledError, PeerError
from transport.engine.admission import HALF_OPEN_MAX, UNPROVED_S_MAX
from transport.engine.base import EngineSettings, OperationFailed, SendDone, UnexpectedMessage
from transport.identity.credentials import Trust
from transport.wire.control_frames import FrameType, encode_frame
from transport.wire.error_codes import WireCode
from transport.wire.header import Header, Kind, encode_header

__all__ = ["engines", "pytest_generate_tests", "scene"]


@over(NATIVE)
def test_all_streams_that_are_allowed_say_nothing_and_cost_nothing(scene: Scene) -> None:
    scene.greet()
    before = resident_bytes()
    for number in range(SETTINGS.streams_max - 2):
        scene.mallory.say(6 + 4 * number, b"\x40")  # the first half of a length
    scene.mallory.until(lambda: scene.mallory.delivered(6 + 4 * (SETTINGS.streams_max - 3)))
    scene.friend_is_heard()
    assert resident_bytes() - before < 64 * 2**20


@over(NATIVE)
def test_ten_thousand_streams_are_more_than_is_allowed(scene: Scene) -> None:
    scene.greet()
    scene.mallory.quic._remote_max_streams_uni = 2**40
    for number in range(10_000):
        scene.mallory.say(6 + 4 * number, b"\x40")
    assert closed_with(scene) == 0x04  # STREAM_LIMIT_ERROR
    scene.friend_is_heard()


@over(NATIVE)
@pytest.mark.parametrize("scene", [EngineSettings(handshake_timeout_s=60.0, dead_after_s=60.0)], indirect=True)
@pytest.mark.parametrize("posted", [True, False])
def test_a_terabyte_that_is_only_claimed_takes_no_memory(scene: Scene, posted: bool) -> None:
    scene.greet()
    before = resident_bytes()
    post = scene.victim.post("mallory", None) if posted else 0
    for number in range(20):
        tag: dict[str, Any] = {} if number == 0 else {"tag": 1000 + number}
        scene.mallory.say(6 + 4 * number, encode_header(Header(kind=Kind.POINT_TO_POINT, length=2**40, **tag)) + b"x")
    scene.mallory.until(lambda: scene.mallory.delivered(6 + 4 * 19))
    scene.friend_is_heard()
    assert resident_bytes() - before < 64 * 2**20
    if posted:
        scene.victim.engine.cancel(post)
        assert scene.mallory.until(lambda: scene.victim.found_outcome(post)).error is not None


@over(NATIVE)
def test_acknowledging_what_was_never_sent_is_a_violation(scene: Scene) -> None:
    scene.greet()
    scene.mallory.quic._spaces[Epoch.ONE_RTT].ack_queue.add(0, 2**30)
    scene.mallory.quic._spaces[Epoch.ONE_RTT].ack_at = time.monotonic()
    scene.mallory.say(6, message(b"with an acknowledgement"), end=True)
    assert closed_with(scene) == 0x0A  # PROTOCOL_VIOLATION
    scene.friend_is_heard()


@over(NATIVE)
def test_a_peer_that_stops_reading_holds_up_only_what_is_for_itself(scene: Scene) -> None:
    quic: Any = scene.mallory.quic
    quic._write_connection_limits = quic._write_stream_limits = lambda *_, **__: None  # no credit any more
    to_mallory = scene.greet()
    payload = bytearray(64 * 2**20)
    before = resident_bytes()
    sends = [scene.victim.send(to_mallory, payload, tag=tag) for tag in range(20)]
    scene.friend_is_heard()
    scene.mallory.for_a_while(0.5)
    assert not [event for event in scene.victim.events if isinstance(event, (SendDone, OperationFailed))]
    assert resident_bytes() - before < 64 * 2**20, "what cannot be sent is not copied"
    for send in sends:
        scene.victim.engine.cancel(send)
    for send in sends:
        error = scene.mallory.until(lambda send=send: scene.victim.found_outcome(send)).error
        assert isinstance(error, CancelledError)
    payload.extend(b"it was given back")


@over(NATIVE)
def test_a_message_in_dust_closes_the_connection(scene: Scene) -> None:
    """Every other byte, each in a frame of its own: what has to be kept is many times what came."""
    scene.greet()
    before = resident_bytes()
    stream = scene.mallory
    stream.say(6, message(bytes(2**20))[:100])
    stream.until(lambda: stream.delivered(6))
    sender: Any = stream.quic._streams[6].sender
    for at in range(59_998, 3_998, -2):  # aioquic looks through its ranges from the lowest on
        sender._pending.add(at, at + 1)
    sender._buffer = bytearray(60_001)
    sender._buffer_start, sender._buffer_stop = 0, 60_001
    sender.buffer_is_empty = False
    assert closed_with(scene) in (0x01, 0x0A, WireCode.PROTOCOL_VIOLATION)
    scene.friend_is_heard()
    assert resident_bytes() - before < 64 * 2**20


@over(NATIVE)
def test_streams_that_are_begun_and_reset_again_and_again_stop_nobody(scene: Scene) -> None:
    scene.greet()
    posts = [scene.victim.post("mallory", bytearray(5000)) for _ in range(20)]
    stream = 6
    for _ in range(30):
        for _ in range(50):
            scene.mallory.say(stream, message(bytes(5000), tag=stream % 3)[:3000])
            scene.mallory.quic.reset_stream(stream, WireCode.CANCELLED)
            stream += 4
        scene.mallory.for_a_while(0.01)
    scene.friend_is_heard()
    for post in posts:
        scene.victim.engine.cancel(post)
        assert isinstance(scene.mallory.until(lambda post=post: scene.victim.found_outcome(post)), OperationFailed)
    wait_until(lambda: scene.victim.held("mallory") == 0 or scene.mallory.for_a_while(0.05))


@over(NATIVE)
def test_messages_that_are_begun_and_reset_again_and_again_earn_no_credit(scene: Scene) -> None:
    """What may lie unread in a stream is granted once: a peer that sends nothing of it is not granted it again."""
    scene.greet()
    header = encode_header(Header(kind=Kind.BULK, length=SETTINGS.unexpected_bytes_max))
    stream = 6
    for _ in range(10):
        begun = range(stream, stream + 4 * 31, 4)  # a stream's window is a 32nd of the store
        stream = begun.stop
        for number in begun:
            scene.mallory.say(number, header)
        scene.mallory.until(lambda begun=begun: all(map(scene.mallory.delivered, begun)))
        wait_until(lambda: scene.victim.held("mallory") > SETTINGS.unexpected_bytes_max * 15 // 16)
        for number in begun:
            scene.mallory.quic.reset_stream(number, WireCode.CANCELLED)
        wait_until(lambda: scene.victim.held("mallory") == 0 or scene.mallory.for_a_while(0.02))
    scene.friend_is_heard()
    # A connection begins with half a store.
    assert scene.mallory.quic._remote_max_data < 2 * SETTINGS.unexpected_bytes_max


@over(NATIVE)
def test_thousands_of_messages_with_one_key_are_taken_and_dropped_in_time(scene: Scene) -> None:
    """Whatever walked over all that wait for each of them would take minutes here."""
    scene.greet()
    count = 2 * 1000
    for number in range(count):
        scene.mallory.say(6 + 4 * number, encode_header(Header(kind=Kind.BULK, group="g", length=0)), end=True)
    told = 0

    def all_announced() -> bool:
        nonlocal told
        while scene.victim.find(UnexpectedMessage) is not None:
            told += 1
        return told >= count

    scene.mallory.until(all_announced, what=lambda: f"{told} announced")
    scene.victim.engine.discard(group="g", before_step=1)
    assert scene.victim.held("mallory") == 0
    scene.friend_is_heard()


@over(NATIVE)
def test_a_name_with_many_ranks_has_no_store_for_each(scene: Scene) -> None:
    """A rank is what a peer says of itself: twenty of them may not take twenty times the memory."""
    assert scene.mallory.credentials is not None
    peers = [RawPeer(scene.victim.address, scene.mallory.credentials) for _ in range(20)]
    for rank, peer in enumerate(peers):
        peer.run(HandshakeCompleted)
        peer.say(2, encode_frame(FrameType.HELLO, {0: 1, 5: "job", 6: b"run", 64: rank}))
        peer.until(lambda: scene.victim.find(ConnectionUp))
        for number in range(4):
            peer.say(6 + 4 * number, encode_header(Header(kind=Kind.BULK, tag=rank, length=2**19)) + b"x")
        peer.until(lambda peer=peer: peer.delivered(6 + 4 * 3))
    # Four whole stores, and the rest shares; each would have taken 2 MiB of its own.
    wait_until(lambda: scene.victim.held("mallory") > 4 * 2**20)
    scene.friend_is_heard()
    for peer in peers:
        peer.sock.close()


class Beginner:
    """Begins handshakes at an address and never goes on with one, once it has answered a Retry."""

    def __init__(self, host: str, victim: tuple[str, int]) -> None:
        self.sock = bound_socket(host)
        self.sock.setblocking(False)
        self.victim = victim
        self.begun: dict[bytes, QuicConnection] = {}
        self.sent: deque[bytes] = deque()

    def begin(self) -> None:
        quic = QuicConnection(configuration=QuicConfiguration(alpn_protocols=["hive-tensor/1"]))
        self.begun[quic.host_cid] = quic
        quic.connect(self.victim, now=0.0)
        self._send(quic)

    def repeat(self, packets: int) -> None:
        for data in list(self.sent)[:packets]:
            self.sock.sendto(data, self.victim)
        self.sent.rotate(packets)

    def heard_retries(self) -> list[bytes]:
        heard = []
        with contextlib.suppress(BlockingIOError):
            while True:
                data = self.sock.recv(2048)
                if data[0] & 0xF0 == 0xF0:
                    heard.append(data)
        return heard

    def answer(self, retries: list[bytes]) -> None:
        self.sent.clear()
        for data in retries:
            quic = self.begun[data[6 : 6 + data[5]]]
            quic.receive_datagram(data, self.victim, now=0.0)
            self._send(quic)
            time.sleep(0.001)  # no more than the victim's socket can hold

    def _send(self, quic: QuicConnection) -> None:
        for data, _address in quic.datagrams_to_send(0.0):
            self.sent.append(data)
            self.sock.sendto(data, self.victim)


@contextmanager
def flooded(*hosts: str, handshakes: int = 320) -> Iterator[tuple[Node, Node, list[Beginner]]]:
    """A victim, a friend that is about to dial it, and handshakes that were begun at these addresses."""
    victim, friend = Node("victim"), Node("friend")
    beginners = [Beginner(host, victim.address) for host in hosts]
    try:
        trust = Trust(pins={victim.identity.pin: "victim", friend.identity.pin: "friend"})
        for node in (victim, friend):
            node.serve(trust)
        for number in range(handshakes):
            beginners[number % len(hosts)].begin()
        yield victim, friend, beginners
    finally:
        victim.engine.close()
        friend.engine.close()
        for beginner in beginners:
            beginner.sock.close()


def connects_within_a_second(friend: Node, victim: Node) -> None:
    def dial() -> float:
        began_s = time.monotonic()
        friend.dial(victim)
        up = friend.take(ConnectionUp)
        took_s = time.monotonic() - began_s
        friend.engine.disconnect(up.connection, wire_code=WireCode.NO_ERROR, reason="measured")
        return took_s

    most_of(dial, lambda took_s: took_s < 1.0, windows=3)


@contextmanager
def going_on(beginners: list[Beginner]) -> Iterator[None]:
    """Send the first packets again and again, some 800 a second."""
    over_now = threading.Event()

    def flood() -> None:
        while not over_now.wait(0.05):
            for beginner in beginners:
                beginner.repeat(5)

    thread = threading.Thread(target=flood)
    thread.start()
    try:
        yield
    finally:
        over_now.set()
        thread.join()


@over(*EACH, ("native", "aioquic"), ("aioquic", "native"))
def test_nobody_can_be_kept_out_by_first_packets_from_nowhere(engines: tuple[str, str]) -> None:
    """Forged addresses answer nothing: what they begin may not use up what there is for those who do."""
    with flooded(*(f"127.0.0.{host}" for host in range(2, 10))) as (victim, friend, beginners), going_on(beginners):
        wait_until(lambda: any(one.heard_retries() for one in beginners), what=lambda: "no address is to be proved")
        connects_within_a_second(friend, victim)


@over(*EACH, ("native", "aioquic"), ("aioquic", "native"))
def test_nobody_can_be_kept_out_by_one_address_that_begins_handshakes_and_stalls(engines: tuple[str, str]) -> None:
    with flooded("127.0.0.2") as (victim, friend, (one,)):
        retries: dict[bytes, bytes] = {}

        def asked() -> bool:
            one.repeat(20)
            retries.update((data[6:14], data) for data in one.heard_retries())
            return len(retries) >= HALF_OPEN_MAX

        wait_until(asked, what=lambda: f"{len(retries)} were asked to prove the address")
        one.answer(list(retries.values()))
        connects_within_a_second(friend, victim)


@over(*EACH)
def test_an_address_that_is_never_proved_keeps_its_place_for_three_seconds(engines: tuple[str, str]) -> None:
    with flooded("127.0.0.2", handshakes=1) as (victim, _friend, _beginners):
        began_s = time.monotonic()
        assert "no connection within 3 s" in str(victim.take(ConnectionDown).error)
        assert time.monotonic() - began_s > UNPROVED_S_MAX - 0.5


class Certificate:
    """A certificate whose bytes are not what its reader expects."""

    def __init__(self, real: x509.Certificate, der: bytes) -> None:
        self._real = real
        self._der = der

    def public_bytes(self, _encoding: Encoding) -> bytes:
        return self._der

    def __getattr__(self, name: str) -> Any:
        return getattr(self._real, name)


def version_of_tomorrow(der: bytes) -> bytes:
    at = der.index(b"\xa0\x03\x02\x01\x02") + 4
    return der[:at] + b"\x05" + der[at + 1 :]


def negative_number(der: bytes) -> bytes:
    """Of which a library warns: whoever has made errors of warnings would have one where all peers are judged."""
    at = der.index(b"\xa0\x03\x02\x01\x02") + 7
    return der[:at] + bytes([der[at] | 0x80]) + der[at + 1 :]


@over(*EACH)
@pytest.mark.parametrize(
    "spoil",
    [
        version_of_tomorrow,
        negative_number,
        lambda der: der[:-40],
        lambda der: b"\x30\x00",
        lambda der: b"",
        lambda der: der + b"x" * 9,
    ],
    ids=["another version", "a negative number", "truncated", "empty sequence", "nothing", "longer"],
)
def test_a_certificate_that_cannot_be_read_concerns_its_sender_alone(scene: Scene, spoil: Any) -> None:
    assert scene.mallory.credentials is not None
    peer = RawPeer(scene.victim.address, scene.mallory.credentials)
    configuration: Any = peer.quic.configuration
    real: Any = configuration.certificate
    spoiled: Any = Certificate(real, spoil(real.public_bytes(Encoding.DER)))
    configuration.certificate = peer.quic.tls.certificate = spoiled
    peer.run(ConnectionTerminated)
    peer.sock.close()
    scene.friend_is_heard()


@over(NATIVE)
def test_a_reader_that_raises_what_nobody_expects_refuses_the_one_peer(
    scene: Scene, monkeypatch: pytest.MonkeyPatch
) -> None:
    def judged(*_: Any, **__: Any) -> Any:
        raise RuntimeError("as a library does with what it was not made for")

    monkeypatch.setattr("transport.identity.verify._judged", judged)
    assert closed_with(scene) == WireCode.CERTIFICATE_UNTRUSTED
    monkeypatch.undo()
    scene.friend_is_heard()
    down = scene.victim.take(ConnectionDown)
    assert isinstance(down.error, PeerError)
