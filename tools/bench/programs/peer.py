"""An engine of the transport as a benchmark uses it: a compute and a bulk endpoint, and operations to wait for."""

from __future__ import annotations

import queue
import socket
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TypeAlias

from transport.engine import create_engine
from transport.engine.base import (
    ConnectionDown,
    ConnectionUp,
    Engine,
    EngineSettings,
    Event,
    OperationFailed,
    Priority,
    Received,
    SendDone,
)
from transport.identity import load_identity
from transport.wire.header import Header, Kind, MatchKey

WAIT_S_MAX = 30.0
"""Nothing of a benchmark is silent for longer; what is, is reported as failed, before the controller gives up."""

NAME_KEY, RANK_KEY = 2, 64
"""Of the hello (docs/reference/wire.md)."""

Outcome: TypeAlias = SendDone | Received | OperationFailed


class Peer:
    """One side's engine. Events are taken by one thread, in `outcome` and `connect`."""

    def __init__(
        self,
        *,
        name: str,
        other: str,
        address: str,
        folder: Path,
        engine: str,
        congestion: str,
        datagram_bytes: int,
    ) -> None:
        self.other, self._address, self._folder = other, address, folder
        self._events: queue.SimpleQueue[Sequence[Event]] = queue.SimpleQueue()
        self._outcomes: dict[int, Outcome] = {}
        self._watched: dict[int, Callable[[Outcome], None]] = {}
        self.up: list[ConnectionUp] = []
        self.down: list[ConnectionDown] = []
        settings = EngineSettings(congestion=congestion, datagram_bytes=datagram_bytes)
        self.engine: Engine = create_engine(engine, settings, self._events.put)
        made = {bulk: self.add_endpoint(name, bulk=bulk) for bulk in (False, True)}
        self._endpoints = {bulk: endpoint for bulk, (endpoint, _) in made.items()}
        self.ports = {bulk: port for bulk, (_, port) in made.items()}

    def add_endpoint(self, name: str, *, bulk: bool, rank: int = 0) -> tuple[int, int]:
        """Serve one more socket as `name` and `rank`; gives the endpoint and its port."""
        certificate, key = self._folder / f"{name}.crt", self._folder / f"{name}.key"
        identity = load_identity(ca=self._folder / "ca" / "ca.crt", certificate=certificate, key=key)
        sock = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
        sock.setblocking(False)
        sock.bind((self._address, 0))
        port: int = sock.getsockname()[1]
        hello = {NAME_KEY: name, RANK_KEY: rank}
        endpoint = self.engine.add_endpoint(
            sock, credentials=identity.credentials, trust=identity.trust, hello=hello, bulk=bulk
        )
        return endpoint, port

    def dial(self, address: str, port: int, *, bulk: bool) -> int:
        """Start a connection; gives the attempt."""
        return self.engine.connect(self._endpoints[bulk], (address, port), expected_peer=self.other)

    def connection(self, *, bulk: bool, attempt: int | None = None) -> int:
        """Wait for a connection of the compute or bulk endpoint to be up (the one of `attempt`, where given)."""
        endpoint = self._endpoints[bulk]
        end_s = time.monotonic() + WAIT_S_MAX
        while True:
            for up in self.up:
                if up.endpoint == endpoint and (attempt is None or up.attempt == attempt):
                    return up.connection
            for down in self.down:
                if attempt is not None and down.attempt == attempt:
                    raise RuntimeError(f"no connection: {down.error}")
            self.pump(end_s)

    def send(self, connection: int, key: MatchKey, payload: memoryview | None, *, priority: Priority) -> int:
        """Send one message."""
        length = 0 if payload is None else len(payload)
        header = Header(kind=key.kind, group=key.group, step=key.step, tag=key.tag, length=length)
        return self.engine.send(connection, header, payload, priority=priority)

    def watch(self, operation: int, then: Callable[[Outcome], None]) -> None:
        """Call `then` with the operation's outcome, from within whatever waits."""
        if operation in self._outcomes:
            then(self._outcomes.pop(operation))
        else:
            self._watched[operation] = then

    def outcome(self, operation: int) -> Outcome:
        """Wait for one operation.

        Raises:
            RuntimeError: it failed, or did not end.
        """
        end_s = time.monotonic() + WAIT_S_MAX
        while operation not in self._outcomes:
            self.pump(end_s)
        found = self._outcomes.pop(operation)
        if isinstance(found, OperationFailed):
            raise RuntimeError(f"operation failed: {found.error}")
        return found

    def pump(self, end_s: float) -> None:
        """Take one batch of events, or raise when the time is over."""
        if not self.pump_within(end_s - time.monotonic()):
            raise RuntimeError("nothing came within the time")

    def pump_for(self, seconds: float) -> None:
        """Take what comes for so long."""
        end_s = time.monotonic() + seconds
        while (left_s := end_s - time.monotonic()) > 0:
            self.pump_within(left_s)

    def pump_within(self, seconds: float) -> bool:
        """Take one batch of events, if one comes within the time."""
        try:
            batch = self._events.get(timeout=max(0.0, seconds))
        except queue.Empty:
            return False
        for event in batch:
            if isinstance(event, ConnectionUp):
                self.up.append(event)
            elif isinstance(event, ConnectionDown):
                self.down.append(event)
            elif isinstance(event, SendDone | Received | OperationFailed):
                then = self._watched.pop(event.operation, None)
                if then is None:
                    self._outcomes[event.operation] = event
                else:
                    then(event)
        return True


def flow_key(flow: int, step: int) -> MatchKey:
    """Of message number `step` of a flow."""
    return MatchKey(kind=Kind.POINT_TO_POINT, group=f"flow-{flow}", step=step)


def end_key(flow: int) -> MatchKey:
    """Of the message without payload that ends a flow."""
    return MatchKey(kind=Kind.CONTROL, group=f"flow-{flow}")
