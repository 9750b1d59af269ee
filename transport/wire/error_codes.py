"""Every code that a connection is closed with, or a stream reset or refused with, and the error that carries one.

Numbers are fixed by `docs/reference/wire.md`: 0x1? what the bytes said, 0x2? who the peer is, 0x3? one message only,
0x4? the connection as a whole.
"""

from __future__ import annotations

import enum

from hive_qos.errors import TransportError


class WireCode(enum.IntEnum):
    """Application error codes of CONNECTION_CLOSE, RESET_STREAM and STOP_SENDING (RFC 9000 20.2)."""

    NO_ERROR = 0x00
    INTERNAL = 0x01
    PROTOCOL_VIOLATION = 0x10
    HEADER_INVALID = 0x11
    HEADER_TOO_LARGE = 0x12
    VERSION_UNSUPPORTED = 0x13
    DTYPE_UNKNOWN = 0x14
    LENGTH_MISMATCH = 0x15
    MESSAGE_TOO_LONG = 0x16
    HELLO_INVALID = 0x18
    CERTIFICATE_MISSING = 0x20
    CERTIFICATE_UNTRUSTED = 0x21
    CERTIFICATE_EXPIRED = 0x22
    ROLE_REFUSED = 0x23
    PEER_UNEXPECTED = 0x24
    JOB_MISMATCH = 0x25
    CERTIFICATE_REVOKED = 0x26
    CANCELLED = 0x30
    DISCARDED = 0x32
    BUFFER_TOO_SMALL = 0x33
    TOO_MANY_CONNECTIONS = 0x40
    HANDSHAKE_TIMEOUT = 0x41
    DEAD = 0x42
    COUNTED_AS_GONE = 0x43


class WireError(TransportError):
    """Bytes from a peer that break the protocol. The engine closes the connection with `wire_code` and names the peer.

    Args:
        wire_code: what to close with.
        reason: what was wrong, with counts and limits.
    """

    code = "wire"

    def __init__(self, wire_code: WireCode, reason: str) -> None:
        super().__init__(f"{reason} ({wire_code.name} 0x{wire_code:02x})")
        self.wire_code = wire_code
        self.reason = reason
