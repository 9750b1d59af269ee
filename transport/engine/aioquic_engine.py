"""The pure-Python engine as its callers see it: arguments are checked here, the thread of `aioquic_core` does the work.

In a forked child the engine is inert: its sockets are closed there, and its methods raise, except `close`.
"""

from __future__ import annotations

import contextlib
import itertools
import os
import socket
import threading
import weakref
from collections.abc import Callable, Mapping, Sequence

from cryptography import x509
from cryptography.hazmat.primitives.serialization import load_pem_private_key

from hive_qos.errors import MisuseError
from transport.engine.aioquic_core import Core
from transport.engine.aioquic_dial import CONTROLLERS, Endpoint
from transport.engine.base import (
    Address,
    Buffer,
    ConnectionStatistics,
    Credentials,
    Engine,
    EngineSettings,
    Event,
    Priority,
    Trust,
    check_rate,
    unknown_congestion,
)
from transport.engine.link import level_of
from transport.engine.mailbox import Post
from transport.engine.streams import SendStream
from transport.engine.udp import UdpPort
from transport.wire.errors import WireError
from transport.wire.header import Header, MatchKey, encode_header
from transport.wire.hello import PROTOCOL_VERSION, HelloKey, LimitKey

_living: weakref.WeakSet[AioquicEngine] = weakref.WeakSet()


class AioquicEngine(Engine):
    """See `base` for the rules that this keeps."""

    name = "aioquic"

    def __init__(self, *, settings: EngineSettings, on_events: Callable[[Sequence[Event]], None]) -> None:
        super().__init__(settings=settings, on_events=on_events)
        if settings.congestion not in CONTROLLERS:
            raise unknown_congestion(self.name, settings.congestion, CONTROLLERS)
        if not 1200 <= settings.datagram_bytes <= 65000:
            raise MisuseError(f"datagrams of {settings.datagram_bytes} bytes; QUIC needs at least 1200")
        self._process = os.getpid()
        self._numbers = itertools.count(1)
        self._closed = False
        self._bulk: set[int] = set()
        self._core = Core(settings=settings, on_events=on_events)
        self._thread = threading.Thread(target=self._core.run, name="hive-aioquic", daemon=True)
        _living.add(self)
        self._thread.start()

    def add_endpoint(
        self, sock: socket.socket, *, credentials: Credentials, trust: Trust, hello: Mapping[int, object], bulk: bool
    ) -> int:
        self._check_open()
        if sock.type != socket.SOCK_DGRAM:
            raise MisuseError("an endpoint needs a UDP socket")
        if trust.ca_pem is None and not trust.pins:
            raise MisuseError("an endpoint that trusts nobody can reach nobody; give a CA or pins")
        try:
            certificates = x509.load_pem_x509_certificates(credentials.certificate_chain_pem)
            key = load_pem_private_key(credentials.private_key_pem, password=None)
        except ValueError as error:
            raise MisuseError(f"credentials cannot be read: {error}") from error
        endpoint = Endpoint(
            number=next(self._numbers),
            port=UdpPort(sock),
            trust=trust,
            hello=self._hello(hello),
            bulk=bulk,
            certificates=certificates,
            key=key,
        )
        if bulk:
            self._bulk.add(endpoint.number)
        self._core.command(lambda: self._core.add_endpoint(endpoint))
        return endpoint.number

    def set_trust(self, endpoint: int, trust: Trust) -> None:
        self._check_open()
        self._core.command(lambda: self._core.set_trust(endpoint, trust))

    def set_rate(self, endpoint: int, bits_per_s: int | None) -> None:
        self._check_open()
        check_rate(bits_per_s, bulk=endpoint in self._bulk)
        self._core.command(lambda: self._core.set_rate(endpoint, bits_per_s))

    def connect(self, endpoint: int, remote: Address, *, expected_peer: str | None) -> int:
        self._check_open()
        attempt = next(self._numbers)
        self._core.command(lambda: self._core.connect(endpoint, remote, expected_peer, attempt))
        return attempt

    def send(
        self,
        connection: int,
        header: Header,
        payload: Buffer | None,
        *,
        priority: Priority,
        deadline_s: float | None = None,
    ) -> int:
        self._check_open()
        data = _flat(payload, writable=False)
        length = 0 if data is None else len(data)
        if header.length != length:
            raise MisuseError(f"the header says {header.length} bytes, the payload has {length}")
        try:
            prefix = encode_header(header)
        except WireError as error:
            raise MisuseError(f"a header that the peer would refuse: {error.reason}") from error
        stream = SendStream(
            operation=next(self._numbers),
            prefix=prefix,
            payload=data if length else None,
            priority=level_of(priority),
            timeout_s=deadline_s or 0.0,
        )
        self._core.command(lambda: self._core.send(connection, stream, deadline_s))
        return stream.operation

    def post(self, peer: str, key: MatchKey, buffer: Buffer | None) -> int:
        self._check_open()
        post = Post(operation=next(self._numbers), peer=peer, key=key, buffer=_flat(buffer, writable=True))
        self._core.command(lambda: self._core.post(post))
        return post.operation

    def cancel(self, operation: int) -> None:
        self._check_open()
        self._core.command(lambda: self._core.cancel(operation))

    def discard(self, *, group: str, before_step: int) -> None:
        self._check_open()
        self._core.command(lambda: self._core.discard(group, before_step))

    def statistics(self) -> Mapping[int, ConnectionStatistics]:
        self._check_open()
        return self._core.snapshot

    def disconnect(self, connection: int, *, wire_code: int, reason: str) -> None:
        self._check_open()
        self._core.command(lambda: self._core.disconnect(connection, wire_code, reason))

    def close(self, *, timeout_s: float = 2.0) -> None:
        if os.getpid() != self._process:
            return
        if not self._closed:
            self._closed = True
            self._core.command(self._core.finish)
        if threading.current_thread() is not self._thread:
            self._thread.join(timeout_s)

    def _check_open(self) -> None:
        if os.getpid() != self._process:
            raise MisuseError(f"this engine belongs to process {self._process}; a forked child must open its own")
        if self._closed or self._core.over:
            raise MisuseError("the engine is closed")

    def _hello(self, hello: Mapping[int, object]) -> dict[int, object]:
        own: dict[int, object] = {
            HelloKey.VERSION: PROTOCOL_VERSION,
            HelloKey.ENGINE: self.name,
            HelloKey.LIMITS: {
                int(LimitKey.MESSAGE_BYTES): self.settings.message_bytes_max,
                int(LimitKey.STREAMS): self.settings.streams_max,
                int(LimitKey.UNEXPECTED_BYTES): self.settings.unexpected_bytes_max,
            },
        }
        return {int(key): value for key, value in {**own, **hello}.items()}

    def _abandon_in_child(self) -> None:
        self._core.close_descriptors()


def _flat(buffer: Buffer | None, *, writable: bool) -> Buffer | None:
    if buffer is None:
        return None
    view = memoryview(buffer)
    if view.format != "B" or not view.c_contiguous or view.ndim != 1:
        raise MisuseError("a buffer must be a contiguous, one-dimensional memoryview of bytes")
    if writable and view.readonly:
        raise MisuseError("a buffer to receive into must be writable")
    return view


def _abandon_all_in_child() -> None:
    for engine in list(_living):
        with contextlib.suppress(OSError):
            engine._abandon_in_child()


os.register_at_fork(after_in_child=_abandon_all_in_child)
