"""Guarantees hold for real packets, and no change of rates ever loses one."""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path

import pytest
from patience import LIMIT_S, most_of
from shaping_bench import INTERFACE, PAYLOAD_BYTES, RECEIVER, Bench
from shaping_contract import MBIT, make_shape

from shaping.classify.socket_priority import mark_socket
from shaping.journal import Journal
from shaping.kernel import RealKernel
from shaping.model.names import BULK_NAME, DSCP, MARK_MINOR
from shaping.model.shapes import InterfaceShape
from shaping.shaper import Shaper
from tools.lab.kernel import entered


def hold_storage(capacity: int = 40 * MBIT) -> InterfaceShape:
    """Storage at 20 kbit/s: 50 packets of a kilobyte take 20 s to leave, so that they wait however slow a test is."""
    return make_shape(INTERFACE, capacity=capacity, storage=20_000, storage_ceil=20_000)


def received(sink: socket.socket, count: int) -> list[int]:
    """The first two bytes of so many datagrams, in the order of their arrival."""
    return [int.from_bytes(sink.recv(2000)[:2], "big") for _ in range(count)]


def fill_storage(bench: Bench, sink: socket.socket, count: int) -> socket.socket:
    sock = bench.socket(socket.AF_INET)
    mark_socket(sock, minor=MARK_MINOR["storage"], dscp=1)
    for number in range(count):
        sock.sendto(number.to_bytes(2, "big") + bytes(PAYLOAD_BYTES - 2), sink.getsockname())
    return sock


def test_changes_of_classes_and_queue_limits_lose_nothing_of_a_backlog(shaper: Shaper, bench: Bench) -> None:
    shaper.attach(hold_storage(capacity=1000 * MBIT))
    with bench.sink(socket.AF_INET) as sink, fill_storage(bench, sink, 100):
        waiting = shaper.counters(INTERFACE).classes["storage"].backlog_packets
        assert waiting > 50
        for capacity in (26, 1000, 40, 500, 26):  # queue limits shrink to 128 KiB and grow again under the backlog
            assert shaper.apply(hold_storage(capacity=capacity * MBIT))
        counters = shaper.counters(INTERFACE)
        assert counters.classes["storage"].backlog_packets > 50
        shaper.apply(make_shape(INTERFACE))
        assert received(sink, 100) == list(range(100))
        assert shaper.counters(INTERFACE).classes["storage"].dropped_packets == 0


def test_what_is_not_held_goes_beyond_a_low_root_and_is_taken_off_what_others_may_borrow(
    shaper: Shaper, bench: Bench
) -> None:
    """A root of 8 Mbit/s, storage at 2 of it; class other at 28 of the interface's 32."""
    low = make_shape(INTERFACE, capacity=8 * MBIT, compute=MBIT, storage=2 * MBIT, other=MBIT)
    wide = replace(low.classes[3], rate_bits_per_s=28 * MBIT, ceil_bits_per_s=32 * MBIT)
    shaper.attach(replace(low, classes=(*low.classes[:3], wide), open_bits_per_s=32 * MBIT))

    def sent_mbit_per_s(*, with_people: bool) -> tuple[float, float]:
        before, started_s = shaper.counters(INTERFACE).classes, time.monotonic()
        while time.monotonic() < started_s + 1.0:
            for sock in (storage, people) if with_people else (storage,):
                with contextlib.suppress(BlockingIOError):
                    sock.sendto(bytes(PAYLOAD_BYTES), socket.MSG_DONTWAIT, sink.getsockname())
        after, scale = shaper.counters(INTERFACE).classes, 8 / 1e6 / (time.monotonic() - started_s)
        names = ("storage", "other")
        one, other = (scale * (after[name].sent_bytes - before[name].sent_bytes) for name in names)
        assert one <= 9
        assert other <= 34
        return one, other

    with bench.sink(socket.AF_INET) as sink, bench.socket(socket.AF_INET) as storage:
        mark_socket(storage, minor=MARK_MINOR["storage"], dscp=1)
        with bench.socket(socket.AF_INET) as people:
            most_of(lambda: sent_mbit_per_s(with_people=False), lambda found: found[0] >= 6, needed=1)
            most_of(  # a busy kernel looks at the queue so late that it sends a burst a time, for seconds
                lambda: sent_mbit_per_s(with_people=True),
                lambda found: 1.5 <= found[0] <= 3.5 and found[1] >= 18,
                needed=1,
                windows=20,
            )


