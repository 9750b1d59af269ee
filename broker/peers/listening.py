"""The UDP socket that brokers are reached at, and from which they dial."""

from __future__ import annotations

import socket

from hive_qos.errors import ConfigurationError

BUFFER_BYTES = 256 * 1024
"""A few hundred messages: what comes while the engine's thread waits for a processor."""


def split_listen(listen: str) -> tuple[str, int]:
    """Take "[::]:4710" or "0.0.0.0:4710" apart."""
    host, _, port = listen.rpartition(":")
    return host.strip("[]"), int(port)


def open_socket(listen: str) -> socket.socket:
    """Bind; "[::]" takes IPv4 as well.

    Raises:
        ConfigurationError: it cannot be bound.
    """
    host, port = split_listen(listen)
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    sock = None
    try:
        sock = socket.socket(family, socket.SOCK_DGRAM | socket.SOCK_CLOEXEC)
        if family == socket.AF_INET6:
            sock.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 0)
        for option in (socket.SO_RCVBUF, socket.SO_SNDBUF):
            sock.setsockopt(socket.SOL_SOCKET, option, BUFFER_BYTES)
        sock.setblocking(False)
        sock.bind((host, port))
    except OSError as error:
        if sock is not None:
            sock.close()
        hint = '; where this host has no IPv6, write "0.0.0.0:4710"' if family == socket.AF_INET6 else ""
        raise ConfigurationError("peers.listen", listen, f"cannot bind: {error.strerror}{hint}") from error
    return sock
