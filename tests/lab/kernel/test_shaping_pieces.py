"""A device's limit of segments: living connections follow it, others wait less behind them, and it comes back."""

from __future__ import annotations

import contextlib
import socket
import statistics
import struct
import subprocess
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from patience import LIMIT_S, most_of, wait_until
from shaping_bench import FAMILIES, INTERFACE, RECEIVER, Bench, make_bench, tool
from shaping_contract import MBIT, make_shape

from shaping.classify.socket_priority import mark_socket
from shaping.journal import Journal
from shaping.kernel import RealKernel
from shaping.model.names import LEAF_MINOR
from shaping.model.shapes import InterfaceShape
from shaping.shaper import Shaper
from tools.lab.kernel import entered

TAP = "tap0"
FRAME_BYTES, PAYLOAD_BYTES = 1514, 1000
SUPER_FRAME_BYTES = 10 * FRAME_BYTES
"""More than any limit that these tests set, and far less than what TCP builds without one (it was 68 130)."""


@pytest.fixture(scope="module")
def bench() -> Iterator[Bench]:
    with make_bench() as made:
        tool("ip", "-n", made.sender, "tuntap", "add", "dev", TAP, "mode", "tap")
        tool("ip", "-n", made.sender, "link", "set", TAP, "up")
        yield made


@pytest.fixture
def shaper(bench: Bench, tmp_path: Path) -> Iterator[Shaper]:
    """A shaper in the sender's namespace; whatever the test attached is gone afterwards."""
    with entered(bench.sender):
        made = Shaper(RealKernel(), Journal(tmp_path))
        yield made
        made.clear()
        made.close()


def limit(bench: Bench, device: str = INTERFACE) -> int:
    words = tool("ip", "-n", bench.sender, "-d", "link", "show", "dev", device).split()
    return int(words[words.index("gso_max_segs") + 1])


def slow(*, gso_max_segs: int | None = None) -> InterfaceShape:
    return make_shape(INTERFACE, capacity=20 * MBIT, compute=1 * MBIT, gso_max_segs=gso_max_segs)


@contextlib.contextmanager
def sending(client: socket.socket) -> Iterator[None]:
    """A connection that sends all that it can, meanwhile."""
    client.settimeout(None)

    def send() -> None:
        with contextlib.suppress(OSError):
            while True:
                client.sendall(bytes(65_536))

    thread = threading.Thread(target=send)
    thread.start()
    try:
        yield
    finally:
        client.shutdown(socket.SHUT_RDWR)
        thread.join(LIMIT_S)


@contextlib.contextmanager
def greedy(bench: Bench, family: socket.AddressFamily) -> Iterator[None]:
    """One TCP connection, unmarked, from the sender to the receiver."""
    with entered(bench.receiver):
        server = socket.create_server((RECEIVER[family], 0), family=family)
    with entered(bench.sender):
        client = socket.socket(family, socket.SOCK_STREAM)
    with server, client:
        client.connect(server.getsockname())
        with server.accept()[0] as taker:

            def take() -> None:
                while taker.recv(65_536):
                    pass

            thread = threading.Thread(target=take)
            thread.start()
            with sending(client):
                yield
            thread.join(LIMIT_S)


def bytes_a_piece(shaper: Shaper, interface: str = INTERFACE) -> float:
    """How long the pieces are that wait in `other`; 0 where none waits."""
    found = shaper.counters(interface).classes["other"]
    return found.backlog_bytes / found.backlog_packets if found.backlog_packets >= 3 else 0.0


@pytest.mark.parametrize("family", FAMILIES)
def test_a_living_connection_follows_every_change(shaper: Shaper, bench: Bench, family: socket.AddressFamily) -> None:
    shaper.attach(slow())
    with greedy(bench, family):
        for segments in (None, 2, 8, None, 1):
            shaper.apply(slow(gso_max_segs=segments))
            if segments is None:
                wait_until(lambda: bytes_a_piece(shaper) > SUPER_FRAME_BYTES, what=lambda: bytes_a_piece(shaper))
            else:
                low, high = (segments - 1) * FRAME_BYTES, segments * FRAME_BYTES
                # What waited when the limit came is as long as it was: up to the queue's length of it, 100 ms.
                wait_until(lambda: low < bytes_a_piece(shaper) <= high, what=lambda: bytes_a_piece(shaper))  # noqa: B023 - waited for here


