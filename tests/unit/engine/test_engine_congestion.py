"""Pacing, round-trip windows, delivery rates, CUBIC and the delay-bounded controller, on links that are reckoned."""

from __future__ import annotations

import math
import random
from typing import Any

import pytest

from transport.engine.congestion.cubic import Cubic
from transport.engine.congestion.delay_bound import DelayBound
from transport.engine.congestion.pacer import Pacer
from transport.engine.congestion.path_estimates import DeliveryRate, RttWindow

MIB = 2**20


def test_the_pacer_sends_at_its_rate_after_one_burst() -> None:
    pacer = Pacer(burst_s=0.002, burst_bytes_min=3000)
    pacer.set_rate(1e6)
    now_s, sent = 100.0, 0
    while now_s < 101.0:
        at = pacer.next_send_at(now_s=now_s)
        if at is None:
            pacer.on_sent(1000)
            sent += 1000
        else:
            assert at > now_s
            now_s = at
    assert sent == pytest.approx(1e6, rel=0.01)


def test_the_rtt_window_forgets_after_two_spans() -> None:
    window = RttWindow(span_s=10)
    window.add(0.001, now_s=0)
    window.add(0.005, now_s=11)
    assert window.least_s == 0.001
    window.add(0.006, now_s=22)
    assert window.least_s == 0.005
    window.add(0.009, now_s=100)
    assert window.least_s == 0.009


def test_the_delivery_rate_is_over_a_tenth_of_a_second_and_says_who_limited_it() -> None:
    rate = DeliveryRate()
    rate.update(now_s=0)
    rate.on_acked(50_000)
    rate.update(now_s=0.05)
    assert rate.rate_bits_per_s == 0
    rate.on_acked(50_000)
    rate.update(now_s=0.1)
    assert rate.rate_bits_per_s == 8_000_000
    rate.on_limited()
    rate.update(now_s=0.2)
    assert (rate.rate_bits_per_s, rate.application_limited) == (0, True)


