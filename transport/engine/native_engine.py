"""The native engine as its callers see it: arguments are checked here, the Rust crate in `native/` does the work.

What Rust tells comes as tuples in batches, on the one thread that calls `on_events`. Who a peer is and whether its
hello is acceptable is decided here, by the code that decides it for the other engine too, so that both refuse the same
peers with the same codes; only new connections wait for that, and so for the GIL. Messages move without it.
In a forked child the engine is inert: its sockets are closed there, and its methods raise, except `close`.
"""

from __future__ import annotations

import atexit
import contextlib
import datetime
import importlib
import itertools
import logging
import os
import socket
import weakref
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from cryptography import x509
from cryptography.hazmat.primitives.serialization import (
    Encoding,
    NoEncryption,
    PrivateFormat,
    load_pem_private_key,
)

from hive_qos.errors import CancelledError, ConnectionLostError, MisuseError, PeerError, TimedOutError, TransportError
from transport.engine.base import (
    DEAD_AFTER_S,
    Address,
    Announced,
    Buffer,
    ConnectionDown,
    ConnectionStatistics,
    ConnectionUp,
    Credentials,
    Engine,
    EngineSettings,
    Event,
    OperationFailed,
    Priority,
    Received,
    SendDone,
    Trust,
)
from transport.identity.verify import verify_peer
from transport.wire.cbor import decode_map
from transport.wire.errors import WireCode, WireError
from transport.wire.header import Header, Kind, MatchKey, encode_header
from transport.wire.hello import (
    APPLICATION_KEY_MIN,
    PROTOCOL_VERSION,
    FrameType,
    HelloKey,
    LimitKey,
    check_hello,
    encode_frame,
)
from transport.wire.varint import VARINT_MAX

LINKS_PER_PEER_MAX = 8
"""Of one name, rank and kind: four lanes, and each dialled again before the loss of the old one was noticed."""
LINKS_PER_NAME_MAX = 512
"""A host's certificate may serve all its ranks: 64 of them, four lanes each and one for bulk, some dialled again."""
NATIVE_DEAD_AFTER_S = 2.0
"""Of a peer whose engine is native too: nothing of Python's holds its acknowledgements up."""

# Built from native/ where cargo is; mypy must not depend on whether it was.
_native: Any = importlib.import_module("hive_qos_native")
_log = logging.getLogger("hive_qos.transport")
_living: weakref.WeakSet[NativeEngine] = weakref.WeakSet()


@dataclass
class _Endpoint:
    sock: socket.socket
    trust: Trust
    hello: Mapping[int, object]
    bulk: bool


@dataclass
class _Link:
    """A connection from its first packet on. `peer` is a guess until `verified`."""

    endpoint: int
    remote: Address
    trust: Trust
    bulk: bool
    attempt: int | None = None
    expected_peer: str | None = None
    peer: str = ""
    verified: bool = False
    hello: Mapping[int, Any] = field(default_factory=dict)
    up: bool = False

    @property
    def identity(self) -> tuple[str, object, bool]:
        """As whom the other end is counted: name, rank (where its hello has one), bulk or not."""
        rank = self.hello.get(APPLICATION_KEY_MIN)
        return self.peer, rank if isinstance(rank, int) else None, self.bulk


