"""An engine in memory: the same interface, no sockets, no time. A test double, and never more than that.

Messages are delivered within `send`, unless the test holds the way between two engines; events are handed over by a
thread of each engine, as the interface demands. `kill` makes an engine fall silent, `cut` breaks one connection.
"""

from __future__ import annotations

import hashlib
import itertools
import queue
import threading
from collections import defaultdict, deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from hive_qos.errors import CancelledError, ConnectionLostError, PeerError
from transport.bootstrap.connect import Factories
from transport.bootstrap.rank_info import Identity
from transport.engine.base import (
    Address,
    Buffer,
    ConnectionDown,
    ConnectionStatistics,
    ConnectionUp,
    Engine,
    EngineSettings,
    Event,
    OperationFailed,
    Priority,
    Received,
    SendDone,
    UnexpectedMessage,
)
from transport.identity.credentials import Credentials, Trust
from transport.mesh.sockets import Sockets
from transport.settings import Settings
from transport.wire.header import Header, MatchKey


def statistics(**fields: Any) -> ConnectionStatistics:
    """Of a connection on which nothing was measured but what is given."""
    known = dict.fromkeys(ConnectionStatistics.__dataclass_fields__, 0)
    return ConnectionStatistics(**{**known, "peer": "p", "remote": ("", 0), **fields})


class FakeSocket:
    """Stands where a bound UDP socket would."""

    def __init__(self, port: int) -> None:
        self.port = port
        self.closed = False

    def getsockname(self) -> Address:
        return ("127.0.0.1", self.port)

    def dup(self) -> FakeSocket:
        return self

    def close(self) -> None:
        self.closed = True


@dataclass
class Way:
    """A connection as both its ends see it."""

    ends: tuple[MemoryEngine, MemoryEngine]
    alive: bool = True


@dataclass
class Waiting:
    """A message on a way that the test holds."""

    way: Way
    sender: MemoryEngine
    receiver: MemoryEngine
    operation: int
    header: Header
    payload: Buffer | None


@dataclass
class MemoryNetwork:
    """What engines in one test have in common."""

    lock: threading.RLock = field(default_factory=threading.RLock)
    served: dict[int, tuple[MemoryEngine, int]] = field(default_factory=dict)
    engines: dict[str, MemoryEngine] = field(default_factory=dict)
    held: set[tuple[str, str]] = field(default_factory=set)
    waiting: list[Waiting] = field(default_factory=list)
    sent: list[tuple[str, str, Header]] = field(default_factory=list)
    bytes_waiting_max: int = 0
    ports: Any = field(default_factory=lambda: itertools.count(1000))

    def factories(self) -> Factories:
        """What `Runtime.connect` needs to run on this network."""

        def make_engine(
            _name: str, settings: EngineSettings, on_events: Callable[[Sequence[Event]], None]
        ) -> MemoryEngine:
            return MemoryEngine(self, settings=settings, on_events=on_events)

        def open_sockets(_settings: Settings, _hint: str) -> list[Sockets]:
            compute, bulk = FakeSocket(next(self.ports)), FakeSocket(next(self.ports))
            return [Sockets(compute, bulk, "127.0.0.1")]  # type: ignore[arg-type]

        def own_identity(_settings: Settings, rank: int) -> Identity:
            node = f"rank-{rank}"
            pin = hashlib.sha256(node.encode()).digest()
            return Identity(node, Credentials(node.encode(), b""), None, pin)

        return Factories(
            check_engine=lambda _name: None,
            make_engine=make_engine,
            open_sockets=open_sockets,
            own_identity=own_identity,
        )

    def kill(self, name: str) -> None:
        """Silence an engine: its peers lose their connections, and nobody can dial it."""
        with self.lock:
            victim = self.engines[name]
            victim.dead = True
            for way in [way for way in victim.ways.values() if way.alive]:
                self._break(way, "nothing heard", silent=True)

    def cut(self, one: str, other: str) -> None:
        """Break every connection between two engines; they may dial again."""
        with self.lock:
            for way in {id(way): way for way in self.engines[one].ways.values()}.values():
                if way.alive and self.engines[other] in way.ends:
                    self._break(way, "cut")

    def hold(self, sender: str, receiver: str) -> None:
        """Keep messages on this way until `release`."""
        with self.lock:
            self.held.add((sender, receiver))

    def release(self, sender: str, receiver: str) -> None:
        """Deliver what was held, in order."""
        with self.lock:
            self.held.discard((sender, receiver))
            ready = [one for one in self.waiting if (one.sender.node, one.receiver.node) == (sender, receiver)]
            self.waiting = [one for one in self.waiting if one not in ready]
            for one in ready:
                one.receiver.deliver(one.sender, one.header, one.payload)
                one.sender.done(one.operation)

    def _break(self, way: Way, reason: str, *, silent: bool = False) -> None:
        way.alive = False
        lost = [one for one in self.waiting if one.way is way]
        self.waiting = [one for one in self.waiting if one.way is not way]
        for one in lost:
            one.sender.failed(one.operation, ConnectionLostError(one.receiver.node, reason))
        for engine, other in (way.ends, way.ends[::-1]):
            for connection, mine in engine.ways.items():
                if mine is way:
                    error = ConnectionLostError(other.node, reason)
                    engine.put(ConnectionDown(connection, other.node, error, silent=silent))


