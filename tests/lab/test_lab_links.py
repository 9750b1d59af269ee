"""Links really have the rate, delay, loss and buffer that they claim, also when these change under traffic."""

from __future__ import annotations

import contextlib
import socket
import statistics
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

import pytest

from hive_qos.errors import ConfigurationError
from tools.lab import Host, Lab

RATE_BITS_PER_S = 40_000_000


@dataclass
class Flow:
    """A TCP flow of this process between two hosts; `goodput` measures at the receiver."""

    connection: socket.socket
    received_bytes: int = 0
    stop: threading.Event = field(default_factory=threading.Event)

    def goodput_bits_per_s(self, duration_s: float) -> float:
        start_bytes, start_s = self.received_bytes, time.monotonic()
        time.sleep(duration_s)
        return (self.received_bytes - start_bytes) * 8 / (time.monotonic() - start_s)


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
    running = Flow(receiver)

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
        self._echo.bind((target.address6, 5002))
        self._echo.settimeout(2)
        self._ask.connect((target.address6, 5002))
        self._ask.settimeout(2)

    def __enter__(self) -> Pinger:
        return self

    def __exit__(self, *_: object) -> None:
        self._ask.close()
        self._echo.close()

    def rtt_s(self) -> float:
        start_s = time.monotonic()
        self._ask.send(b"x")
        data, address = self._echo.recvfrom(100)
        self._echo.sendto(data, address)
        self._ask.recv(100)
        return time.monotonic() - start_s

    def median_rtt_s(self, count: int = 50) -> float:
        return statistics.median(self.rtt_s() for _ in range(count))

    def count_arrivals(self, sent: int) -> int:
        """Send `sent` datagrams at an easy pace and count those that arrive."""
        arrived = 0
        self._echo.setblocking(False)
        for number in range(sent):
            self._ask.send(b"x" * 64)
            if number % 50 == 49:
                time.sleep(0.005)
                arrived += self._drain()
        time.sleep(0.2)
        arrived += self._drain()
        self._echo.settimeout(2)
        return arrived

    def _drain(self) -> int:
        count = 0
        with contextlib.suppress(BlockingIOError):
            while True:
                self._echo.recv(100)
                count += 1
        return count


@pytest.fixture(scope="module")
def main_job() -> Iterator[Lab]:
    """The main job's network, with 5 ms each way between hosts."""
    with Lab("links") as lab:
        lab.router("r")
        for name in ("a", "b"):
            lab.host(name)
            lab.link(name, "r", rate_bits_per_s=RATE_BITS_PER_S, delay_s=0.0025)
        yield lab.up()


def test_the_round_trip_is_twice_the_delays(main_job: Lab) -> None:
    with Pinger(main_job["a"], main_job["b"]) as pinger:
        assert 0.0098 <= pinger.median_rtt_s() <= 0.012