def test_a_killed_shapers_backlog_is_adopted_without_losing_a_packet(bench: Bench, tmp_path: Path) -> None:
    code = (
        "import os, signal, sys; from pathlib import Path\n"
        "from shaping.journal import Journal; from shaping.kernel import RealKernel\n"
        "from shaping.shaper import Shaper\n"
        "sys.path.insert(0, sys.argv[2]); from shaping_contract import make_shape\n"
        "shape = make_shape('v0', storage=20_000, storage_ceil=20_000)\n"
        "Shaper(RealKernel(), Journal(Path(sys.argv[1]))).attach(shape)\n"
        "print('up', flush=True); sys.stdin.read(1); os.kill(os.getpid(), signal.SIGKILL)\n"
    )
    root = Path(__file__).parents[3]
    words = [sys.executable, "-c", code, str(tmp_path), str(root / "tests" / "unit" / "shaping")]
    with subprocess.Popen(
        ["nsenter", f"--net=/run/netns/{bench.sender}", *words],
        cwd=root,
        env={**os.environ, "PYTHONPATH": str(root)},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    ) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "up\n"
        with bench.sink(socket.AF_INET) as sink, fill_storage(bench, sink, 100):
            process.communicate(".", timeout=LIMIT_S)
            assert process.returncode == -signal.SIGKILL
            with entered(bench.sender), Shaper(RealKernel(), Journal(tmp_path)) as shaper:
                attachment = shaper.attach(make_shape(INTERFACE))
                assert attachment.adopted
                assert received(sink, 100) == list(range(100))
                assert shaper.counters(INTERFACE).classes["storage"].dropped_packets == 0
                shaper.detach(INTERFACE)


@pytest.mark.parametrize("count", [200, pytest.param(1000, marks=pytest.mark.long)])
def test_rate_changes_under_half_rate_datagrams_lose_none(shaper: Shaper, bench: Bench, count: int) -> None:
    shaper.attach(make_shape(INTERFACE, capacity=40 * MBIT))
    stop = threading.Event()
    sent = [0]
    numbers: list[int] = []

    def pace(sock: socket.socket, address: tuple[str, int]) -> None:
        """20 Mbit/s: ten packets of 1000 bytes every 4 ms; a last one, longer, says that it was the last."""
        start_s = time.monotonic()
        while not stop.is_set():
            for _ in range(10):
                sock.sendto(sent[0].to_bytes(4, "big") + bytes(PAYLOAD_BYTES - 4), address)
                sent[0] += 1
            stop.wait(max(0.0, start_s + sent[0] * 0.0004 - time.monotonic()))
        sock.sendto(bytes(PAYLOAD_BYTES + 1), address)

    def collect(sink: socket.socket) -> None:
        while len(data := sink.recv(2000)) == PAYLOAD_BYTES:
            numbers.append(int.from_bytes(data[:4], "big"))

    with bench.sink(socket.AF_INET) as sink, bench.socket(socket.AF_INET) as sock:
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 64 * 1024)  # held up, it blocks; only a change could lose
        mark_socket(sock, minor=MARK_MINOR["compute"], dscp=18)
        threads = [
            threading.Thread(target=pace, args=(sock, sink.getsockname())),
            threading.Thread(target=collect, args=(sink,)),
        ]
        for thread in threads:
            thread.start()
        changes = 0
        try:
            for number in range(count):
                compute = (24 + number % 10) * MBIT
                shape = make_shape(INTERFACE, capacity=(40 + number % 3) * MBIT, compute=compute, storage=1 * MBIT)
                changes += bool(shaper.apply(shape))
                stop.wait(0.005)
        finally:
            stop.set()
            for thread in threads:
                thread.join()
    assert changes == count
    assert len(numbers) > 500
    assert numbers == list(range(sent[0]))
    counters = shaper.counters(INTERFACE)
    assert counters.classes["compute"].dropped_packets == 0
    assert counters.direct_packets == 0


