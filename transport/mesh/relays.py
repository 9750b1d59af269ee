"""Packets of two ranks that reach this one and not each other, passed on as they are: the last way out behind NAT.

A pair of ranks has a pair of sockets here, which both dial. What comes from the address of one goes to where the other
was last heard. Packets stay encrypted from end to end, and nobody else's are passed on. It has a thread of its own.
"""

from __future__ import annotations

import contextlib
import logging
import os
import select
import socket
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

from hive_qos.errors import ConfigurationError
from transport.mesh.sockets import Sockets, open_relay_sockets

PAIRS_MAX = 64
PACKETS_AT_ONCE = 64
"""Of one socket, before the others have their turn."""
PACKET_BYTES_MAX = 65535

_log = logging.getLogger("transport.mesh.relays")


@dataclass
class _Flow:
    """A socket, and of both ends the IP address and where it was last heard."""

    sock: socket.socket
    addresses: tuple[str, str]
    at: list[Any] = field(default_factory=lambda: [None, None])

    def forward(self) -> None:
        """Pass on what waits."""
        for _ in range(PACKETS_AT_ONCE):
            try:
                packet, source = self.sock.recvfrom(PACKET_BYTES_MAX)
            except BlockingIOError:
                return
            except OSError:  # a router's word about a packet before (ICMP)
                continue
            if source[0] in self.addresses:
                end = self.addresses.index(source[0])
                self.at[end] = source
                if self.at[1 - end] is not None:
                    with contextlib.suppress(OSError):  # lost, as by any router
                        self.sock.sendto(packet, self.at[1 - end])


class Relays:
    """See the module. All but the forwarding runs in the transport's thread.

    Args:
        ports: that its sockets may have; empty for any.
        on_open: called with the sockets of each pair.
    """

    def __init__(self, ports: Sequence[int], on_open: Callable[[Sockets], None]) -> None:
        self._ports = ports
        self._on_open = on_open
        self._pairs: dict[tuple[int, int], Sockets] = {}
        self._flows: dict[int, _Flow] = {}
        self._epoll: select.epoll | None = None
        self._thread: threading.Thread | None = None
        self._end = -1

    def between(self, ranks: tuple[int, int], addresses: tuple[str, str]) -> Sockets | None:
        """The sockets over which these ranks reach each other; None where there can be none.

        Args:
            addresses: from which they come.
        """
        if ranks in self._pairs:
            return self._pairs[ranks]
        first, second = addresses
        if first == second or (":" in first) != (":" in second) or len(self._pairs) == PAIRS_MAX:
            return None
        try:
            sockets = open_relay_sockets(six=":" in first, ports=self._ports)
        except ConfigurationError as error:
            _log.warning("ranks %d and %d do not reach each other, nor through this rank: %s", *ranks, error)
            return None
        _log.warning(
            "ranks %d and %d reach each other through this rank, whose link carries twice what they exchange: let UDP"
            " pass between them",
            *ranks,
        )
        self._pairs[ranks] = sockets
        self._on_open(sockets)
        epoll = self._epoll or self._begin()
        for sock in (sockets.compute, sockets.bulk):
            self._flows[sock.fileno()] = _Flow(sock, addresses)
            epoll.register(sock.fileno(), select.EPOLLIN)
        return sockets

    def close(self) -> None:
        """Pass nothing on any more. Idempotent."""
        if self._thread is not None:
            os.eventfd_write(self._end, 1)
            self._thread.join()
            os.close(self._end)
            self._thread = None

    def _begin(self) -> select.epoll:
        epoll, self._end = select.epoll(), os.eventfd(0, os.EFD_CLOEXEC)
        self._epoll = epoll
        epoll.register(self._end, select.EPOLLIN)
        self._thread = threading.Thread(target=self._run, args=(epoll,), name="hive-relay", daemon=True)
        self._thread.start()
        return epoll

    def _run(self, epoll: select.epoll) -> None:
        with epoll:
            while True:
                for fd, _ in epoll.poll():
                    if fd == self._end:
                        for sockets in self._pairs.values():
                            sockets.close()
                        return
                    self._flows[fd].forward()
