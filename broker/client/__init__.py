"""How a program talks to the broker of its host. Standard library only, and safe to have in a training loop.

`Session` is for programs that live long: it passes their sockets, announces their bursts and reports what their
connections measure, in the background, whether a broker is there or not. `request` asks one question and waits.
`status` reads what the broker knows.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from broker.client.mailbox import SessionState
from broker.client.once import request
from broker.client.protocol import (
    BROKER_SOCKET_NAME,
    DEFAULT_RUNTIME_DIRECTORY,
    SESSION_SOCKET_NAME,
    session_socket_path,
)
from broker.client.session import Session

if TYPE_CHECKING:
    from broker.client.http import fetch, status

__all__ = [
    "BROKER_SOCKET_NAME",
    "DEFAULT_RUNTIME_DIRECTORY",
    "SESSION_SOCKET_NAME",
    "Session",
    "SessionState",
    "fetch",
    "request",
    "session_socket_path",
    "status",
]


def __getattr__(name: str) -> Any:
    """`fetch` and `status` on first use: their HTTP would cost every trainer 30 ms at its start."""
    if name in ("fetch", "status"):
        from broker.client import http

        return getattr(http, name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