def run_link(
    *,
    rate_bytes_per_s: float,
    base_s: float,
    seconds: float,
    message_bytes: float = 0.0,
    every_s: float = 1.0,
    jitter_s: float = 0.0,
) -> tuple[float, float, float]:
    """A FIFO link with one bulk sender: its share of the rate, and median and worst queue after the first second.

    Every `every_s` somebody else sends `message_bytes` at once. Packets are acknowledged one by one; jitter is
    interpreters'.
    """
    rng = random.Random(5)
    size = 1452
    bound = DelayBound(packet_bytes=size)
    free_at, flight, now_s, delivered, next_s = 0.0, list[Any](), 0.0, 0, 0.5
    queues = []
    while now_s < seconds:
        while next_s <= now_s:
            free_at = max(free_at, next_s) + message_bytes / rate_bytes_per_s
            next_s += every_s
        while len(flight) * size + size <= bound.allowed_bytes():
            free_at = max(free_at, now_s) + size / rate_bytes_per_s
            flight.append((free_at + base_s + rng.random() * jitter_s, now_s))
            if now_s > 1:
                queues.append(free_at - now_s)
        done_s, sent_s = flight.pop(0)
        now_s = max(now_s, done_s)
        bound.on_rtt(now_s - sent_s, now_s=now_s)
        bound.on_acked(size, now_s=now_s)
        delivered += size
    queues.sort()
    return delivered / seconds / rate_bytes_per_s, queues[len(queues) // 2], queues[-1]


@pytest.mark.parametrize("rate", [1.25e6, 5e6, 12.5e6])
@pytest.mark.parametrize("base_s", [0.004, 0.02])
@pytest.mark.parametrize("jitter_s", [0.0, 0.002])
def test_bulk_fills_a_link_and_keeps_its_queue_short(rate: float, base_s: float, jitter_s: float) -> None:
    share, median_s, worst_s = run_link(rate_bytes_per_s=rate, base_s=base_s, seconds=15, jitter_s=jitter_s)
    assert share > 0.85
    target_s = max(0.002, base_s / 4)
    assert median_s < target_s + jitter_s + 4 * 1452 / rate
    assert worst_s < base_s + 3 * target_s + 10 * 1452 / rate  # slow start ends within one round trip of the target


@pytest.mark.parametrize(("rate", "base_s"), [(12.5e6, 0.004), (2.5e6, 0.02)])
def test_messages_of_others_that_pass_within_a_round_trip_leave_bulk_the_rest_of_the_link(
    rate: float, base_s: float
) -> None:
    share, median_s, _ = run_link(
        rate_bytes_per_s=rate, base_s=base_s, seconds=8, jitter_s=base_s / 20,
        message_bytes=rate * base_s, every_s=10 * base_s,
    )  # fmt: skip
    assert share > 0.85  # of 0.9 that is left
    assert median_s < base_s


def test_to_a_queue_that_stays_bulk_gives_way() -> None:
    bound = DelayBound(packet_bytes=1000)
    bound.slow_start, bound.window_bytes = False, 100_000.0
    for milliseconds in range(1000):
        now_s = milliseconds / 1000
        bound.on_rtt(0.010 if milliseconds < 50 else 0.060, now_s=now_s)
        bound.on_acked(1000, now_s=now_s)
    assert bound.allowed_bytes() == 4000


def test_losses_of_one_round_trip_halve_once() -> None:
    bound = DelayBound(packet_bytes=1000)
    before = bound.window_bytes
    bound.on_loss(now_s=10.0, sent_at_s=9.9)
    bound.on_loss(now_s=10.01, sent_at_s=9.95)
    assert bound.window_bytes == before / 2
    bound.on_loss(now_s=10.2, sent_at_s=10.1)
    assert bound.window_bytes == max(before / 4, 4000)


def test_without_a_sample_the_controller_does_not_know_the_path() -> None:
    bound = DelayBound(packet_bytes=1000)
    assert bound.base_s == math.inf
    assert bound.allowed_bytes() == 10_000


class Link:
    """A FIFO that drops what does not fit, with one sender that always has more; acknowledgements come one by one."""

    def __init__(self, *, rate_bytes_per_s: float, base_s: float, buffer_s: float) -> None:
        self.rate, self.base_s, self.buffer_s = rate_bytes_per_s, base_s, buffer_s
        self.cubic = Cubic(packet_bytes=1452)
        self.now_s, self.free_at, self.delivered, self.cuts = 0.0, 0.0, 0, 0
        self.back_s = 0.0  # a queue on the way back

    def run(self, until_s: float) -> list[float]:
        """The window after every acknowledgement."""
        flight: list[tuple[float, float, bool]] = []
        windows = []
        self.delivered = 0
        while self.now_s < until_s:
            while (len(flight) + 1) * 1452 <= self.cubic.allowed_bytes():
                self.free_at = max(self.free_at, self.now_s)
                lost = self.free_at - self.now_s > self.buffer_s
                if not lost:
                    self.free_at += 1452 / self.rate
                flight.append((self.free_at + self.base_s + self.back_s, self.now_s, lost))
                self.cubic.on_sent(now_s=self.now_s)
            done_s, sent_s, lost = flight.pop(0)
            self.now_s = max(self.now_s, done_s)
            if lost:
                before = self.cubic.window_bytes
                self.cubic.on_loss(now_s=self.now_s, sent_at_s=sent_s)
                self.cuts += self.cubic.window_bytes < before
                continue
            self.cubic.on_rtt(self.now_s - sent_s, now_s=self.now_s)
            self.cubic.on_acked(1452, now_s=self.now_s)
            self.delivered += 1452
            windows.append(self.cubic.window_bytes)
        return windows


@pytest.mark.parametrize("rate", [1.25e6, 5e6, 12.5e6])
@pytest.mark.parametrize("base_s", [0.006, 0.04])
def test_cubic_fills_a_link_whose_buffer_holds_a_round_trip(rate: float, base_s: float) -> None:
    link = Link(rate_bytes_per_s=rate, base_s=base_s, buffer_s=max(base_s, 0.02))
    link.run(10.0)
    link.run(30.0)
    assert link.delivered / 20 > 0.95 * rate
    assert link.cuts >= 1  # it looks for more


def test_after_a_pause_cubic_is_back_within_a_few_round_trips_although_the_way_back_is_full() -> None:
    link = Link(rate_bytes_per_s=2.5e6, base_s=0.006, buffer_s=0.1)
    known = link.run(10.0)[-1]
    link.now_s += 5.0
    link.back_s = 0.05
    began_s = link.now_s
    link.cubic.on_sent(now_s=began_s)
    assert link.cubic.allowed_bytes() == 10 * 1452
    windows = link.run(began_s + 0.5)
    assert windows[-1] >= 0.7 * known


def test_a_gap_of_a_step_does_not_restart_cubic() -> None:
    link = Link(rate_bytes_per_s=2.5e6, base_s=0.006, buffer_s=0.1)
    before = link.run(10.0)[-1]
    link.cubic.on_sent(now_s=link.now_s + 1.5)
    assert link.cubic.window_bytes == before


def test_cubic_cuts_to_seven_tenths_once_for_the_losses_of_a_round_trip() -> None:
    cubic = Cubic(packet_bytes=1000)
    cubic.window_bytes = 100_000.0
    cubic.on_loss(now_s=10.0, sent_at_s=9.9)
    cubic.on_loss(now_s=10.01, sent_at_s=9.95)
    assert cubic.window_bytes == pytest.approx(70_000)
    for _ in range(20):
        cubic.on_loss(now_s=11.0, sent_at_s=10.9)
    assert cubic.window_bytes == pytest.approx(49_000)
    cubic.on_persistent_congestion()
    assert cubic.allowed_bytes() == 2000
    assert cubic.slow_start


def test_the_first_slow_start_ends_without_loss_where_the_round_trip_grows() -> None:
    link = Link(rate_bytes_per_s=2.5e6, base_s=0.04, buffer_s=1.0)
    link.run(2.0)
    assert link.cuts == 0
    assert not link.cubic.slow_start
    assert link.cubic.window_bytes < 2.5e6 * 0.5  # the buffer would have taken a second of it
