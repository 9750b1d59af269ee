"""Links really have the rate, delay, loss and buffer that they claim, also when these change under traffic."""

from __future__ import annotations

import math
import socket
import statistics
import threading
import time
from collections.abc import Callable, Iterator

import pytest
from lab_traffic import Pinger, flow
from patience import most_of, wait_until

from hive_qos.errors import ConfigurationError
from tools.lab import Lab

RATE_BITS_PER_S = 40_000_000


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
        pinger.has_rtt_s(0.010)


def test_one_tcp_flow_gets_nearly_all_of_the_rate_and_a_change_of_rate_takes_hold(main_job: Lab) -> None:
    link = main_job.links["a-r"]
    try:
        with flow(main_job["a"], main_job["b"]) as running:
            # Ethernet, IP and TCP headers leave 1448 of 1514 bytes: 0.956.
            most_of(lambda: running.share(link, RATE_BITS_PER_S), lambda share: share >= 0.93)
            link.set_rate(RATE_BITS_PER_S // 2)
            assert link.rate_bits_per_s == RATE_BITS_PER_S // 2
            most_of(lambda: running.share(link, RATE_BITS_PER_S // 2), lambda share: share >= 0.93)
    finally:
        link.set_rate(RATE_BITS_PER_S)


def test_a_relay_without_frames_rests(main_job: Lab) -> None:
    def share_of_a_core() -> float:
        start_s, cpu_s = time.monotonic(), main_job.relay_request({"op": "status"})["cpu_s"]
        time.sleep(0.5)  # the window itself
        return (main_job.relay_request({"op": "status"})["cpu_s"] - cpu_s) / (time.monotonic() - start_s)

    # One that looks again and again instead of waiting takes all of a core; stray frames of hosts cost next to nothing.
    most_of(share_of_a_core, lambda share: share < 0.1)


def test_a_full_buffer_delays_by_its_length_and_twice_that_at_half_rate(main_job: Lab) -> None:
    """The default buffer is 100 ms at the first rate, kept in bytes; a flood of UDP keeps it full."""
    link = main_job.links["a-r"]
    assert link.buffer_bytes == RATE_BITS_PER_S // 8 // 10
    stop = threading.Event()
    with main_job["a"].enter():
        blast = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)

    target = (main_job["r"].address, 9)

    def flood() -> None:
        while not stop.wait(0.005):
            for _ in range(40):
                blast.sendto(b"x" * 1400, target)

    def filling() -> float:
        """The queue's length as a share of the buffer: the median of a window, in which it is never longer."""
        lengths = _sampled(lambda: link.counters()["a"].backlog_bytes, 9)
        assert max(lengths) <= 1.02 * link.buffer_bytes
        return statistics.median(lengths) / link.buffer_bytes

    thread = threading.Thread(target=flood)
    thread.start()
    try:
        most_of(filling, lambda share: share >= 0.9)
        before = link.counters()["a"]
        link.set_rate(RATE_BITS_PER_S // 2)
        after = link.counters()["a"]
        assert link.rate_bits_per_s == RATE_BITS_PER_S // 2
        # What waited waits still or was sent: a change of rate that lost the queue, or made another, has neither.
        assert after.bytes >= before.bytes
        # (The kernel reads the two one after the other: a frame may leave between.)
        assert after.backlog_bytes + after.bytes - before.bytes >= before.backlog_bytes - 2 * 1514
        most_of(filling, lambda share: share >= 0.9)
        wait_until(lambda: link.counters()["a"].drops > before.drops)
    finally:
        stop.set()
        thread.join()
        blast.close()
        link.set_rate(RATE_BITS_PER_S)


def test_delay_and_loss_change_while_running(main_job: Lab) -> None:
    link = main_job.links["a-r"]

    def lost() -> int:
        return link.counters()["a"].lost

    with Pinger(main_job["a"], main_job["b"]) as pinger:
        link.set_delay(0.0125)
        pinger.has_rtt_s(0.030)
        link.set_delay(0.0025)
        lost_before = lost()
        link.set_loss(0.1)
        arrived = pinger.count_arrivals(4000, lost=lost)
        # 4000 draws at 0.1: mean 400, standard deviation 19; five of those.
        assert 305 <= 4000 - arrived <= 495
        assert lost() - lost_before == pytest.approx(4000 - arrived, abs=5)
        link.set_loss(0)
        assert pinger.count_arrivals(1000) == 1000
        assert link.path() == (0.0025, 0)


def answered_in_s(pinger: Pinger) -> float:
    try:
        return pinger.rtt_s(limit_s=2.0)
    except TimeoutError:
        return math.inf


def test_a_link_that_is_down_loses_the_carrier_and_comes_back(main_job: Lab) -> None:
    link = main_job.links["a-r"]

    def shown() -> str:
        return main_job["a"].run(["ip", "link", "show", "eth0"]).stdout

    with Pinger(main_job["a"], main_job["b"]) as pinger:
        link.down()
        with pytest.raises(TimeoutError):
            pinger.rtt_s(limit_s=1.0)
        assert "NO-CARRIER" in shown()
        link.up()
        wait_until(lambda: "state UP" in shown(), what=shown)
        most_of(lambda: answered_in_s(pinger), lambda found_s: found_s < 0.1)


def test_a_link_without_delay_needs_no_relay_and_keeps_its_rate(lab_factory: Callable[..., Lab]) -> None:
    lab = lab_factory()
    lab.host("a")
    lab.host("b")
    link = lab.link("a", "b", rate_bits_per_s=20_000_000, buffer_bytes=100_000)  # 40 ms: a stall of the sender
    lab.up()
    assert link.medium == "veth"
    with flow(lab["a"], lab["b"]) as running:
        most_of(lambda: running.share(link, 20_000_000), lambda share: share >= 0.92)
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