@contextlib.contextmanager
def flood(bench: Bench, leaf: str) -> Iterator[None]:
    """Keep one leaf busy: the socket's buffer, not a drop, holds the sender back."""
    stop = threading.Event()
    with bench.socket(socket.AF_INET) as sock:
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 64 * 1024)
        mark_socket(sock, minor=MARK_MINOR[leaf], dscp=DSCP[leaf])

        def run() -> None:
            while not stop.is_set():
                sock.sendto(bytes(1400), (RECEIVER[socket.AF_INET], 9))

        thread = threading.Thread(target=run)
        thread.start()
        try:
            yield
        finally:
            stop.set()
            thread.join()


@dataclass(frozen=True)
class Window:
    """Bits per second of each class over some time: `sent` as measured, `surely` what it cannot have been below."""

    sent: dict[str, float]
    surely: dict[str, float]


def rates(shaper: Shaper, *, over_s: float) -> Window:
    """Measure a window. A stall between counting and looking at the clock cannot make `surely` larger than it was."""
    outer_start_s = time.monotonic()
    before, start_s = shaper.counters(INTERFACE), time.monotonic()
    time.sleep(over_s)  # the window itself
    inner_end_s = time.monotonic()
    after, end_s = shaper.counters(INTERFACE), time.monotonic()
    bits = {name: (found.sent_bytes - before.classes[name].sent_bytes) * 8 for name, found in after.classes.items()}
    return Window(
        {name: count / (inner_end_s - start_s) for name, count in bits.items()},
        {name: count / (end_s - outer_start_s) for name, count in bits.items()},
    )


def test_a_class_keeps_its_guarantee_and_borrows_what_others_leave(shaper: Shaper, bench: Bench) -> None:
    shaper.attach(make_shape(INTERFACE, capacity=20 * MBIT, compute=12 * MBIT, storage=4 * MBIT, other=2 * MBIT))

    def window() -> Window:
        found = rates(shaper, over_s=0.8)
        assert sum(found.surely.values()) <= 1.05 * 20 * MBIT, "more than there is"
        return found

    def guaranteed(found: Window) -> bool:
        """Storage has its guarantee; compute its own, and the excess first, by its priority; all is used."""
        storage, compute = found.sent["storage"], found.sent["compute"]
        return storage >= 0.9 * 4 * MBIT and compute >= 0.9 * 15 * MBIT and storage + compute >= 0.9 * 20 * MBIT

    with flood(bench, "storage"):
        most_of(window, lambda alone: alone.sent["storage"] >= 0.9 * 20 * MBIT)
        with flood(bench, "compute"):
            most_of(window, guaranteed)
    assert shaper.counters(INTERFACE).direct_packets == 0


def test_leaves_together_never_send_more_than_their_parents_ceiling(shaper: Shaper, bench: Bench) -> None:
    shape = make_shape(INTERFACE, capacity=8 * MBIT, compute=4 * MBIT, storage=1 * MBIT, other=1 * MBIT)
    limited = tuple(
        type(found)(found.name, found.rate_bits_per_s, found.rate_bits_per_s, found.priority)
        if found.name == "compute"
        else found
        for found in shape.classes
    )
    shaper.attach(InterfaceShape(INTERFACE, shape.capacity_bits_per_s, limited))

    def window() -> Window:
        found = rates(shaper, over_s=0.8)
        assert found.surely["compute"] <= 1.1 * 4 * MBIT
        return found

    with flood(bench, "compute"), flood(bench, BULK_NAME):
        most_of(window, lambda found: found.sent["compute"] >= 0.9 * 4 * MBIT)
