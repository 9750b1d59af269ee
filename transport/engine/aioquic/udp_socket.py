"""The UDP socket of an endpoint: tuned once, read in bounded batches, written with what could not go kept for later."""

from __future__ import annotations

import contextlib
import errno
import socket
import struct
from collections import deque
from typing import Any

RECEIVE_BUFFER_BYTES = 4 * 2**20
"""100 ms at 320 Mbit/s, for when the interpreter is held up; the kernel grants less to the unprivileged, silently."""
SEND_BUFFER_BYTES = 256 * 2**10
SEND_BUFFER_BYTES_MIN = 8 * 2**10
SEND_BUFFER_S, RATE_KEPT = 0.008, 0.97
"""What waits in this host for a slow link waits in the kernel behind this socket, and our acknowledgements and control
messages wait behind it: 256 KiB are 56 ms at 20 Mbit/s. So the buffer holds 8 ms of what is delivered (the kernel
counts double for its own overhead: 10 ms of payload), at the highest rate of late, which fades by half in 2 s."""
BATCH_MIN, BATCH_MAX = 4, 16
"""Datagrams that are made at once: those that the kernel has no room for wait here, in front of everything later."""
DATAGRAM_BYTES_MAX = 65536
SEGMENTS_MAX = 8
"""Datagrams that the kernel takes in one call: at 40 Mbit/s they are 2.3 ms, no more than others should wait behind."""
_UDP_SEGMENT, _UDP_GRO = 103, 104  # linux/udp.h; Python has no names for them
_IP_MTU_DISCOVER, _IPV6_MTU_DISCOVER, _PMTUDISC_DO = 10, 23, 2


class UdpPort:
    """One bound socket. Errors that a peer's absence causes (ICMP) are not errors here."""

    def __init__(self, sock: socket.socket) -> None:
        self.sock = sock
        self.waiting: deque[tuple[bytes, Any]] = deque()
        self.too_long: set[Any] = set()
        self._segments = True
        self._rate_bytes_per_s = 0.0
        self._buffer_bytes = SEND_BUFFER_BYTES
        self._coalesced = True
        sock.setblocking(False)
        for option, size in ((socket.SO_RCVBUF, RECEIVE_BUFFER_BYTES), (socket.SO_SNDBUF, SEND_BUFFER_BYTES)):
            if sock.getsockopt(socket.SOL_SOCKET, option) < size:
                sock.setsockopt(socket.SOL_SOCKET, option, size)
        try:
            sock.setsockopt(socket.IPPROTO_UDP, _UDP_GRO, 1)
        except OSError:  # before Linux 5.0; then one datagram a call
            self._coalesced = False
        with contextlib.suppress(OSError):  # another kernel may not know it; then datagrams may be fragmented
            if sock.family == socket.AF_INET6:
                sock.setsockopt(socket.IPPROTO_IPV6, _IPV6_MTU_DISCOVER, _PMTUDISC_DO)
            else:
                sock.setsockopt(socket.IPPROTO_IP, _IP_MTU_DISCOVER, _PMTUDISC_DO)

    def read(self, count_max: int) -> list[tuple[bytes, Any]]:
        """What has arrived, at least `count_max` datagrams where there are as many; the kernel may have joined some."""
        out: list[tuple[bytes, Any]] = []
        while len(out) < count_max:
            try:
                if self._coalesced:
                    data, extra, _, address = self.sock.recvmsg(DATAGRAM_BYTES_MAX, 64)
                    size = _segment_bytes(extra) if extra else 0
                    if size and size < len(data):
                        out.extend((data[at : at + size], address) for at in range(0, len(data), size))
                    else:
                        out.append((data, address))
                else:
                    out.append(self.sock.recvfrom(DATAGRAM_BYTES_MAX))
            except BlockingIOError:
                break
            except OSError as error:
                if error.errno not in (errno.ECONNREFUSED, errno.EHOSTUNREACH, errno.ENETUNREACH, errno.EMSGSIZE):
                    raise
        return out

    def send(self, datagrams: list[tuple[bytes, Any]]) -> None:
        """Send, or keep what the kernel has no room for. A datagram that cannot go at all is lost, as on any path."""
        if self.waiting:
            self.waiting.extend(datagrams)
            return
        at = 0
        while at < len(datagrams):
            count = _run_of(datagrams, at) if self._segments else 1
            data, address = datagrams[at]
            try:
                if count == 1:
                    self.sock.sendto(data, address)
                else:
                    control = [(socket.IPPROTO_UDP, _UDP_SEGMENT, struct.pack("=H", len(data)))]
                    self.sock.sendmsg([piece for piece, _ in datagrams[at : at + count]], control, 0, address)
            except BlockingIOError:
                self.waiting.extend(datagrams[at:])
                return
            except OSError as error:
                if count > 1 and error.errno in (errno.EIO, errno.EINVAL, errno.EOPNOTSUPP, errno.EMSGSIZE):
                    self._segments = False  # this device or kernel cannot; each by itself from now on
                    continue
                if error.errno == errno.EMSGSIZE:
                    self.too_long.add(address)
            at += count

    @property
    def batch(self) -> int:
        """How many datagrams to make at once, so that they fit the send buffer: it counts 2 KiB for each."""
        return min(max(self._buffer_bytes // 2048, BATCH_MIN), BATCH_MAX)

    def fit(self, rate_bytes_per_s: float) -> None:
        """Ten times a second: keep the send buffer as short as what is delivered allows."""
        self._rate_bytes_per_s = max(rate_bytes_per_s, RATE_KEPT * self._rate_bytes_per_s)
        wanted = int(self._rate_bytes_per_s * SEND_BUFFER_S)
        wanted = min(max(wanted, SEND_BUFFER_BYTES_MIN), SEND_BUFFER_BYTES)
        if not 0.8 * self._buffer_bytes <= wanted <= 1.25 * self._buffer_bytes:
            self._buffer_bytes = wanted
            self.sock.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, wanted)

    def flush(self) -> None:
        """Send what was kept."""
        datagrams = list(self.waiting)
        self.waiting.clear()
        self.send(datagrams)


def _segment_bytes(extra: list[tuple[int, int, bytes]]) -> int:
    for level, kind, value in extra:
        if level == socket.IPPROTO_UDP and kind == _UDP_GRO:
            return int(struct.unpack("=i", value[:4])[0])
    return 0


def _run_of(datagrams: list[tuple[bytes, Any]], at: int) -> int:
    """How many datagrams from `at` on can go in one call: one address, one size, the last may be shorter."""
    first, address = datagrams[at]
    size = len(first)
    count = 1
    for data, other in datagrams[at + 1 : at + SEGMENTS_MAX]:
        if other is not address or len(data) > size:
            break
        count += 1
        if len(data) < size:
            break
    return count
