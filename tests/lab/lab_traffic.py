"""Traffic of the tests of links: a TCP flow, an echo of datagrams, and how large the pieces are that arrive."""

from __future__ import annotations

import contextlib
import json
import socket
import statistics
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

from patience import LIMIT_S, most_of, wait_until

from tools.lab import Host
from tools.lab.link import Link

BURST_BYTES = 64 * 1024
"""More than the token bucket of any link of these rates lets through at once: 3 ms of 100 Mbit/s are 38 kB."""
SO_RCVBUFFORCE = 33
FRAME_BYTES = 1514
"""The largest: the MTU and Ethernet's header."""


@dataclass
class Flow:
    """A TCP flow of this process between two hosts, over one link; what it gets is measured at the receiver."""

    received_bytes: int = 0
    stop: threading.Event = field(default_factory=threading.Event)

    def share(self, link: Link, rate_bits_per_s: int) -> float:
        """What it gets of the rate that the link should have, in a window; that nothing is faster than it is asserted.

        The kernel counts what left the queue, and the time around the counting is the longest it can have been, so
        that no stall makes a link look faster than it is. What arrived can look so: buffers empty after a stall.
        """
        outer_start_s = time.monotonic()
        sent_bytes = link.counters()["a"].bytes
        start_bytes, start_s = self.received_bytes, time.monotonic()
        time.sleep(1.0)  # the window itself
        received_bits, taken_s = (self.received_bytes - start_bytes) * 8, time.monotonic() - start_s
        sent_bits = (link.counters()["a"].bytes - sent_bytes - BURST_BYTES) * 8
        assert sent_bits <= rate_bits_per_s * (time.monotonic() - outer_start_s), "faster than the link"
        return received_bits / taken_s / rate_bits_per_s


@contextlib.contextmanager
def flow(source: Host, target: Host) -> Iterator[Flow]:
    """Send as fast as TCP (cubic) does from `source` to `target` inside the block."""
    with target.enter():
        server = socket.create_server((target.address, 5001))
    with source.enter():
        sender = socket.socket()
    sender.setsockopt(socket.IPPROTO_TCP, socket.TCP_CONGESTION, b"cubic")
    sender.connect((target.address, 5001))
    receiver, _ = server.accept()
    running = Flow()

    def send() -> None:
        with contextlib.suppress(OSError):
            while not running.stop.is_set():
                sender.send(b"x" * 65536)

    def receive() -> None:
        with contextlib.suppress(OSError):
            while part := len(receiver.recv(1 << 18)):
                running.received_bytes += part

    threads = [threading.Thread(target=send), threading.Thread(target=receive)]
    for thread in threads:
        thread.start()
    try:
        yield running
    finally:
        running.stop.set()
        sender.shutdown(socket.SHUT_RDWR)
        receiver.shutdown(socket.SHUT_RDWR)
        for thread in threads:
            thread.join()
        for part in (sender, receiver, server):
            part.close()


class Pinger:
    """UDP echo between two hosts, by IPv6."""

    def __init__(self, source: Host, target: Host) -> None:
        with target.enter():
            self._echo = socket.socket(socket.AF_INET6, socket.SOCK_DGRAM)
        with source.enter():
            self._ask = socket.socket(socket.AF_INET6, socket.SOCK_DGRAM)
        self._echo.setsockopt(socket.SOL_SOCKET, SO_RCVBUFFORCE, 16 * 2**20)  # all that a test sends fits
        self._echo.bind((target.address6, 5002))
        self._ask.connect((target.address6, 5002))
        self._asked = 0

    def __enter__(self) -> Pinger:
        return self

    def __exit__(self, *_: object) -> None:
        self._ask.close()
        self._echo.close()

    def rtt_s(self, *, limit_s: float = LIMIT_S) -> float:
        """One round trip; answers to earlier questions are passed over."""
        self._echo.settimeout(limit_s)
        self._ask.settimeout(limit_s)
        self._asked += 1
        question = self._asked.to_bytes(4, "big")
        start_s = time.monotonic()
        self._ask.send(question)
        data = b""
        while data != question:
            data, address = self._echo.recvfrom(100)
            self._echo.sendto(data, address)
        while self._ask.recv(100) != question:
            pass
        return time.monotonic() - start_s

    def median_rtt_s(self, count: int = 20) -> float:
        return statistics.median(self.rtt_s() for _ in range(count))

    def has_rtt_s(self, delays_s: float) -> None:
        """Assert that a window's median is the sum of the delays there and back, over two links.

        A relay sends a frame in the tick that is nearest to its time: 0.25 ms early or late on each of four crossings,
        in step with the questions. Interpreters and the kernel add up to a millisecond, and noise adds what it likes.
        """
        most_of(self.median_rtt_s, lambda found_s: delays_s - 0.001 <= found_s <= delays_s + 0.002)

    def count_arrivals(self, sent: int, *, lost: Callable[[], int] = lambda: 0) -> int:
        """Send `sent` datagrams at an easy pace and count those that arrive, until all that were not lost have."""
        arrived = 0
        self._echo.setblocking(False)
        lost_before = lost()
        for number in range(sent):
            self._ask.send(b"x" * 64)
            if number % 50 == 49:
                time.sleep(0.005)  # the pace: 5 Mbit/s
                arrived += self._drain()

        def all_arrived() -> bool:
            nonlocal arrived
            arrived += self._drain()
            return arrived + lost() - lost_before >= sent

        with contextlib.suppress(AssertionError):  # the caller says what it expected
            wait_until(all_arrived)
        return arrived

    def _drain(self) -> int:
        count = 0
        with contextlib.suppress(BlockingIOError):
            while True:
                self._echo.recv(100)
                count += 1
        return count


def arrived(host: Host) -> tuple[int, int]:
    """Bytes and pieces that have come to a host's device: a frame is a piece, and a lump is one."""
    shown = host.run(["ip", "-s", "-j", "link", "show", "dev", host.interface]).stdout
    received = json.loads(shown)[0]["stats64"]["rx"]
    return received["bytes"], received["packets"]


def piece_bytes(host: Host, traffic: Callable[[], object]) -> float:
    """How large the pieces are on average that come to `host` during `traffic`."""
    bytes_before, pieces_before = arrived(host)
    traffic()
    bytes_after, pieces_after = arrived(host)
    return (bytes_after - bytes_before) / (pieces_after - pieces_before)
