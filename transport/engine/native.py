"""The native engine as its callers see it: arguments are checked here, the Rust crate in `native/` does the work.

What Rust tells comes as tuples in batches, on the one thread that calls `on_events`. Who a peer is and whether its
hello is acceptable is decided here, by the code that decides it for the other engine too, so that both refuse the same
peers with the same codes; only new connections wait for that, and so for the GIL. Messages move without it.
In a forked child the engine is inert: its sockets are closed there, and its methods raise, except `close`.
"""

from __future__ import annotations

import atexit
import contextlib
import importlib
import itertools
import logging
import os
import socket
import weakref
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from cryptography import x509
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat

from hive_qos.errors import CancelledError, ConnectionLostError, MisuseError, PeerError, TransportError
from transport.engine import admission
from transport.engine.base import (
    DEAD_AFTER_S,
    Address,
    Buffer,
    CollectiveEnded,
    ConnectionDown,
    ConnectionStatistics,
    ConnectionUp,
    Engine,
    EngineSettings,
    Event,
    Hold,
    OperationFailed,
    Priority,
    Received,
    SendDone,
    StepFailed,
    UnexpectedMessage,
)
from transport.engine.native_collectives import NativeCollectives
from transport.engine.validation import (
    called,
    check_endpoint,
    check_files,
    check_open,
    check_settings,
    check_socket,
    check_taken,
    dialled,
    endpoint_numbered,
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
from transport.wire.cbor import decode_map
from transport.wire.control_frames import FrameType, HelloKey, encode_frame
from transport.wire.error_codes import WireCode, WireError
from transport.wire.header import Header, Kind, MatchKey, encode_header, header_of

REPLACED_MAX = 16
"""Sockets that were replaced stay open for the other threads' sake: so many of each endpoint, the newest."""
NATIVE_DEAD_AFTER_S = 2.0
"""Of a peer whose engine is native too: nothing of Python's holds its acknowledgements up."""

# Built from native/ where cargo is; mypy must not depend on whether it was.
_native: Any = importlib.import_module("hive_qos_native")
_log = logging.getLogger("hive_qos.transport")
_living: weakref.WeakSet[NativeEngine] = weakref.WeakSet()


@dataclass
class _Endpoint:
    """`sock` is the one in use; `sockets` are all that are closed at the end."""

    sock: socket.socket
    trust: Trust
    hello: Mapping[int, object]
    bulk: bool
    sockets: list[socket.socket]


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
    addresses: frozenset[str] = frozenset()
    verified: bool = False
    identity: admission.Identity | None = None
    up: bool = False


class NativeEngine(Engine):
    """See `base` for the rules that this keeps."""

    name = "native"

    def __init__(self, *, settings: EngineSettings, on_events: Callable[[Sequence[Event]], None]) -> None:
        super().__init__(settings=settings, on_events=on_events)
        check_settings(settings, engine=self.name, controllers=_native.CONGESTION)
        self._process = os.getpid()
        self._numbers = itertools.count(1)
        self._closed = False
        self._endpoints: dict[int, _Endpoint] = {}
        self._links: dict[int, _Link] = {}
        self._posted: dict[int, Buffer] = {}
        try:
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
                protocol=settings.protocol,
                shared_memory=settings.shared_memory,
            )
        except OSError as error:
            check_files(error)
            raise
        self.collectives = NativeCollectives(self._core.collectives, numbers=self._numbers, check_open=self._check_open)
        _living.add(self)

    def add_endpoint(
        self, sock: socket.socket, *, credentials: Credentials, trust: Trust, hello: Mapping[int, object], bulk: bool
    ) -> int:
        with handed_over(sock):
            self._check_open()
            check_endpoint(sock, trust)
            certificates, key = read_credentials(credentials)
            place = self._core.meeting_place
            said = hello if place is None else {**hello, HelloKey.MEETING_PLACE: place}
            own = full_hello(said, engine=self.name, settings=self.settings)
            number = next(self._numbers)
            sock.setblocking(False)
            # Known before it is served: somebody may dial at once, and `close` closes whatever was taken until then.
            self._endpoints[number] = _Endpoint(sock=sock, trust=trust, hello=own, bulk=bulk, sockets=[sock])
            try:
                taken = self._core.add_endpoint(
                    number,
                    sock.fileno(),
                    [certificate.public_bytes(Encoding.DER) for certificate in certificates],
                    key.private_bytes(Encoding.DER, PrivateFormat.PKCS8, NoEncryption()),
                    encode_frame(FrameType.HELLO, own),
                    bulk,
                )
            except (OSError, ValueError) as error:
                del self._endpoints[number]
                check_files(error)
                what = "credentials" if isinstance(error, ValueError) else "this socket"
                raise MisuseError(f"{what} cannot be used: {error}") from error
            check_taken(taken)
        return number

    def rebind(self, endpoint: int, sock: socket.socket) -> None:
        with handed_over(sock):
            self._check_open()
            check_socket(sock)
            served = self._endpoints.get(endpoint)
            if served is None:
                raise MisuseError(f"endpoint {endpoint} cannot go on with this socket")
            sock.setblocking(False)
            ours = [(number, link) for number, link in list(self._links.items()) if link.endpoint == endpoint]
            moving = [number for number, link in ours if link.up and link.attempt is not None]
            served.sockets.append(sock)  # before it is taken, as above
            try:
                taken = self._core.rebind(endpoint, sock.fileno(), moving)
            except OSError as error:
                served.sockets.remove(sock)
                raise MisuseError(f"endpoint {endpoint} cannot go on with this socket: {error}") from error
            check_taken(taken)
        served.sock = sock
        while len(served.sockets) > REPLACED_MAX + 1:
            served.sockets.pop(0).close()
        for number, _ in ours:
            if number not in moving:
                self._core.disconnect(number, WireCode.NO_ERROR, "the address of this side has changed")

    def connect(self, endpoint: int, remote: Address, *, expected_peer: str | None) -> int:
        self._check_open()
        expected_peer = None if expected_peer is None else name_of(expected_peer)
        attempt = next(self._numbers)
        name = called(remote, expected_peer)
        try:
            served = endpoint_numbered(self._endpoints, endpoint, peer=name)
            address = dialled(served.sock, remote, peer=name)
        except ConnectionLostError as error:
            check_taken(self._core.echo(ConnectionDown(None, name, error, attempt)))
            return attempt
        host, port = address[0].partition("%")[0], address[1]
        scope = address[3] if len(address) > 2 else 0
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
        taken = False
        try:
            taken = self._core.connect(endpoint, number, host, port, scope, expected_peer)
        finally:
            if not taken:
                del self._links[number]
        check_taken(taken)
        return attempt

    def send(self, connection: int, header: Header, payload: Buffer | None, *, priority: Priority) -> int:
        self._check_open()
        prefix, data = message_of(header, payload, encode=_encoded)
        operation = next(self._numbers)
        check_taken(self._core.send(operation, connection, prefix, data, level_of(priority)))
        return operation

    def post(self, peer: str, key: MatchKey, buffer: Buffer | None) -> int:
        self._check_open()
        peer, key, view = name_of(peer), key_of(key), flat(buffer, writable=True)
        operation = next(self._numbers)
        if view is not None:
            self._posted[operation] = view
        fields = (int(key.kind), key.group, key.step, key.bucket, key.tag)
        taken = False
        try:
            taken = self._core.post(operation, peer, fields, view)
        finally:
            if not taken:
                self._posted.pop(operation, None)
        check_taken(taken)
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

    def disconnect(self, connection: int, *, wire_code: int, reason: str) -> None:
        self._check_open()
        self._core.disconnect(connection, wire_code, reason)

    def close(self, *, timeout_s: float = 2.0) -> None:
        if os.getpid() != self._process:
            return
        self._closed = True
        try:
            self._core.close(timeout_s)
        finally:  # an interrupt comes when that returns
            self._close_sockets()

    def _check_open(self) -> None:
        check_open(process=self._process, closed=self._closed or self._core.over)

    def _close_sockets(self) -> None:
        for endpoint in list(self._endpoints.values()):  # copies: other threads may still call, and are refused
            for sock in list(endpoint.sockets):
                sock.close()

    # What Rust tells, on the event thread.

    def _deliver(self, told: list[tuple[Any, ...]]) -> None:
        events: list[Event] = []
        for one in told:
            try:
                event = self._event(one)
            except BaseException as failure:  # noqa: BLE001 - a panic in Rust too: every operation has to end, and the log to say why
                _log.exception("the transport engine failed; all its connections are lost")
                self._core.broke(repr(failure))
            else:
                if event is not None:
                    events.append(event)
        if not events:
            return
        try:
            self.on_events(events)
        except BaseException:  # noqa: BLE001 - the caller's bug must not stop the network; the log has it
            _log.exception("on_events raised")

    def _event(self, told: tuple[Any, ...]) -> Event | None:
        match told:
            case "received", operation, peer, fields, own, connection:
                header = _header(fields)
                posted = self._posted.pop(operation, None)
                payload = posted[: header.length] if own is None and posted is not None else own
                return Received(operation, peer, header, payload, connection)
            case "sent", operation:
                return SendDone(operation)
            case "failed", operation, failure:
                self._posted.pop(operation, None)
                return OperationFailed(operation, _error(failure))
            case "announced", peer, fields:
                return UnexpectedMessage(peer, _header(fields))
            case "step-failed", collective, peer, length, failure, fields:
                error = None if failure is None else _error(failure)
                return StepFailed(collective, peer, length, error, None if fields is None else _header(fields))
            case "hold", connection, group, step, waits:
                return Hold(connection, group, step, waits)
            case "collective", collective, complete, bytes_done:
                return CollectiveEnded(collective, complete, bytes_done)
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
                if isinstance(error, PeerError) and error.wire_code == WireCode.COUNTED_AS_GONE and not link.verified:
                    error = ConnectionLostError(peer, error.reason)  # anybody's word: only the peer's own is for good
                kind = "" if failure is None else failure[0]
                gone, silent = kind == "gone", kind == "silent"
                return ConnectionDown(number if link.up else None, peer, error, link.attempt, gone=gone, silent=silent)
            case "shared-memory", number, failure:
                known = self._links.get(number)
                peer = "a peer that is gone" if known is None else known.peer
                _log.debug("messages to %s: %s", peer, f"QUIC, for {failure}" if failure else "shared memory")
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
            verified = admission.admit_chain(_chain(certificates), link.trust, expected_peer=link.expected_peer)
            name = verified.name
            others = sum(1 for other in list(self._links.values()) if other.verified and other.peer == name)
            link.peer, link.addresses, link.verified = name, verified.addresses, True
            admission.admit_to_name(others)
        except WireError as error:
            self._core.refuse(number, error.wire_code, error.reason)
        else:
            self._core.verified(number, name)

    def _greeted(self, number: int, body: bytes) -> Event | None:
        link = self._links.get(number)
        if link is None:
            return None
        own = self._endpoints[link.endpoint].hello
        try:
            hello = decode_map(body)
            admission.admit_hello(own, hello)
            link.identity = identity = admission.identity_of(link.peer, own, hello, bulk=link.bulk)
            others = sum(1 for other in list(self._links.values()) if other.up and other.identity == identity)
            admission.admit_to_identity(others)
        except WireError as error:
            self._core.refuse(number, error.wire_code, error.reason)
            return None
        rank = identity[1]
        accepted = admission.message_bytes_accepted(hello)
        account = f"{rank} bulk" if link.bulk else str(rank)  # what waits of bulk stops nothing else
        both_native = self.settings.dead_after_s is None and hello.get(HelloKey.ENGINE) == self.name
        patience_s = NATIVE_DEAD_AFTER_S if both_native else None
        job, place = str(hello.get(HelloKey.JOB, "")), hello.get(HelloKey.MEETING_PLACE)
        if not self._core.begin(number, account, job, accepted, patience_s, place):
            return None
        link.up = True
        return ConnectionUp(number, link.endpoint, link.peer, link.remote, hello, link.attempt, link.addresses)


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


def _encoded(header: Header) -> bytes:
    """As `encode_header` writes it, in half the time where the header says nothing out of the ordinary."""
    written: bytes | None = _native.write_header(header)
    return encode_header(header) if written is None else written


def _header(fields: tuple[Any, ...]) -> Header:
    return header_of(Kind(fields[0]), *fields[1:])


def _error(failure: tuple[Any, ...]) -> TransportError:
    match failure:
        case "lost" | "silent" | "gone", peer, reason:
            return ConnectionLostError(peer, reason)
        case "peer", peer, reason, code:
            return PeerError(peer, reason, wire_code=code)
        case "cancelled", reason:
            return CancelledError(reason)
        case _:
            raise AssertionError(f"the native module failed with {failure!r}")


def _chain(certificates: Sequence[bytes]) -> list[x509.Certificate]:
    try:
        return [x509.load_der_x509_certificate(one) for one in certificates]
    except Exception as error:  # whatever a library raises for what a peer made up, warnings among it
        raise WireError(WireCode.CERTIFICATE_UNTRUSTED, f"its certificate cannot be read: {error}") from error


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
