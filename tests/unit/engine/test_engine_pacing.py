"""The token bucket that keeps a rate, round-trip windows and delivery rates."""

from __future__ import annotations

import math
import random

import pytest

from transport.engine.congestion.pacer import BURST_BYTES_MIN, HEADER_BYTES, HEADROOM, RATE_VALID_S, Pacer
from transport.engine.congestion.path_estimates import DeliveryRate, RttWindow

SIZE = 1452


def send(pacer: Pacer, *, from_s: float, until_s: float, wake_s: float = 0.0) -> int:
    """Payload bytes that go when somebody always has some, and wakes late by up to `wake_s`."""
    rng, now_s, sent = random.Random(1), from_s, 0
    while now_s < until_s:
        if pacer.allowance(now_s=now_s) > 0:
            pacer.on_sent(datagrams=1, payload_bytes=SIZE)
            sent += SIZE
        else:
            at_s = pacer.next_send_at(now_s=now_s)
            assert at_s > now_s
            now_s = at_s + rng.random() * wake_s
    return sent


@pytest.mark.parametrize("rate", [1_000_000, 40_000_000, 1_000_000_000])
@pytest.mark.parametrize("wake_s", [0.0, 0.001])
def test_a_rate_is_reached_on_the_wire_and_never_exceeded_by_more_than_a_bucket(rate: int, wake_s: float) -> None:
    pacer = Pacer()
    pacer.give(rate, now_s=100.0)
    on_wire = send(pacer, from_s=100.0, until_s=102.0, wake_s=wake_s) * (SIZE + HEADER_BYTES) / SIZE
    given = 2 * HEADROOM * rate / 8
    assert on_wire <= given + max(given / 500, BURST_BYTES_MIN) + SIZE + HEADER_BYTES
    assert on_wire >= 0.97 * given


def test_a_rate_that_ends_or_is_taken_away_holds_nothing_back() -> None:
    pacer = Pacer()
    assert pacer.allowance(now_s=1.0) == math.inf
    pacer.give(8_000, now_s=1.0)
    pacer.on_sent(datagrams=1, payload_bytes=10_000)
    assert pacer.allowance(now_s=1.0) < 0
    assert pacer.next_send_at(now_s=1.0) == 1.0 + RATE_VALID_S  # the debt is longer than the rate is valid
    assert pacer.allowance(now_s=1.01 + RATE_VALID_S) == math.inf
    pacer.give(8_000, now_s=10.0)
    assert pacer.allowance(now_s=10.0) <= BURST_BYTES_MIN
    pacer.give(None, now_s=10.0)
    assert pacer.allowance(now_s=10.0) == math.inf


def test_a_pause_saves_no_more_than_a_bucket() -> None:
    pacer = Pacer()
    pacer.give(8_000_000, now_s=0.0)
    assert pacer.allowance(now_s=2.0) == BURST_BYTES_MIN


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
