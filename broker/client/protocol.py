"""What both ends of the session socket agree on: limits, names, and how one message becomes one packet.

`docs/reference/broker-api.md` is the specification. A packet is one JSON object in UTF-8; descriptors travel beside it.
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from typing import Any, Final

VERSION: Final = 1
PACKET_BYTES_MAX = 64 * 1024
"""Longest packet either side sends or takes: a report of 128 connections is about 40 KiB."""
DESCRIPTORS_MAX = 8
"""Sockets in one register message."""
CONNECTIONS_PER_REPORT = 128
"""Connections in one report; a program with more sends several reports."""
NAME_CHARS_MAX = 128
"""Longest name of a job or a client."""

DEFAULT_RUNTIME_DIRECTORY = "/run/hive-qos"
SESSION_SOCKET_NAME = "session.sock"
BROKER_SOCKET_NAME = "broker.sock"
SWITCHED_OFF = "off"


class MessageError(ValueError):
    """The other side sent something that is no message. `code` is what an error reply carries."""

    def __init__(self, code: str, text: str) -> None:
        super().__init__(text)
        self.code = code


def session_socket_path(given: str | None = None) -> str | None:
    """Where the session socket is: as given, else `$HIVE_BROKER`, else the default; None when switched off."""
    path = given if given is not None else os.environ.get("HIVE_BROKER") or None
    if path is None:
        return os.path.join(DEFAULT_RUNTIME_DIRECTORY, SESSION_SOCKET_NAME)
    return None if path == SWITCHED_OFF else path


def broker_socket_path(given: str | None = None) -> str:
    """Where the HTTP socket is: beside the session socket, as given or of `$HIVE_BROKER`, else the default."""
    session = session_socket_path(given) or os.path.join(DEFAULT_RUNTIME_DIRECTORY, SESSION_SOCKET_NAME)
    return os.path.join(os.path.dirname(session), BROKER_SOCKET_NAME)


def encode(message: Mapping[str, Any]) -> bytes:
    """Write one message.

    Raises:
        MessageError: longer than a packet may be, or not representable as JSON (NaN included).
    """
    try:
        packet = json.dumps(message, separators=(",", ":"), allow_nan=False).encode()
    except (TypeError, ValueError) as error:
        raise MessageError("not-json", f"a message must be plain JSON: {error}") from error
    if len(packet) > PACKET_BYTES_MAX:
        raise MessageError("too-long", f"a message of {len(packet)} bytes; at most {PACKET_BYTES_MAX}")
    return packet


def decode(packet: bytes) -> dict[str, Any]:
    """Read one message.

    Raises:
        MessageError: too long, not UTF-8, not JSON, nested too deep, or not an object.
    """
    if len(packet) > PACKET_BYTES_MAX:
        raise MessageError("too-long", f"a packet of more than {PACKET_BYTES_MAX} bytes")
    try:
        message = _DECODER.decode(packet.decode("utf-8"))
    except (UnicodeDecodeError, ValueError, RecursionError) as error:
        raise MessageError("not-json", "a packet must be one JSON object in UTF-8") from error
    if not isinstance(message, dict):
        raise MessageError("not-json", "a packet must be one JSON object in UTF-8")
    return message


def _refuse_constant(name: str) -> float:
    raise ValueError(f"{name} is not JSON")


_DECODER = json.JSONDecoder(parse_constant=_refuse_constant)
"""Made once: `json.loads` makes one for each message where it is given something of its own."""
