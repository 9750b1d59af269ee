"""The pure-Python engine as its callers see it: arguments are checked here, the thread of `core` does the work.

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

from transport.engine.aioquic.configuration import Endpoint
from transport.engine.aioquic.core import Core
from transport.engine.aioquic.exceptions import CONTROLLERS
from transport.engine.aioquic.matching import Post
from transport.engine.aioquic.send_streams import SendStream
from transport.engine.aioquic.udp_socket import UdpPort
from transport.engine.base import Address, Buffer, ConnectionStatistics, Engine, EngineSettings, Event, Priority
from transport.engine.validation import (
    check_endpoint,
    check_open,
    check_settings,
    check_socket,
    check_taken,
    flat,
    full_hello,
    handed_over,
    key_of,
    level_of,
    message_of,
    name_of,
    read_credentials,
)
from transport.identity.credentials import Credentials, Trust
from transport.wire.header import Header, MatchKey

_living: weakref.WeakSet[AioquicEngine] = weakref.WeakSet()


class AioquicEngine(Engine):
    """See `base` for the rules that this keeps."""

    name = "aioquic"

    def __init__(self, *, settings: EngineSettings, on_events: Callable[[Sequence[Event]], None]) -> None:
        super().__init__(settings=settings, on_events=on_events)
        check_settings(settings, engine=self.name, controllers=CONTROLLERS)
        self._process = os.getpid()
        self._numbers = itertools.count(1)
        self._closed = False
        self._core = Core(settings=settings, on_events=on_events)
        self._thread = threading.Thread(target=self._core.run, name="hive-aioquic", daemon=True)
        _living.add(self)
        self._thread.start()

    def add_endpoint(
        self, sock: socket.socket, *, credentials: Credentials, trust: Trust, hello: Mapping[int, object], bulk: bool
    ) -> int:
        with handed_over(sock):
            self._check_open()
            check_endpoint(sock, trust)
            certificates, key = read_credentials(credentials)
            own = full_hello(hello, engine=self.name, settings=self.settings)
            endpoint = Endpoint(
                number=next(self._numbers),
                port=UdpPort(sock),
                trust=trust,
                hello=own,
                bulk=bulk,
                certificates=certificates,
                key=key,
            )
            self._do(lambda: self._core.add_endpoint(endpoint))
        return endpoint.number

    def rebind(self, endpoint: int, sock: socket.socket) -> None:
        with handed_over(sock):
            self._check_open()
            check_socket(sock)
            port = UdpPort(sock)
            self._do(lambda: self._core.rebind(endpoint, port))

    def connect(self, endpoint: int, remote: Address, *, expected_peer: str | None) -> int:
        self._check_open()
        expected_peer = None if expected_peer is None else name_of(expected_peer)
        attempt = next(self._numbers)
        self._do(lambda: self._core.connect(endpoint, remote, expected_peer, attempt))
        return attempt

    def send(self, connection: int, header: Header, payload: Buffer | None, *, priority: Priority) -> int:
        self._check_open()
        prefix, data = message_of(header, payload)
        stream = SendStream(
            operation=next(self._numbers),
            prefix=prefix,
            payload=data,
            priority=level_of(priority),
        )
        self._do(lambda: self._core.operations.send(connection, stream))
        return stream.operation

    def post(self, peer: str, key: MatchKey, buffer: Buffer | None) -> int:
        self._check_open()
        peer, key, view = name_of(peer), key_of(key), flat(buffer, writable=True)
        post = Post(operation=next(self._numbers), peer=peer, key=key, buffer=view)
        self._do(lambda: self._core.operations.post(post))
        return post.operation

    def cancel(self, operation: int) -> None:
        self._check_open()
        self._core.command(lambda: self._core.operations.cancel(operation))

    def discard(self, *, group: str, before_step: int) -> None:
        self._check_open()
        self._core.command(lambda: self._core.operations.discard(group, before_step))

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
        check_open(process=self._process, closed=self._closed or self._core.over)

    def _do(self, action: Callable[[], None]) -> None:
        """Have the thread do something; raises `MisuseError` where somebody has closed the engine meanwhile."""
        check_taken(self._core.command(action))

    def _abandon_in_child(self) -> None:
        self._core.close_descriptors()


def _abandon_all_in_child() -> None:
    for engine in list(_living):
        with contextlib.suppress(OSError):
            engine._abandon_in_child()


os.register_at_fork(after_in_child=_abandon_all_in_child)
