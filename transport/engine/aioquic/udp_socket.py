"""The UDP socket of an endpoint: tuned once, read in bounded batches, written with what could not go kept for later."""

from __future__ import annotations

import contextlib
import errno
import socket
from collections import deque
from typing import Any

RECEIVE_BUFFER_BYTES = 4 * 2**20
"""100 ms at 320 Mbit/s, for when the interpreter is held up; the kernel grants less to the unprivileged, silently."""
SEND_BUFFER_BYTES = 64 * 2**10
"""What waits here waits in front of our acknowledgements and control messages: the kernel counts 2 KiB for a packet, so
these are 32 packets, 18 ms at 20 Mbit/s."""
DATAGRAM_BYTES_MAX = 65536
_IP_MTU_DISCOVER, _IPV6_MTU_DISCOVER, _PMTUDISC_DO = 10, 23, 2


class UdpPort:
    """One bound socket. Errors that a peer's absence causes (ICMP) are not errors here."""

    def __init__(self, sock: socket.socket) -> None:
        self.sock = sock
        self.waiting: deque[tuple[bytes, Any]] = deque()
        sock.setblocking(False)
        if sock.getsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF) < RECEIVE_BUFFER_BYTES:
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, RECEIVE_BUFFER_BYTES)
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, SEND_BUFFER_BYTES // 2)  # the kernel doubles it
        with contextlib.suppress(OSError):  # another kernel may not know it; then datagrams may be fragmented
            if sock.family == socket.AF_INET6:
                sock.setsockopt(socket.IPPROTO_IPV6, _IPV6_MTU_DISCOVER, _PMTUDISC_DO)
            else:
                sock.setsockopt(socket.IPPROTO_IP, _IP_MTU_DISCOVER, _PMTUDISC_DO)

    def read(self, count_max: int) -> list[tuple[bytes, Any]]:
        """What has arrived, at most `count_max` datagrams."""
        out: list[tuple[bytes, Any]] = []
        while len(out) < count_max:
            try:
                out.append(self.sock.recvfrom(DATAGRAM_BYTES_MAX))
            except BlockingIOError:
                break
            except OSError as error:
                if error.errno not in (errno.ECONNREFUSED, errno.EHOSTUNREACH, errno.ENETUNREACH, errno.EMSGSIZE):
                    raise
        return out

    def send(self, datagrams: list[tuple[bytes, Any]]) -> None:
        """Send, or keep what the kernel has no room for. A datagram that cannot go at all is lost, as on any path."""
        self.waiting.extend(datagrams)
        while self.waiting:
            data, address = self.waiting[0]
            try:
                self.sock.sendto(data, address)
            except BlockingIOError:
                return
            except (OSError, TypeError):  # TypeError: an address of the other family, before an endpoint moved
                pass
            self.waiting.popleft()
