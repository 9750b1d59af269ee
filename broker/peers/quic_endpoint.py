"""The engine as brokers use it: one endpoint that listens and dials, one kind of message, events in a queue.

Events come in the engine's thread, which only queues them and wakes the daemon's loop. An engine that has ended by
itself makes every call here come to nothing; `failed` is true then.
"""

from __future__ import annotations

import socket
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack, suppress

from broker.events.log import Log
from broker.peers.identity import broker_identity, certified_addresses
from broker.peers.listening import open_socket, split_listen
from broker.peers.protocol import wire
from broker.policy.types import PeersPolicy
from hive_qos.errors import ConfigurationError, MisuseError
from transport.engine import create_engine, find_engine
from transport.engine.base import (
    ConnectionDown,
    ConnectionStatistics,
    ConnectionUp,
    Engine,
    EngineSettings,
    Event,
    OperationFailed,
    Priority,
    Received,
)
from transport.identity import ConfiguredIdentity
from transport.wire.control_frames import BROKER_ALPN, HelloKey
from transport.wire.error_codes import WireCode
from transport.wire.header import Header, Kind

GROUP = "broker"
"""Of the match key, which is the same for all messages of the protocol."""
MESSAGE_VALID_S = 2.0
"""A message that could not be sent for so long is out of date."""
HANDSHAKE_S = 4.0
"""Where nobody answers within this there is no broker: five times the round trip of a satellite, lost packets too."""
SETTINGS = EngineSettings(
    unexpected_bytes_max=64 * 1024,
    message_bytes_max=wire.MESSAGE_BYTES_MAX,
    streams_max=32,
    handshake_timeout_s=HANDSHAKE_S,
    datagram_bytes=1200,
    protocol=BROKER_ALPN,
)
"""The bounds of docs/reference/broker-protocol.md. 32 streams are more than are read of a peer at once; every path
takes 1200 bytes."""
_KEY = Header(kind=Kind.CONTROL, group=GROUP).key
_REPORTED = (ConnectionUp, ConnectionDown, Received, OperationFailed)


def load_engine(engine: str) -> None:
    """Import what a carrier with this engine needs, before there is one.

    Raises:
        ConfigurationError: there is no such engine here.
    """
    find_engine(engine)


class QuicEndpoint:
    """See above. All methods belong to the daemon's thread.

    Args:
        run: this start of the broker, for the hello.
        port: where others listen; where this side does, unless given.

    Raises:
        ConfigurationError: a file of `[peers]` cannot be used, or the address cannot be bound.
    """

    def __init__(
        self,
        settings: PeersPolicy,
        *,
        run: bytes,
        wake: Callable[[], None],
        log: Log,
        mark: Callable[[socket.socket], None] | None,
        port: int | None,
    ) -> None:
        self._settings, self._run, self._wake, self._log, self._mark = settings, run, wake, log, mark
        self._closed = False
        self._port = port or split_listen(settings.listen)[1]
        self._open(broker_identity(settings))

    def renew(self, identity: ConfiguredIdentity) -> None:
        """Say goodbye to everybody, and be somebody else from here on: numbers of connections begin anew.

        Raises:
            ConfigurationError: the address cannot be bound any more; then the engine has `failed`.
        """
        self._engine.close()
        self._open(identity)

    def _open(self, identity: ConfiguredIdentity) -> None:
        self.addresses = certified_addresses(identity)
        self._events: deque[Event] = deque()  # of this engine: one that was closed before has its own
        self._sent: deque[tuple[int, float]] = deque()  # operations, and when each was sent
        with ExitStack() as undo:
            sock = undo.enter_context(open_socket(self._settings.listen))
            if self._mark is not None:
                self._mark(sock)
            self._engine = self._start(self._settings.engine, self._events)
            undo.callback(self._engine.close)
            self._endpoint = self._engine.add_endpoint(
                sock,
                credentials=identity.credentials,
                trust=identity.trust,
                hello={HelloKey.NODE: identity.node, wire.HELLO_RUN: self._run},
                bulk=False,
            )
            undo.pop_all()  # the engine's from here on
        self._log.info("peers-listening", listen=self._settings.listen, node=identity.node, engine=self._engine.name)

    @property
    def failed(self) -> bool:
        """The engine has ended, and nobody closed it."""
        try:
            self._engine.statistics()
        except MisuseError:
            return not self._closed
        return False

    def take(self) -> Event | None:
        """The next event, if one waits."""
        return self._events.popleft() if self._events else None

    def dial(self, address: str) -> int | None:
        """Begin an attempt; its number."""
        with suppress(MisuseError):
            return self._engine.connect(self._endpoint, (address, self._port), expected_peer=None)
        return None

    def send(self, connection: int, message: wire.Message, *, now_s: float) -> None:
        """Send a message before everything else that goes to that peer."""
        payload = wire.write(message)
        header = Header(kind=_KEY.kind, group=_KEY.group, length=len(payload))
        with suppress(MisuseError):
            operation = self._engine.send(connection, header, memoryview(payload), priority=Priority.CONTROL)
            self._sent.append((operation, now_s))

    def cancel_late(self, *, now_s: float) -> None:
        """Cancel the messages that could not be sent for `MESSAGE_VALID_S`; call it every tick."""
        while self._sent and now_s - self._sent[0][1] >= MESSAGE_VALID_S:
            with suppress(MisuseError):
                self._engine.cancel(self._sent.popleft()[0])

    def post(self, peer: str) -> int | None:
        """Take one more message of a peer; the operation that ends with it."""
        with suppress(MisuseError):
            return self._engine.post(peer, _KEY, None)
        return None

    def disconnect(self, connection: int, code: WireCode, reason: str) -> None:
        """Close a connection, with the reason for the peer."""
        with suppress(MisuseError):
            self._engine.disconnect(connection, wire_code=code, reason=reason)

    def measured(self) -> Mapping[int, ConnectionStatistics]:
        """What the connections measured, at most 100 ms ago."""
        with suppress(MisuseError):
            return self._engine.statistics()
        return {}

    def close(self) -> None:
        """Say goodbye to everybody and end the engine. Idempotent."""
        if not self._closed:
            self._closed = True
            self._engine.close()

    def _start(self, engine: str, waiting: deque[Event]) -> Engine:
        def on_events(events: Sequence[Event]) -> None:
            reported = [event for event in events if isinstance(event, _REPORTED)]
            if reported:
                waiting.extend(reported)
                self._wake()

        try:
            return create_engine(engine, SETTINGS, on_events)
        except ConfigurationError as error:
            raise ConfigurationError("peers.engine", error.value, error.reason) from error
