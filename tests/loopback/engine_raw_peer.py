"""A peer of bare aioquic that says what it likes, and a node for it to say that to."""

from __future__ import annotations

import contextlib
import socket
import ssl
import time
from collections.abc import Callable, Iterator
from typing import Any, TypeVar

import pytest
from aioquic.quic.configuration import QuicConfiguration
from aioquic.quic.connection import QuicConnection
from aioquic.quic.events import ConnectionTerminated, HandshakeCompleted
from cryptography import x509
from cryptography.hazmat.primitives.serialization import load_pem_private_key
from engine_support import Node
from patience import wait_until

from transport.engine.base import EngineSettings
from transport.identity import ephemeral_identity
from transport.identity.credentials import Credentials, Trust
from transport.wire.cbor import encode_map
from transport.wire.control_frames import FrameType, encode_frame
from transport.wire.header import Header, Kind, encode_header
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

        found_at_last = wait_until(look, what=what, pause_s=0.0)
        assert found_at_last is not None
        return found_at_last

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
