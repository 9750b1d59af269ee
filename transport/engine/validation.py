"""What callers may pass to an engine, checked the same way and told in the same words whichever engine it is.

Knows no QUIC stack. Whom the network brings is `admission`'s business.
"""

from __future__ import annotations

import errno
import os
import resource
import socket
from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import contextmanager
from typing import Any, TypeVar

from cryptography import x509
from cryptography.hazmat.primitives.asymmetric.types import PrivateKeyTypes
from cryptography.hazmat.primitives.serialization import load_pem_private_key

from hive_qos.errors import ConfigurationError, ConnectionLostError, MisuseError
from transport.engine.base import Address, Buffer, EngineSettings, Priority
from transport.identity.credentials import Credentials, Trust
from transport.wire.control_frames import PROTOCOL_VERSION, PROTOCOLS, FrameType, HelloKey, LimitKey, encode_frame
from transport.wire.error_codes import WireError
from transport.wire.header import Header, MatchKey, check_key, check_types, encode_header

E = TypeVar("E")
DATAGRAM_BYTES_MIN, DATAGRAM_BYTES_MAX = 1200, 65000
"""QUIC asks the first of every path (RFC 9000 14); no UDP datagram is much longer than the second."""
CONTROL_STREAM_LEVEL = 0
"""In which order streams are served; the priorities follow (`level_of`)."""


def check_open(*, process: int, closed: bool) -> None:
    """Hold a call against the state of the engine, which process `process` opened.

    Raises:
        MisuseError: it is another process's, or closed.
    """
    if os.getpid() != process:
        raise MisuseError(f"this engine belongs to process {process}; a forked child must open its own")
    check_taken(not closed)


def check_taken(taken: bool) -> None:
    """Hold a call to an engine that was open against whether it was still taken: another thread may have closed it.

    Raises:
        MisuseError: it was not, and nothing comes of the call.
    """
    if not taken:
        raise MisuseError("the engine is closed")


def check_files(error: OSError | ValueError) -> None:
    """Hold what the operating system refused against how many files this process may have open.

    Raises:
        ConfigurationError: it has as many; names the limit and how to raise it.
    """
    if isinstance(error, OSError) and error.errno == errno.EMFILE:
        limit, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
        reason = (
            "this process has as many files and sockets open as it may; raise that limit, as `ulimit -n 65536` does"
        )
        raise ConfigurationError("ulimit -n", limit, reason) from error


@contextmanager
def handed_over(sock: socket.socket) -> Iterator[None]:
    """The call that a socket comes with: it is the engine's from here on, and closed where the call raises.

    Not where it is interrupted: the engine may have taken the socket already, and nobody else may close it then.
    """
    try:
        yield
    except Exception:
        sock.close()
        raise


def check_settings(settings: EngineSettings, *, engine: str, controllers: Collection[str]) -> None:
    """Hold settings against what QUIC allows and which congestion controllers the engine has.

    Raises:
        ConfigurationError: the engine has no such controller.
        MisuseError: datagrams are too short or too long, or there is no such protocol.
    """
    if settings.congestion not in controllers:
        known = ", ".join(controllers)
        raise ConfigurationError("HIVE_CONGESTION", settings.congestion, f"the {engine} engine has {known}")
    if not DATAGRAM_BYTES_MIN <= settings.datagram_bytes <= DATAGRAM_BYTES_MAX:
        raise MisuseError(f"datagrams of {settings.datagram_bytes} bytes; QUIC needs at least {DATAGRAM_BYTES_MIN}")
    if settings.protocol not in PROTOCOLS:
        raise MisuseError(f"protocol {settings.protocol!r}; there are {', '.join(PROTOCOLS)}")


def check_endpoint(sock: socket.socket, trust: Trust) -> None:
    """Hold a socket and whom to believe on it against what an endpoint needs.

    Raises:
        MisuseError: it is no UDP socket or closed, or nobody is trusted.
    """
    check_socket(sock)
    if trust.ca_pem is None and not trust.pins:
        raise MisuseError("an endpoint that trusts nobody can reach nobody; give a CA or pins")


def check_socket(sock: socket.socket) -> None:
    """Hold a socket against what an endpoint can go on with.

    Raises:
        MisuseError: it is no UDP socket, or closed.
    """
    if sock.fileno() < 0:
        raise MisuseError("an endpoint needs an open socket; this one is closed")
    if sock.type != socket.SOCK_DGRAM:
        raise MisuseError("an endpoint needs a UDP socket")


