"""One message over a session's socket, and its answer."""

from __future__ import annotations

import contextlib
import socket
from collections.abc import Mapping
from typing import Any

from broker.client import protocol


def ask(sock: socket.socket, message: Mapping[str, Any]) -> dict[str, Any]:
    """Send one message over a blocking socket and wait for the answer.

    A broker that refuses us may have closed its end before our message came: its answer is read all the same.

    Raises:
        OSError: no answer, or not within the socket's timeout.
        MessageError: something that is no message, either way.
    """
    with contextlib.suppress(BrokenPipeError, ConnectionResetError):
        sock.send(protocol.encode(message))
    packet = sock.recv(protocol.PACKET_BYTES_MAX + 1)
    if not packet:
        raise ConnectionResetError("the broker closed the session without an answer")
    return protocol.decode(packet)