class MemoryEngine(Engine):
    """See the module."""

    name = "memory"

    def __init__(
        self, network: MemoryNetwork, *, settings: EngineSettings, on_events: Callable[[Sequence[Event]], None]
    ) -> None:
        super().__init__(settings=settings, on_events=on_events)
        self.network = network
        self.node = ""
        self.dead = False
        self.ways: dict[int, Way] = {}
        self.trust: dict[int, Trust] = {}
        self._numbers = itertools.count(1)
        self._endpoints: dict[int, dict[int, object]] = {}
        self._open: set[int] = set()
        self._posts: dict[tuple[str, MatchKey], deque[tuple[int, Buffer | None]]] = defaultdict(deque)
        self._stored: dict[tuple[str, MatchKey], deque[tuple[Header, bytes]]] = defaultdict(deque)
        self._floors: dict[str, int] = {}
        self._events: queue.SimpleQueue[Event | None] = queue.SimpleQueue()
        self._thread = threading.Thread(target=self._dispatch, name="memory-engine", daemon=True)
        self._thread.start()

    def add_endpoint(
        self, sock: Any, *, credentials: Credentials, trust: Trust, hello: Mapping[int, object], bulk: bool
    ) -> int:
        with self.network.lock:
            endpoint = next(self._numbers)
            self.node = credentials.certificate_chain_pem.decode()
            self._endpoints[endpoint] = dict(hello)
            self.trust[endpoint] = trust
            self.network.served[sock.port] = (self, endpoint)
            self.network.engines[self.node] = self
            return endpoint

    def rebind(self, endpoint: int, sock: Any) -> None:
        with self.network.lock:
            for port in [port for port, served in self.network.served.items() if served == (self, endpoint)]:
                del self.network.served[port]
            self.network.served[sock.port] = (self, endpoint)

    def connect(self, endpoint: int, remote: Address, *, expected_peer: str | None) -> int:
        with self.network.lock:
            attempt = next(self._numbers)
            target, theirs = self.network.served.get(remote[1], (None, 0))
            if target is None or target.dead or self.dead:
                lost = ConnectionLostError(expected_peer or "?", "nobody answers")
                self.put(ConnectionDown(None, expected_peer or "?", lost, attempt))
                return attempt
            way = Way((self, target))
            for engine, serving, other, hello, tried in (
                (self, endpoint, target, target._endpoints[theirs], attempt),
                (target, theirs, self, self._endpoints[endpoint], None),
            ):
                connection = next(engine._numbers)
                engine.ways[connection] = way
                engine.put(ConnectionUp(connection, serving, other.node, remote, hello, tried))
            return attempt

    def send(self, connection: int, header: Header, payload: Buffer | None, *, priority: Priority) -> int:
        with self.network.lock:
            operation = next(self._numbers)
            assert header.length == (0 if payload is None else payload.nbytes)
            self._open.add(operation)
            way = self.ways[connection]
            target = way.ends[1] if way.ends[0] is self else way.ends[0]
            if not way.alive or self.dead:
                self.failed(operation, ConnectionLostError(target.node, "the connection is gone"))
                return operation
            self.network.sent.append((self.node, target.node, header))
            if (self.node, target.node) in self.network.held:
                self.network.waiting.append(Waiting(way, self, target, operation, header, payload))
                return operation
            target.deliver(self, header, payload)
            self.done(operation)
            return operation

    def post(self, peer: str, key: MatchKey, buffer: Buffer | None) -> int:
        with self.network.lock:
            operation = next(self._numbers)
            self._open.add(operation)
            stored = self._stored.get((peer, key))
            if stored:
                header, payload = stored.popleft()
                self._receive(operation, peer, header, payload, buffer)
            else:
                self._posts[peer, key].append((operation, buffer))
            return operation

    def cancel(self, operation: int) -> None:
        with self.network.lock:
            for posts in self._posts.values():
                for one in tuple(posts):
                    if one[0] == operation:
                        posts.remove(one)
            self.network.waiting = [
                one for one in self.network.waiting if (one.sender, one.operation) != (self, operation)
            ]
            self.failed(operation, CancelledError("cancelled"))

    def discard(self, *, group: str, before_step: int) -> None:
        with self.network.lock:
            self._floors[group] = max(before_step, self._floors.get(group, 0)) if before_step else 0
            for peer, key in tuple(self._stored):
                if key.group == group and key.step < before_step:
                    del self._stored[peer, key]

    def statistics(self) -> Mapping[int, ConnectionStatistics]:
        return {}

    def disconnect(self, connection: int, *, wire_code: int, reason: str) -> None:
        with self.network.lock:
            self.network._break(self.ways[connection], reason)

    def close(self, *, timeout_s: float = 2.0) -> None:
        with self.network.lock:
            for way in [way for way in self.ways.values() if way.alive]:
                self.network._break(way, "closed")
            self.dead = True
            for operation in tuple(self._open):
                self.failed(operation, CancelledError("the engine was closed"))
        self._events.put(None)
        self._thread.join(timeout_s)

    def stored_bytes(self) -> int:
        """What waits for nobody knows whom."""
        return sum(len(payload) for messages in self._stored.values() for _, payload in messages)

    def deliver(self, sender: MemoryEngine, header: Header, payload: Buffer | None) -> None:
        """A message arrives."""
        key = (sender.node, header.key)
        if header.step < self._floors.get(header.group, 0):
            return
        content = b"" if payload is None else bytes(payload)
        posts = self._posts.get(key)
        if posts:
            operation, buffer = posts.popleft()
            self._receive(operation, sender.node, header, content, buffer)
        else:
            self._stored[key].append((header, content))
            self.network.bytes_waiting_max = max(self.network.bytes_waiting_max, self.stored_bytes())
            self.put(UnexpectedMessage(sender.node, header))

    def done(self, operation: int) -> None:
        if operation in self._open:
            self._open.discard(operation)
            self.put(SendDone(operation))

    def failed(self, operation: int, error: Any) -> None:
        if operation in self._open:
            self._open.discard(operation)
            self.put(OperationFailed(operation, error))

    def put(self, event: Event) -> None:
        self._events.put(event)

    def _receive(self, operation: int, peer: str, header: Header, content: bytes, buffer: Buffer | None) -> None:
        if buffer is not None and len(content) > buffer.nbytes:
            if header.call:
                self.put(UnexpectedMessage(peer, header))
            error = PeerError(peer, f"sent {len(content)} bytes into a buffer of {buffer.nbytes}")
            self.failed(operation, error)
            return
        target = memoryview(bytearray(content)) if buffer is None else buffer[: len(content)]
        target[:] = content
        self._open.discard(operation)
        self.put(Received(operation, peer, header, target, 0))

    def _dispatch(self) -> None:
        while (event := self._events.get()) is not None:
            if not self.dead or isinstance(event, OperationFailed):
                self.on_events([event])