class NativeEngine(Engine):
    """See `base` for the rules that this keeps."""

    name = "native"

    def __init__(self, *, settings: EngineSettings, on_events: Callable[[Sequence[Event]], None]) -> None:
        super().__init__(settings=settings, on_events=on_events)
        if settings.congestion not in _native.CONGESTION:
            known = ", ".join(_native.CONGESTION)
            raise MisuseError(f"congestion control {settings.congestion!r} is not known; write one of {known}")
        if not 1200 <= settings.datagram_bytes <= 65000:
            raise MisuseError(f"datagrams of {settings.datagram_bytes} bytes; QUIC needs at least 1200")
        self._process = os.getpid()
        self._numbers = itertools.count(1)
        self._closed = False
        self._endpoints: dict[int, _Endpoint] = {}
        self._links: dict[int, _Link] = {}
        self._posted: dict[int, Buffer] = {}
        self._core = _native.Core(
            deliver=self._deliver,
            unexpected_bytes_max=settings.unexpected_bytes_max,
            message_bytes_max=settings.message_bytes_max,
            streams_max=settings.streams_max,
            keep_alive_s=settings.keep_alive_s,
            dead_after_s=settings.dead_after_s or DEAD_AFTER_S,
            handshake_timeout_s=settings.handshake_timeout_s,
            datagram_bytes=settings.datagram_bytes,
            congestion=settings.congestion,
        )
        _living.add(self)

    def add_endpoint(
        self, sock: socket.socket, *, credentials: Credentials, trust: Trust, hello: Mapping[int, object], bulk: bool
    ) -> int:
        self._check_open()
        if sock.type != socket.SOCK_DGRAM:
            raise MisuseError("an endpoint needs a UDP socket")
        if trust.ca_pem is None and not trust.pins:
            raise MisuseError("an endpoint that trusts nobody can reach nobody; give a CA or pins")
        number = next(self._numbers)
        full_hello = self._hello(hello)
        try:
            certificates = x509.load_pem_x509_certificates(credentials.certificate_chain_pem)
            key = load_pem_private_key(credentials.private_key_pem, password=None)
            sock.setblocking(False)
            # Known before it is served: somebody may dial at once.
            self._endpoints[number] = _Endpoint(sock=sock, trust=trust, hello=full_hello, bulk=bulk)
            self._core.add_endpoint(
                number,
                sock.fileno(),
                [certificate.public_bytes(Encoding.DER) for certificate in certificates],
                key.private_bytes(Encoding.DER, PrivateFormat.PKCS8, NoEncryption()),
                encode_frame(FrameType.HELLO, full_hello),
                bulk,
            )
        except (ValueError, WireError) as error:
            self._endpoints.pop(number, None)
            raise MisuseError(f"credentials cannot be used: {error}") from error
        return number

    def set_trust(self, endpoint: int, trust: Trust) -> None:
        self._check_open()
        if endpoint in self._endpoints:
            self._endpoints[endpoint].trust = trust

    def connect(self, endpoint: int, remote: Address, *, expected_peer: str | None) -> int:
        self._check_open()
        attempt = next(self._numbers)
        name = expected_peer or f"{remote[0]}:{remote[1]}"
        served = self._endpoints.get(endpoint)
        if served is None:
            self._fail_attempt(name, f"there is no endpoint {endpoint}", attempt)
            return attempt
        try:
            host, port, scope = _resolve(served.sock, *remote)
        except OSError as error:
            self._fail_attempt(name, f"{remote[0]} cannot be dialled from this socket: {error}", attempt)
            return attempt
        number = self._core.number()
        self._links[number] = _Link(
            endpoint=endpoint,
            remote=(host, port),
            trust=served.trust,
            bulk=served.bulk,
            attempt=attempt,
            expected_peer=expected_peer,
            peer=name,
        )
        self._core.connect(endpoint, number, host, port, scope, expected_peer)
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
        operation = next(self._numbers)
        # The control stream is level 0, the priorities follow.
        self._core.send(operation, connection, prefix, data if length else None, int(priority) + 1, deadline_s)
        return operation

    def post(self, peer: str, key: MatchKey, buffer: Buffer | None) -> int:
        self._check_open()
        view = _flat(buffer, writable=True)
        operation = next(self._numbers)
        if view is not None:
            self._posted[operation] = view
        fields = (int(key.kind), key.group, key.step, key.bucket, key.attempt, key.epoch, key.tag)
        try:
            self._core.post(operation, peer, fields, view)
        except (OverflowError, TypeError) as error:
            self._posted.pop(operation, None)
            raise MisuseError(f"a key that no message can have: {error}") from error
        return operation

    def cancel(self, operation: int) -> None:
        self._check_open()
        self._core.cancel(operation)

    def discard(self, *, group: str, before_step: int) -> None:
        self._check_open()
        self._core.discard(group, before_step)

    def statistics(self) -> Mapping[int, ConnectionStatistics]:
        self._check_open()
        return _Snapshot({fields[0]: fields for fields in self._core.statistics()})

    def busy_s(self) -> Mapping[int, float]:
        self._check_open()
        return dict(self._core.busy())

    def disconnect(self, connection: int, *, wire_code: int, reason: str) -> None:
        self._check_open()
        self._core.disconnect(connection, wire_code, reason)

    def close(self, *, timeout_s: float = 2.0) -> None:
        if os.getpid() != self._process:
            return
        self._closed = True
        self._core.close(timeout_s)
        for endpoint in self._endpoints.values():
            endpoint.sock.close()

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

    def _fail_attempt(self, name: str, reason: str, attempt: int) -> None:
        self._core.echo(ConnectionDown(None, name, ConnectionLostError(name, reason), attempt))

    def _close_sockets(self) -> None:
        for endpoint in self._endpoints.values():
            endpoint.sock.close()

    # What Rust tells, on the event thread.

    def _deliver(self, told: list[tuple[Any, ...]]) -> None:
        events: list[Event] = []
        for one in told:
            try:
                event = self._event(one)
            except Exception as failure:  # noqa: BLE001 - whatever it is, every operation has to end and the log has to say why
                _log.exception("the transport engine failed; all its connections are lost")
                self._core.broke(repr(failure))
            else:
                if event is not None:
                    events.append(event)
        if not events:
            return
        try:
            self.on_events(events)
        except Exception:  # noqa: BLE001 - the caller's bug must not stop the network; the log has it
            _log.exception("on_events raised")

    def _event(self, told: tuple[Any, ...]) -> Event | None:
        match told:
            case "received", operation, peer, fields, own:
                header = _header(fields)
                posted = self._posted.pop(operation, None)
                payload = posted[: header.length] if own is None and posted is not None else own
                return Received(operation, peer, header, payload)
            case "sent", operation:
                return SendDone(operation)
            case "failed", operation, failure:
                self._posted.pop(operation, None)
                return OperationFailed(operation, _error(failure))
            case "announced", peer, fields:
                return Announced(peer, _header(fields))
            case "accepted", number, endpoint, remote:
                served = self._endpoints[endpoint]
                self._links[number] = _Link(endpoint, remote, served.trust, served.bulk)
            case "chain", number, certificates:
                self._judge(number, certificates)
            case "hello", number, body:
                return self._greeted(number, body)
            case "down", number, peer, failure:
                link = self._links.pop(number)
                error = None if failure is None else _error(failure)
                return ConnectionDown(number if link.up else None, peer, error, link.attempt)
            case "echo", event:
                return event  # type: ignore[no-any-return]  # it was ours
            case _:
                raise AssertionError(f"the native module told {told!r}")
        return None

    def _judge(self, number: int, certificates: Sequence[bytes]) -> None:
        """The handshake is complete: verify the peer, and count its connections from here on."""
        link = self._links.get(number)
        if link is None:
            return
        try:
            found = verify_peer(
                _chain(certificates),
                link.trust,
                now=datetime.datetime.now(datetime.UTC),
                expected_peer=link.expected_peer,
            )
            others = sum(1 for other in self._links.values() if other.verified and other.peer == found.name)
            link.peer, link.verified = found.name, True
            if others >= LINKS_PER_NAME_MAX:
                raise WireError(WireCode.TOO_MANY_CONNECTIONS, f"{others} connections between us already")
        except WireError as error:
            self._core.refuse(number, error.wire_code, error.reason)
        else:
            self._core.verified(number, found.name)

    def _greeted(self, number: int, body: bytes) -> Event | None:
        link = self._links.get(number)
        if link is None:
            return None
        own = self._endpoints[link.endpoint].hello
        try:
            hello = decode_map(body)
            check_hello(hello)
            _check_job(own, hello)
            link.hello = hello
            others = sum(1 for other in self._links.values() if other.up and other.identity == link.identity)
            if others >= LINKS_PER_PEER_MAX:
                raise WireError(WireCode.TOO_MANY_CONNECTIONS, f"{others} connections between us already")
        except WireError as error:
            self._core.refuse(number, error.wire_code, error.reason)
            return None
        rank = link.identity[1]
        accepted = min(int(hello.get(HelloKey.LIMITS, {}).get(LimitKey.MESSAGE_BYTES, VARINT_MAX)), VARINT_MAX)
        account = "" if rank is None else str(rank)
        both_native = self.settings.dead_after_s is None and hello.get(HelloKey.ENGINE) == self.name
        patience_s = NATIVE_DEAD_AFTER_S if both_native else None
        if not self._core.begin(number, account, str(hello.get(HelloKey.JOB, "")), accepted, patience_s):
            return None
        link.up = True
        return ConnectionUp(number, link.endpoint, link.peer, link.remote, hello, link.attempt)


