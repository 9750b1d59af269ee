"""What a new connection is made of: identity, QUIC's configuration, and who may begin one from outside."""

from __future__ import annotations

import os
import ssl
from dataclasses import dataclass
from typing import Any

from aioquic.buffer import Buffer as QuicBuffer  # type: ignore[attr-defined]  # its own __all__ leaves it out
from aioquic.quic.configuration import QuicConfiguration
from aioquic.quic.packet import (
    QuicHeader,
    QuicPacketType,
    QuicProtocolVersion,
    encode_quic_retry,
    pull_quic_header,
)
from aioquic.quic.retry import QuicRetryTokenHandler
from cryptography import x509

from transport.engine.aioquic.exceptions import CONTROLLERS
from transport.engine.aioquic.udp_socket import UdpPort
from transport.engine.base import EngineSettings
from transport.identity.credentials import Trust

CID_BYTES = 8
DATAGRAM_BYTES = 1200
"""UDP payload of our packets, and at least of a client's first: every path of QUIC takes it (RFC 9000 14)."""
STREAM_WINDOW_BYTES = 2**20
"""Credit that every stream begins with: 1 MiB at 80 ms round trip is 100 Mbit/s before the first grant arrives."""
STREAMS_IN_WINDOW = 16
"""So many unposted messages may begin before a posted one could be kept waiting by them."""
WINDOW_BYTES_MIN = 65536


@dataclass
class Endpoint:
    """One socket and who we are on it."""

    number: int
    port: UdpPort
    trust: Trust
    hello: dict[int, object]
    bulk: bool
    certificates: list[x509.Certificate]
    key: Any


def configuration_of(endpoint: Endpoint, settings: EngineSettings, *, is_client: bool) -> QuicConfiguration:
    """QUIC's configuration for a connection of this endpoint."""
    window = max(WINDOW_BYTES_MIN, settings.unexpected_bytes_max // 2)  # compute and bulk share the store
    return QuicConfiguration(
        is_client=is_client,
        alpn_protocols=[settings.protocol],
        certificate=endpoint.certificates[0],
        certificate_chain=endpoint.certificates[1:],
        private_key=endpoint.key,
        congestion_control_algorithm=CONTROLLERS[settings.congestion],
        connection_id_length=CID_BYTES,
        idle_timeout=max(
            30.0, 2 * (settings.dead_after_s or 0.0)
        ),  # a second line of defence; the engine's tick is the first
        max_data=window,
        max_stream_data=min(STREAM_WINDOW_BYTES, window // STREAMS_IN_WINDOW),
        max_datagram_size=DATAGRAM_BYTES,
        supported_versions=[QuicProtocolVersion.VERSION_1],
        verify_mode=ssl.CERT_NONE,  # the chain is judged by transport.identity, on both sides alike
    )


def read_first_packet(data: bytes) -> QuicHeader | None:
    """The header of a packet of no known connection, if it may begin one: every peer speaks version 1 of QUIC."""
    if len(data) < DATAGRAM_BYTES:
        return None
    try:
        header = pull_quic_header(QuicBuffer(data=data), host_cid_length=CID_BYTES)
    except ValueError:
        return None
    begins = header.version == QuicProtocolVersion.VERSION_1 and header.packet_type == QuicPacketType.INITIAL
    return header if begins else None


def retry(tokens: QuicRetryTokenHandler, first: QuicHeader, address: Any, *, now_s: float) -> bytes:
    """The answer to a first packet whose sender is to prove its address (RFC 9000 8.1.2). Nothing is kept of it.

    Its token is good for the address and port that it was sent to, for 30 s.
    """
    cid = os.urandom(CID_BYTES)
    token = tokens.create_token(
        address=_plain(address),
        original_destination_connection_id=first.destination_cid,
        retry_source_connection_id=cid,
        now=now_s,
    )
    return encode_quic_retry(
        version=QuicProtocolVersion.VERSION_1,
        source_cid=cid,
        destination_cid=first.source_cid,
        original_destination_cid=first.destination_cid,
        retry_token=token,
    )


def original_cid(tokens: QuicRetryTokenHandler, first: QuicHeader, address: Any, *, now_s: float) -> bytes | None:
    """The identifier that the client began with, before the Retry that it answers; None where it answers none."""
    try:
        return tokens.validate_token(
            address=_plain(address), destination_cid=first.destination_cid, token=first.token, now=now_s
        )
    except ValueError:  # none at all, or of another server, or of an engine before this one
        return None


def _plain(address: Any) -> Any:
    return address[0].partition("%")[0], address[1]
