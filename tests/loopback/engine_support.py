"""Nodes for the engines' tests: an engine with an identity, a socket, and its events to wait for.

Tests run over both engines and over the two mixed pairs: a module that imports `engines` and `pytest_generate_tests`
runs each of its tests once for every pair, or for those that `over` names. The first node of a test is of the pair's
first engine.
"""

from __future__ import annotations

import socket
import subprocess
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, TypeVar

import pytest
from engine_cases import WITH_NATIVE, need
from engine_relay import Fate, Relay
from patience import LIMIT_S

from transport.engine import create_engine
from transport.engine.base import (
    ConnectionDown,
    ConnectionUp,
    EngineSettings,
    Event,
    OperationFailed,
    Priority,
    Received,
    SendDone,
    UnexpectedMessage,
)
from transport.identity import EphemeralIdentity, ephemeral_identity
from transport.identity.credentials import Credentials, Trust
from transport.wire.header import Header, Kind, MatchKey

E = TypeVar("E")
ENDS = (SendDone, Received, OperationFailed)
Test = TypeVar("Test", bound=Callable[..., None])
QUICK = EngineSettings(keep_alive_s=0.2, dead_after_s=1.0, handshake_timeout_s=2.0)
"""Impatient, so that tests of loss are short. Nothing that must live is tested with it: a stall would kill it."""
PAIRS = [("aioquic", "aioquic")]
if WITH_NATIVE:
    PAIRS = [("native", "native"), *PAIRS, ("aioquic", "native"), ("native", "aioquic")]
EACH = PAIRS[:2]
"""For what has one node of ours: the mixed pairs have nothing to add."""
_pair: tuple[str, str] = PAIRS[0]
_nodes = 0


def over(*pairs: tuple[str, str]) -> Callable[[Test], Test]:
    """Run a test over these pairs alone; say why beside it."""

    def mark(test: Test) -> Test:
        test.engine_pairs = pairs  # type: ignore[attr-defined]
        return test

    return mark


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """Every test of a module that imports this runs once for each of its pairs."""
    if "engines" in metafunc.fixturenames:
        pairs = EACH if "victim" in metafunc.fixturenames else getattr(metafunc.function, "engine_pairs", PAIRS)
        pairs = [pair for pair in pairs if pair in PAIRS]
        metafunc.parametrize("engines", pairs, ids="-".join, indirect=True)


@pytest.fixture(autouse=True)
def engines(request: pytest.FixtureRequest) -> tuple[str, str]:
    """Which engines the nodes of this test are of, in the order in which they are made."""
    global _pair, _nodes
    need(*request.param)
    _pair, _nodes = request.param, 0
    return _pair


class Node:
    """One engine with one endpoint."""

    def __init__(
        self,
        name: str,
        *,
        settings: EngineSettings | None = None,
        host: str = "127.0.0.1",
        credentials: Credentials | None = None,
        trust: Trust | None = None,
        job: str = "job",
        bulk: bool = False,
    ) -> None:
        global _nodes
        self.name = name
        self.identity: EphemeralIdentity = ephemeral_identity(name)
        self.credentials = credentials or self.identity.credentials
        self.trust = trust
        self.job = job
        self.events: list[Event] = []
        self.condition = threading.Condition()
        self.engine = create_engine(_pair[min(_nodes, 1)], settings or EngineSettings(), self._on_events)
        _nodes += 1
        self.sock = bound_socket(host)
        self.address = self.sock.getsockname()[:2]
        self.bulk = bulk
        self.endpoint = 0

    def _on_events(self, events: Any) -> None:
        with self.condition:
            self.events.extend(events)
            self.condition.notify_all()

    def serve(self, trust: Trust) -> None:
        hello = {2: self.name, 5: self.job, 6: b"run", 64: 0}
        self.endpoint = self.engine.add_endpoint(
            self.sock, credentials=self.credentials, trust=self.trust or trust, hello=hello, bulk=self.bulk
        )

    def dial(self, other: Node, *, expected: str | None = "", through: Relay | None = None) -> int:
        name = other.name if expected == "" else expected
        address = other.address if through is None else through.address
        return self.engine.connect(self.endpoint, address, expected_peer=name)

    def take(self, kind: type[E], where: Callable[[Any], bool] = lambda event: True, timeout_s: float = LIMIT_S) -> E:
        """The next event of a kind; fails the test with all events when it does not come."""
        end = time.monotonic() + timeout_s
        with self.condition:
            while True:
                found = self.find(kind, where)
                if found is not None:
                    return found
                left = end - time.monotonic()
                assert left > 0, f"{self.name}: no {kind} in {timeout_s} s, but {self.events}"
                self.condition.wait(left)

    def find(self, kind: type[E], where: Callable[[Any], bool] = lambda event: True) -> E | None:
        """The next event of a kind, if it has come."""
        with self.condition:
            for event in self.events:
                if isinstance(event, kind) and where(event):
                    self.events.remove(event)
                    return event
        return None

    def none(self, kind: type[Any], *, within_s: float) -> None:
        """Nothing of the kind comes for a while."""
        end = time.monotonic() + within_s
        with self.condition:
            while (left := end - time.monotonic()) > 0:
                assert not [event for event in self.events if isinstance(event, kind)], self.events
                self.condition.wait(left)

    def send(self, connection: int, payload: Any, *, tag: int = 0, **options: Any) -> int:
        view = None if payload is None else memoryview(payload)
        header = Header(
            kind=options.pop("kind", Kind.POINT_TO_POINT),
            tag=tag,
            length=0 if view is None else len(view),
            group=options.pop("group", ""),
            step=options.pop("step", 0),
            call=options.pop("call", ""),
        )
        options.setdefault("priority", Priority.GRADIENT)
        return self.engine.send(connection, header, view, **options)

    def post(self, peer: str, buffer: Any, *, tag: int = 0) -> int:
        view = None if buffer is None else memoryview(buffer)
        return self.engine.post(peer, key(tag), view)

    def outcome(self, operation: int) -> SendDone | Received | OperationFailed:
        return self.take(ENDS, lambda event: event.operation == operation)  # type: ignore[arg-type]

    def found_outcome(self, operation: int) -> Any:
        """The outcome, if it is there."""
        return self.find(ENDS, lambda event: event.operation == operation)  # type: ignore[arg-type]

    @contextmanager
    def standing_still(self) -> Iterator[None]:
        """Stop the engine's thread, as SIGSTOP would: its socket stays bound and swallows everything."""
        stands, go_on = threading.Event(), threading.Event()

        def stand() -> None:
            stands.set()
            go_on.wait()

        self.engine._core.command(stand)  # type: ignore[attr-defined]
        assert stands.wait(LIMIT_S)
        try:
            yield
        finally:
            go_on.set()

    def held(self, peer: str) -> int:
        """Memory that messages from a peer take which nobody has posted for."""
        core: Any = self.engine._core  # type: ignore[attr-defined]
        return int((core if self.engine.name == "native" else core.operations).held(peer))