class _Snapshot(Mapping[int, ConnectionStatistics]):
    """Statistics by connection, made when they are looked at: a thousand connections are read ten times a second."""

    def __init__(self, told: dict[int, tuple[Any, ...]]) -> None:
        self._told = told

    def __getitem__(self, connection: int) -> ConnectionStatistics:
        return ConnectionStatistics(*self._told[connection][1:])

    def __iter__(self) -> Iterator[int]:
        return iter(self._told)

    def __len__(self) -> int:
        return len(self._told)


def _header(fields: tuple[Any, ...]) -> Header:
    return Header(Kind(fields[0]), *fields[1:])


def _error(failure: tuple[Any, ...]) -> TransportError:
    match failure:
        case "lost", peer, reason:
            return ConnectionLostError(peer, reason)
        case "peer", peer, reason, code:
            return PeerError(peer, reason, wire_code=code)
        case "timed-out", peer, timeout_s, done, total:
            return TimedOutError(f"sending to {peer}", timeout_s=timeout_s, bytes_done=done, bytes_total=total)
        case "cancelled", reason:
            return CancelledError(reason)
        case _:
            raise AssertionError(f"the native module failed with {failure!r}")


def _chain(certificates: Sequence[bytes]) -> list[x509.Certificate]:
    try:
        return [x509.load_der_x509_certificate(one) for one in certificates]
    except ValueError as error:
        raise WireError(WireCode.CERTIFICATE_UNTRUSTED, f"its certificate cannot be read: {error}") from error