def test_one_tcp_flow_gets_nearly_all_of_the_rate_and_a_change_of_rate_takes_hold(main_job: Lab) -> None:
    link = main_job.links["a-r"]
    with flow(main_job["a"], main_job["b"]) as running:
        running.goodput_bits_per_s(1.0)
        # Ethernet, IP and TCP headers leave 1448 of 1514 bytes: 0.956.
        assert 0.93 * RATE_BITS_PER_S <= running.goodput_bits_per_s(2.0) <= 0.96 * RATE_BITS_PER_S
        link.set_rate(RATE_BITS_PER_S // 2)
        assert link.rate_bits_per_s == RATE_BITS_PER_S // 2
        time.sleep(0.5)
        assert 0.93 * RATE_BITS_PER_S / 2 <= running.goodput_bits_per_s(1.5) <= 0.97 * RATE_BITS_PER_S / 2
        link.set_rate(RATE_BITS_PER_S)
    relay_cpu_s = main_job.relay_request({"op": "status"})["cpu_s"]
    frames = sum(way.packets for one in main_job.links.values() for way in one.counters().values())
    assert relay_cpu_s / frames < 150e-6, f"{relay_cpu_s / frames * 1e6:.0f} us of CPU a frame"


def test_a_full_buffer_delays_by_its_length_and_twice_that_at_half_rate(main_job: Lab) -> None:
    """The default buffer is 100 ms at the first rate, kept in bytes; a flood of UDP keeps it full."""
    link = main_job.links["a-r"]
    assert link.buffer_bytes == RATE_BITS_PER_S // 8 // 10
    stop = threading.Event()
    with main_job["a"].enter():
        blast = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)

    target = (main_job["r"].address, 9)

    def flood() -> None:
        while not stop.is_set():
            for _ in range(40):
                blast.sendto(b"x" * 1400, target)
            time.sleep(0.005)

    thread = threading.Thread(target=flood)
    thread.start()
    try:
        for rate_bits_per_s, expected_s in ((RATE_BITS_PER_S, 0.1), (RATE_BITS_PER_S // 2, 0.2)):
            waiting_bytes = link.counters()["a"].backlog_bytes
            link.set_rate(rate_bits_per_s)
            assert link.counters()["a"].backlog_bytes >= 0.8 * waiting_bytes, "a change of rate lost the queue"
            time.sleep(0.4)
            backlog_bytes = statistics.median(_sampled(lambda: link.counters()["a"].backlog_bytes, 9))
            assert 0.9 <= backlog_bytes * 8 / rate_bits_per_s / expected_s <= 1.02
            assert link.counters()["a"].drops > 0
    finally:
        stop.set()
        thread.join()
        blast.close()
        link.set_rate(RATE_BITS_PER_S)


def test_delay_and_loss_change_while_running(main_job: Lab) -> None:
    link = main_job.links["a-r"]
    with Pinger(main_job["a"], main_job["b"]) as pinger:
        link.set_delay(0.0125)
        assert 0.0298 <= pinger.median_rtt_s(20) <= 0.033
        link.set_delay(0.0025)
        lost_before = link.counters()["a"].lost
        link.set_loss(0.1)
        arrived = pinger.count_arrivals(4000)
        # 4000 draws at 0.1: mean 400, standard deviation 19; five of those.
        assert 305 <= 4000 - arrived <= 495
        assert link.counters()["a"].lost - lost_before == pytest.approx(4000 - arrived, abs=5)
        link.set_loss(0)
        assert pinger.count_arrivals(1000) == 1000
        assert link.path() == (0.0025, 0)


def test_a_link_that_is_down_loses_the_carrier_and_comes_back(main_job: Lab) -> None:
    link = main_job.links["a-r"]
    with Pinger(main_job["a"], main_job["b"]) as pinger:
        link.down()
        with pytest.raises(TimeoutError):
            pinger.rtt_s()
        assert "NO-CARRIER" in main_job["a"].run(["ip", "link", "show", "eth0"]).stdout
        link.up()
        deadline_s = time.monotonic() + 5
        while "state UP" not in main_job["a"].run(["ip", "link", "show", "eth0"]).stdout:
            assert time.monotonic() < deadline_s
        assert pinger.rtt_s() < 0.1


def test_a_link_without_delay_needs_no_relay_and_keeps_its_rate(lab_factory: Callable[..., Lab]) -> None:
    lab = lab_factory()
    lab.host("a")
    lab.host("b")
    link = lab.link("a", "b", rate_bits_per_s=100_000_000, buffer_bytes=100_000)
    lab.up()
    assert link.medium == "veth"
    with flow(lab["a"], lab["b"]) as running:
        running.goodput_bits_per_s(0.5)
        assert 0.92e8 <= running.goodput_bits_per_s(1.0) <= 0.96e8
    counters = link.counters()["a"]
    # No segmentation offload: what the bucket counts are frames, none larger than the MTU allows.
    assert counters.bytes / counters.packets <= 1514
    with pytest.raises(ConfigurationError, match="carrier"):
        link.set_delay(0.01)


def test_a_link_without_a_rate_can_get_one_later(lab_factory: Callable[..., Lab]) -> None:
    lab = lab_factory()
    lab.host("a")
    lab.host("b")
    link = lab.link("a", "b", buffer_s=0.05)
    lab.up()
    assert link.rate_bits_per_s is None
    link.set_rate(20_000_000)
    assert (link.rate_bits_per_s, link.buffer_bytes) == (20_000_000, 125_000)
    link.set_rate(10_000_000)
    assert (link.rate_bits_per_s, link.buffer_bytes) == (10_000_000, 125_000)
    link.set_rate(None)
    assert link.rate_bits_per_s is None


def _sampled(sample: Callable[[], int], count: int) -> list[int]:
    values = []
    for _ in range(count):
        values.append(sample())
        time.sleep(0.02)
    return values