def test_a_class_that_borrows_waits_for_a_frame_or_two_of_tcp_and_not_for_64_kib(shaper: Shaper, bench: Bench) -> None:
    family = socket.AF_INET

    def long_wait_s(sink: socket.socket, sock: socket.socket) -> float:
        """Of 200 packets of `compute` at 7 Mbit/s, of which 1 is its own: a tenth takes longer to arrive than this."""
        waits: list[float] = []

        def take() -> None:
            for _ in range(200):
                sent_s = struct.unpack_from("d", sink.recv(PAYLOAD_BYTES))[0]
                waits.append(time.monotonic() - sent_s)

        thread = threading.Thread(target=take)
        thread.start()
        for _ in range(200):
            sock.sendto(struct.pack("d", time.monotonic()).ljust(PAYLOAD_BYTES), sink.getsockname())
            time.sleep(0.001)
        thread.join(LIMIT_S)
        return statistics.quantiles(waits, n=10)[-1]

    shaper.attach(slow())
    with bench.sink(family) as sink, bench.socket(family) as sock, greedy(bench, family):
        mark_socket(sock, minor=LEAF_MINOR["compute"], dscp=None)
        wait_until(lambda: bytes_a_piece(shaper) > SUPER_FRAME_BYTES, what=lambda: bytes_a_piece(shaper))
        without_s = long_wait_s(sink, sock)
        shaper.apply(slow(gso_max_segs=2))
        wait_until(lambda: 0 < bytes_a_piece(shaper) <= 2 * FRAME_BYTES, what=lambda: bytes_a_piece(shaper))
        # The shaper is in debt for 27 ms after a piece of 64 KiB, and for 1.2 ms after one of two segments.
        with_s = most_of(lambda: long_wait_s(sink, sock), lambda wait_s: wait_s < 0.008)
    assert without_s > 0.012, (without_s, with_s)


@pytest.mark.parametrize("device", [INTERFACE, TAP])
def test_a_killed_shapers_limit_is_adopted_and_the_devices_own_comes_back(
    shaper: Shaper, bench: Bench, tmp_path: Path, device: str
) -> None:
    own = limit(bench, device)
    killed = Shaper(RealKernel(), Journal(tmp_path))
    killed.attach(make_shape(device, gso_max_segs=4))
    killed.close()  # as a kill leaves it: nothing is put back
    assert (limit(bench, device), own) == (4, 65_535)
    assert shaper.attach(make_shape(device, gso_max_segs=2)).adopted
    assert limit(bench, device) == 2
    assert shaper.detach(device) == ()
    assert limit(bench, device) == own
    assert list(tmp_path.iterdir()) == []


def test_what_somebody_set_stays_and_what_he_sets_meanwhile_too(shaper: Shaper, bench: Bench) -> None:
    def set_by_hand(segments: int) -> None:
        tool("ip", "-n", bench.sender, "link", "set", "dev", INTERFACE, "gso_max_segs", str(segments))

    own = limit(bench)
    set_by_hand(9)
    try:
        (note,) = shaper.attach(slow(gso_max_segs=2)).notes
        assert "somebody set gso_max_segs 9" in note
        assert limit(bench) == 9
        set_by_hand(own)
        assert not shaper.verify(INTERFACE)
        shaper.apply(slow(gso_max_segs=2))
        assert limit(bench) == 2
        set_by_hand(5)
        assert not shaper.verify(INTERFACE)
        shaper.apply(slow(gso_max_segs=2))
        shaper.detach(INTERFACE)
        assert limit(bench) == 5
    finally:
        set_by_hand(own)


def test_the_change_is_announced_and_says_nothing_else_of_the_device(shaper: Shaper, bench: Bench) -> None:
    def shown() -> str:
        return tool("ip", "-n", bench.sender, "-d", "link", "show", "dev", INTERFACE)

    tool("ip", "-n", bench.sender, "link", "set", "dev", INTERFACE, "group", "7")
    try:
        shaper.attach(slow())
        before = shown()
        with entered(bench.sender):
            watch = ["ip", "monitor", "link", "dev", INTERFACE]
            monitor = subprocess.Popen(watch, stdout=subprocess.PIPE, text=True)
        assert monitor.stdout is not None
        try:
            time.sleep(0.2)
            shaper.apply(slow(gso_max_segs=2))
            assert INTERFACE in monitor.stdout.readline()
        finally:
            monitor.kill()
            monitor.wait()
            monitor.stdout.close()
        assert shown() == before.replace("gso_max_segs 65535", "gso_max_segs 2")
    finally:
        tool("ip", "-n", bench.sender, "link", "set", "dev", INTERFACE, "group", "default")