def _check_job(own: Mapping[int, object], theirs: Mapping[int, Any]) -> None:
    """Where this side says of which job and run it is, the other must be of the same."""
    job = own.get(HelloKey.JOB)
    if job and job != theirs.get(HelloKey.JOB):
        reason = f"is of job {theirs.get(HelloKey.JOB)!r}, and this is job {job!r}"
        raise WireError(WireCode.JOB_MISMATCH, reason)
    run = own.get(HelloKey.RUN)
    if run and run != theirs.get(HelloKey.RUN):
        raise WireError(WireCode.JOB_MISMATCH, f"is of another run of job {job!r}")


def _resolve(sock: socket.socket, host: str, port: int) -> tuple[str, int, int]:
    """A literal address as this socket dials it: host, port and scope.

    Raises:
        OSError: not a literal address, or of the other family.
    """
    flags = socket.AI_NUMERICHOST | (socket.AI_V4MAPPED if sock.family == socket.AF_INET6 else 0)
    found: Any = socket.getaddrinfo(host, port, family=sock.family, type=socket.SOCK_DGRAM, flags=flags)[0][4]
    scope = found[3] if len(found) > 2 else 0
    return found[0].partition("%")[0], found[1], scope


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
            engine._close_sockets()


def _close_all_at_exit() -> None:
    """End every engine while there is an interpreter: its event thread must not outlive that."""
    for engine in list(_living):
        engine.close(timeout_s=0.5)


os.register_at_fork(after_in_child=_abandon_all_in_child)
atexit.register(_close_all_at_exit)