def read_credentials(credentials: Credentials) -> tuple[list[x509.Certificate], PrivateKeyTypes]:
    """Certificate chain, leaf first, and key.

    Raises:
        MisuseError: either is not PEM that can be read.
    """
    try:
        certificates = x509.load_pem_x509_certificates(credentials.certificate_chain_pem)
        return certificates, load_pem_private_key(credentials.private_key_pem, password=None)
    except ValueError as error:
        raise MisuseError(f"credentials cannot be read: {error}") from error


def full_hello(said: Mapping[int, object], *, engine: str, settings: EngineSettings) -> dict[int, object]:
    """The hello of an endpoint: version, engine, its longest message, and what its caller says, which wins.

    Raises:
        MisuseError: it is longer than peers accept, or cannot be written.
    """
    own: dict[int, object] = {
        HelloKey.VERSION: PROTOCOL_VERSION,
        HelloKey.ENGINE: engine,
        HelloKey.LIMITS: {int(LimitKey.MESSAGE_BYTES): settings.message_bytes_max},
    }
    hello = {int(key): value for key, value in {**own, **said}.items()}
    try:
        encode_frame(FrameType.HELLO, hello)
    except WireError as error:
        raise MisuseError(f"a hello that the peer would refuse: {error.reason}") from error
    return hello


def flat(buffer: Buffer | None, *, writable: bool) -> Buffer | None:
    """The buffer as bytes in a row.

    Raises:
        MisuseError: it is not such a buffer, or has to be written and cannot be.
    """
    if buffer is None:
        return None
    view = memoryview(buffer)
    if view.format != "B" or not view.c_contiguous or view.ndim != 1:
        raise MisuseError("a buffer must be a contiguous, one-dimensional memoryview of bytes")
    if writable and view.readonly:
        raise MisuseError("a buffer to receive into must be writable")
    return view


def message_of(
    header: Header, payload: Buffer | None, *, encode: Callable[[Header], bytes] = encode_header
) -> tuple[bytes, Buffer | None]:
    """What goes out on a stream: the header as `encode` writes it, and the payload where there is any.

    Raises:
        MisuseError: payload and header do not fit together, or the header cannot be written.
    """
    data = flat(payload, writable=False)
    length = 0 if data is None else len(data)
    try:
        check_types(header)
        if header.length != length:
            raise MisuseError(f"the header says {header.length} bytes, the payload has {length}")
        prefix = encode(header)
    except WireError as error:
        raise MisuseError(f"a header that the peer would refuse: {error.reason}") from error
    return prefix, data if length else None


def name_of(peer: str) -> str:
    """The name of a peer, which is of no other class than `str`: others may be hashed as something else.

    Raises:
        MisuseError: no peer can be called that.
    """
    if type(peer) is not str:
        raise MisuseError(f"a peer's name must be text; this is {type(peer).__name__}, {repr(peer)[:60]}")
    try:
        peer.encode()
    except UnicodeEncodeError as error:
        raise MisuseError(f"a peer's name must be UTF-8; this is {repr(peer)[:60]}") from error
    return peer


def key_of(key: MatchKey) -> MatchKey:
    """The key of a post, as some message may have it.

    Raises:
        MisuseError: no message can have it.
    """
    try:
        check_key(key)
    except WireError as error:
        raise MisuseError(f"a key that no message can have: {error.reason}") from error
    return key


def level_of(priority: Priority) -> int:
    """In which order a message's stream is served: behind the control stream."""
    return CONTROL_STREAM_LEVEL + 1 + int(priority)


def called(remote: Address, expected_peer: str | None) -> str:
    """What a peer is called as long as it has not proved its name."""
    return expected_peer or f"{remote[0]}:{remote[1]}"


def endpoint_numbered(endpoints: Mapping[int, E], number: int, *, peer: str) -> E:
    """The endpoint to dial `peer` from.

    Raises:
        ConnectionLostError: there is none of that number.
    """
    if number not in endpoints:
        raise ConnectionLostError(peer, f"there is no endpoint {number}")
    return endpoints[number]


def dialled(sock: socket.socket, remote: Address, *, peer: str) -> Any:
    """Where this socket sends to when it dials `peer`, as its `recvfrom` writes addresses, so that they compare equal.

    Raises:
        ConnectionLostError: not a literal address, or of the other family.
    """
    flags = socket.AI_NUMERICHOST | (socket.AI_V4MAPPED if sock.family == socket.AF_INET6 else 0)
    try:
        return socket.getaddrinfo(*remote, family=sock.family, type=socket.SOCK_DGRAM, flags=flags)[0][4]
    except (OSError, OverflowError, TypeError, ValueError) as error:  # an address may be another rank's word
        reason = f"{repr(remote[0])[:80]} cannot be dialled from this socket: {error}"
        raise ConnectionLostError(peer, reason) from error
