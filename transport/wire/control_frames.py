"""The control stream: a hello first, then whatever else concerns the connection and not one message.

Each side's first unidirectional stream (id 2 of the dialling side, 3 of the other) is its control stream. It carries
frames, each a varint type, a varint length and a CBOR map of at most 4 KiB with integer keys, and is never closed
before the connection. The first frame is the hello. Frame types that a side does not know are ignored, so that a newer
peer can say more.
"""

from __future__ import annotations

import enum
from collections.abc import Iterator, Mapping
from typing import Any

from transport.wire.cbor import decode_map, encode_map
from transport.wire.error_codes import WireCode, WireError
from transport.wire.header import NAME_BYTES_MAX, U64_MAX
from transport.wire.varint import decode_varint, encode_varint

ALPN = "hive-tensor/1"
"""Between transports. Brokers speak `BROKER_ALPN` (docs/reference/broker-protocol.md) over the same handshake, hello
and headers; the two refuse each other in TLS already (RFC 7301 3.2)."""
BROKER_ALPN = "hive-broker/1"
PROTOCOLS = (ALPN, BROKER_ALPN)
PROTOCOL_VERSION = 1
CONTROL_FRAME_BYTES_MAX = 4096
TEXT_BYTES_MAX = 256
RUN_BYTES_MAX = 64


class FrameType(enum.IntEnum):
    """What a frame of the control stream says."""

    HELLO = 0
    HOLD = 1


class HelloKey(enum.IntEnum):
    """What a side says of itself. Keys from `APPLICATION_KEY_MIN` on belong to the layer above the engine."""

    VERSION = 0
    NODE = 2
    ENGINE = 3
    LIMITS = 4
    JOB = 5
    RUN = 6
    MEETING_PLACE = 7
    """Of this host alone: the abstract Unix socket at which a peer asks for shared memory."""


class LimitKey(enum.IntEnum):
    """Keys of the map under `HelloKey.LIMITS`: what the sender of the hello accepts."""

    MESSAGE_BYTES = 0


APPLICATION_KEY_MIN = 64
"""The first of them is the sender's rank: several ranks may share a host's certificate, and are counted apart."""


def encode_frame(frame_type: int, fields: Mapping[int, object]) -> bytes:
    """Write one frame of the control stream.

    Raises:
        WireError: larger than `CONTROL_FRAME_BYTES_MAX`, or not expressible.
    """
    body = encode_map(fields)
    if len(body) > CONTROL_FRAME_BYTES_MAX:
        raise WireError(WireCode.HELLO_INVALID, f"a control frame of {len(body)} bytes; 4096 are allowed")
    return encode_varint(frame_type) + encode_varint(len(body)) + body


def encode_hold(group: str, step: int, *, waits: bool) -> bytes:
    """Write the frame by which a receiver has a group's operations from a step on wait, or go on."""
    return encode_frame(FrameType.HOLD, {**({0: group} if group else {}), 1: step, 2: int(waits)})


def read_hold(fields: Mapping[int, Any]) -> tuple[str, int, bool]:
    """Its group and step, and whether they wait.

    Raises:
        WireError: a field is of another type or outside its bounds.
    """
    group, step, waits = fields.get(0, ""), fields.get(1, 0), fields.get(2, 0)
    if type(group) is not str or len(group.encode("utf-8", "surrogatepass")) > NAME_BYTES_MAX:
        raise WireError(WireCode.HEADER_INVALID, "group is not a text of at most 128 bytes")
    if type(step) is not int or not 0 <= step <= U64_MAX:
        raise WireError(WireCode.HEADER_INVALID, "step is not an unsigned 64-bit integer")
    if type(waits) is not int or waits not in (0, 1):
        raise WireError(WireCode.HEADER_INVALID, f"waits is neither 0 nor 1 but {waits!r}")
    return group, step, waits == 1


class FrameReader:
    """Cuts the control stream into frames as bytes arrive; holds at most one frame's worth of them."""

    def __init__(self) -> None:
        self._buffer = bytearray()

    def feed(self, data: bytes | memoryview) -> Iterator[tuple[int, dict[int, Any]]]:
        """Take bytes in stream order; give (type, fields) of every frame that they complete.

        Raises:
            WireError: a frame is too large or malformed.
        """
        self._buffer += data
        while True:
            frame_type = decode_varint(self._buffer)
            length = decode_varint(self._buffer, frame_type[1]) if frame_type else None
            if frame_type is None or length is None:
                return
            size, start = length
            if size > CONTROL_FRAME_BYTES_MAX:
                raise WireError(WireCode.PROTOCOL_VIOLATION, f"a control frame of {size} bytes; 4096 are allowed")
            if start + size > len(self._buffer):
                return
            body = bytes(self._buffer[start : start + size])
            del self._buffer[: start + size]
            if frame_type[0] in FrameType.__members__.values():
                yield frame_type[0], decode_map(body)


def check_hello(fields: Mapping[int, Any]) -> None:
    """Hold a hello against the protocol's bounds.

    Raises:
        WireError: `VERSION_UNSUPPORTED` where no version is shared, `HELLO_INVALID` for anything malformed.
    """
    version = fields.get(HelloKey.VERSION)
    if type(version) is not int:
        raise WireError(WireCode.HELLO_INVALID, "a hello without a version")
    if version != PROTOCOL_VERSION:
        raise WireError(WireCode.VERSION_UNSUPPORTED, f"version {version} of the protocol; {PROTOCOL_VERSION} is known")
    for key in (HelloKey.NODE, HelloKey.ENGINE, HelloKey.JOB, HelloKey.MEETING_PLACE):
        text = fields.get(key, "")
        if type(text) is not str or len(text.encode("utf-8", "surrogatepass")) > TEXT_BYTES_MAX:
            raise WireError(WireCode.HELLO_INVALID, f"{key.name.lower()} is not a text of at most 256 bytes")
    run = fields.get(HelloKey.RUN, b"")
    if type(run) is not bytes or len(run) > RUN_BYTES_MAX:
        raise WireError(WireCode.HELLO_INVALID, "run is not at most 64 bytes")
    limits = fields.get(HelloKey.LIMITS, {})
    if type(limits) is not dict or not all(type(value) is int and value >= 0 for value in limits.values()):
        raise WireError(WireCode.HELLO_INVALID, "limits is not a map of unsigned integers")
