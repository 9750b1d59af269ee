"""Numbered datagrams at an even pace from one host of a lab to another, and which of them were lost."""

from __future__ import annotations

import contextlib
import socket
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass, field

from patience import LIMIT_S, wait_until

from tools.lab.host import Host

PORT = 4001
PAYLOAD_BYTES, PAUSE_S = 1000, 0.0008
"""10 Mbit/s and headers, half of what the tests' interfaces have. Later than that is later, never a burst."""
SEND_BUFFER_BYTES = 32768
"""A socket that may have 64 KiB under way waits in sendto rather than fill its class' queue of 96 KiB."""
RECEIVE_BUFFER_BYTES = 16 * 2**20
"""13 s of it: a receiver that stands still loses nothing."""
SO_RCVBUFFORCE = 33
QUIET_S = 2.0
"""Nothing more comes: what waits anywhere here has left within 0.1 s."""


@dataclass(eq=False)
class Paced:
    """What was sent so far, what arrived, and the last of that. Each number is sent once, from 0 on."""

    sent: int = 0
    arrived: set[int] = field(default_factory=set)
    last: int = -1
    stop: threading.Event = field(default_factory=threading.Event)
    ended: threading.Event = field(default_factory=threading.Event)

    def more(self, count: int) -> None:
        """Wait until so many more have arrived."""
        until = len(self.arrived) + count
        wait_until(lambda: len(self.arrived) >= until)

    def lost(self) -> list[int]:
        """End the sending, wait for what is under way, and give what has not arrived."""
        self.stop.set()
        wait_until(self.ended.is_set)
        until_s, before = time.monotonic() + LIMIT_S, -1
        while before < len(self.arrived) < self.sent and time.monotonic() < until_s:
            before = len(self.arrived)
            time.sleep(QUIET_S)
        return sorted(set(range(self.sent)) - self.arrived)


@contextlib.contextmanager
def paced(source: Host, target: Host) -> Iterator[Paced]:
    """Send inside the block. The receiver is bound before the first one is sent: none is lost for want of it."""
    with target.enter():
        receiver = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
    with source.enter():
        sender = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
    receiver.setsockopt(socket.SOL_SOCKET, SO_RCVBUFFORCE, RECEIVE_BUFFER_BYTES)
    receiver.bind((target.address, PORT))
    receiver.settimeout(0.1)
    sender.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, SEND_BUFFER_BYTES)
    sender.connect((target.address, PORT))
    running, over = Paced(), threading.Event()

    def send() -> None:
        while not running.stop.wait(PAUSE_S):
            sender.send(running.sent.to_bytes(PAYLOAD_BYTES, "little"))
            running.sent += 1
        running.ended.set()

    def receive() -> None:
        while not over.is_set():
            with contextlib.suppress(TimeoutError):
                running.last = int.from_bytes(receiver.recv(2 * PAYLOAD_BYTES), "little")
                running.arrived.add(running.last)

    threads = [threading.Thread(target=send), threading.Thread(target=receive)]
    for thread in threads:
        thread.start()
    try:
        yield running
    finally:
        running.stop.set()
        over.set()
        for thread in threads:
            thread.join()
        sender.close()
        receiver.close()
