"""A path between two sockets that loses, delays, cuts or forges datagrams as a test wants it, for either engine."""

from __future__ import annotations

import random
import select
import socket
import threading
import time
from collections import deque
from collections.abc import Callable, Iterable

Fate = Callable[[bytes], Iterable[bytes]]
"""What becomes of a datagram: the ones that go on instead of it."""


class Relay:
    """Forwards between one dialling side and `server`, through `fate`, until closed."""

    def __init__(self, server: tuple[str, int], fate: Fate) -> None:
        self.fate = fate
        self.to_server = b""
        self.late_s = 0.0
        """How long what goes to the server waits here; it never becomes less."""
        self._late: deque[tuple[float, bytes]] = deque()
        self._server = server
        self.client: tuple[str, int] | None = None
        self._front, self._back = (socket.socket(socket.AF_INET, socket.SOCK_DGRAM) for _ in range(2))
        for sock in (self._front, self._back):
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4 * 2**20)
            sock.bind(("127.0.0.1", 0))
            sock.setblocking(False)
        self.address: tuple[str, int] = self._front.getsockname()
        self._closing = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def forge(self, data: bytes) -> None:
        """Send to the server from the address that it knows the client by."""
        self._back.sendto(data, self._server)

    def close(self) -> None:
        self._closing.set()
        self._thread.join()
        self._front.close()
        self._back.close()

    def _run(self) -> None:
        while not self._closing.is_set():
            ready, _, _ = select.select([self._front, self._back], [], [], 0.05)
            while self._late and self._late[0][0] <= time.monotonic():
                self._back.sendto(self._late.popleft()[1], self._server)
            for sock in ready:
                for _ in range(64):
                    try:
                        data, sender = self._take(sock)
                    except BlockingIOError:
                        break
                    self._forward(data, sender, from_client=sock is self._front)

    def _take(self, sock: socket.socket) -> tuple[bytes, tuple[str, int]]:
        return sock.recvfrom(65536)

    def _forward(self, data: bytes, sender: tuple[str, int], *, from_client: bool) -> None:
        if from_client:
            self.client = sender
            self.to_server = data
        for out in self.fate(data):
            if from_client and self.late_s:
                self._late.append((time.monotonic() + self.late_s, out))
            elif from_client:
                self._back.sendto(out, self._server)
            elif self.client is not None:
                self._front.sendto(out, self.client)


def straight(data: bytes) -> list[bytes]:
    """Nothing happens."""
    return [data]


def silent(data: bytes) -> list[bytes]:
    """Nothing comes through, as after a cable was cut."""
    return []


def narrow(data: bytes) -> list[bytes]:
    """A path that swallows what is longer than 1300 bytes and tells nobody, as behind a tunnel."""
    return [data] if len(data) <= 1300 else []


def rough(seed: int) -> Fate:
    """Loses every thirtieth datagram, and now and then doubles, delays, cuts or spoils one; the same in every run."""
    rng = random.Random(seed)
    late: list[bytes] = []

    def fate(data: bytes) -> list[bytes]:
        held = [late.pop()] if late else []
        draw = rng.random()
        if draw < 0.03:
            return held
        if draw < 0.05:
            return [data, data, *held]
        if draw < 0.07 and not held:
            late.append(data)
            return []
        if draw < 0.08:
            return [data[: rng.randrange(len(data))] or b"\0", *held]
        if draw < 0.09:
            spoiled = bytearray(data)
            spoiled[rng.randrange(len(data))] ^= 1 << rng.randrange(8)
            return [bytes(spoiled), *held]
        return [data, *held]

    return fate


def first_data_lost(count: int) -> Fate:
    """Loses the first packets with a short header, whichever way they go, also those that lie behind others in one."""
    left = count

    def fate(data: bytes) -> list[bytes]:
        nonlocal left
        kept = data[: _long_headers_end(data)] if left else data
        left -= len(kept) < len(data)
        return [kept] if kept else []

    return fate


def _long_headers_end(data: bytes) -> int:
    """Where the packets of the handshake end in a datagram (RFC 9000 17.2)."""
    end = 0
    while end < len(data) and data[end] & 0x80:
        initial = not data[end] & 0x30
        at = end + 5
        for _ in range(2):  # the connection ids
            at += 1 + data[at]
        for _ in range(2 if initial else 1):  # the token of an initial packet is passed over; then all that follows
            size = 1 << (data[at] >> 6)
            length = int.from_bytes(data[at : at + size]) & ((1 << (8 * size - 2)) - 1)
            at += size + length
        end = at
    return end