class WrappedSocket:
    """A socket of which a subclass changes what it does."""

    def __init__(self, sock: Any) -> None:
        self._sock = sock

    def __getattr__(self, name: str) -> Any:
        return getattr(self._sock, name)

    def sendto(self, data: bytes, address: Any) -> int:
        return int(self._sock.sendto(data, address))


def key(tag: int) -> MatchKey:
    return MatchKey(kind=Kind.POINT_TO_POINT, tag=tag)


def bound_socket(host: str) -> socket.socket:
    sock = socket.socket(socket.AF_INET6 if ":" in host else socket.AF_INET, socket.SOCK_DGRAM)
    sock.bind((host, 0))
    return sock


@contextmanager
def pair(
    *,
    settings: EngineSettings | None = None,
    other_settings: EngineSettings | None = None,
    host: str = "127.0.0.1",
    bulk: bool = False,
    wrap: Callable[[socket.socket], Any] = lambda sock: sock,
) -> Iterator[tuple[Node, Node]]:
    """Nodes "a" and "b" that know each other's pins; not yet connected. `wrap` may change their sockets."""
    a = Node("a", settings=settings, host=host, bulk=bulk)
    b = Node("b", settings=other_settings or settings, host=host, bulk=bulk)
    try:
        trust = Trust(pins={a.identity.pin: "a", b.identity.pin: "b"})
        for node in (a, b):
            node.sock = wrap(node.sock)
            node.serve(trust)
        yield a, b
    finally:
        a.engine.close()
        b.engine.close()


@contextmanager
def connected(**options: Any) -> Iterator[tuple[Node, Node, int, int]]:
    """Nodes "a" and "b" with a connection that a dialled: its number on either side."""
    with pair(**options) as (a, b):
        a.dial(b)
        yield a, b, a.take(ConnectionUp).connection, b.take(ConnectionUp).connection


@contextmanager
def relayed(fate: Fate, **options: Any) -> Iterator[tuple[Node, Node, int, int, Relay]]:
    """Nodes "a" and "b", connected over a path of which the test disposes."""
    with pair(**options) as (a, b):
        relay = Relay(b.address, fate)
        try:
            a.dial(b, through=relay)
            yield a, b, a.take(ConnectionUp).connection, b.take(ConnectionUp).connection, relay
        finally:
            relay.close()


def connected_to_program(node: Node, other: subprocess.Popen[str]) -> int:
    """The connection to a node "b" in a process of its own, which prints its pin and its port and reads ours."""
    assert other.stdin is not None
    assert other.stdout is not None
    pin, port = other.stdout.readline().split()
    node.serve(Trust(pins={bytes.fromhex(pin): "b"}))
    other.stdin.write(node.identity.pin.hex() + "\n")
    other.stdin.flush()
    node.engine.connect(node.endpoint, ("127.0.0.1", int(port)), expected_peer="b")
    return node.take(ConnectionUp).connection


__all__ = [
    "EACH",
    "QUICK",
    "ConnectionDown",
    "ConnectionUp",
    "Node",
    "UnexpectedMessage",
    "WrappedSocket",
    "bound_socket",
    "connected",
    "connected_to_program",
    "engines",
    "key",
    "need",
    "over",
    "pair",
    "pytest_generate_tests",
    "relayed",
]
