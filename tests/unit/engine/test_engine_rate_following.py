"""The controller that follows a rate, on links that are reckoned: obeyed where the path carries it, else yielding."""

from __future__ import annotations

import math
import random
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field

import pytest
from hypothesis import given
from hypothesis import strategies as st

from transport.engine.congestion.cubic import WINDOW_PACKETS_INITIAL
from transport.engine.congestion.pacer import RATE_VALID_S
from transport.engine.congestion.rate_following import (
    BUSY_BYTES,
    HEADER_BYTES,
    HEADROOM,
    SLACK_S,
    WANT,
    EndpointRate,
    FollowsRate,
    RateFollower,
)

SIZE = 1452
WIRE = (SIZE + HEADER_BYTES) / SIZE
BASE_S = 0.040
LINK = 2_500_000.0
"""Bytes of payload a second: 20 Mbit/s."""


@dataclass
class Path:
    """A FIFO with a rate, a buffer and losses, and one sender behind a follower; looked at every millisecond."""

    follower: RateFollower
    link: Callable[[float], float] = lambda _now_s: LINK
    loss: float = 0.0
    buffer_s: float = math.inf
    foreign_s: Callable[[float], float] = lambda _now_s: 0.0
    now_s: float = 0.0
    paces: list[float] = field(default_factory=list)
    queues_s: list[float] = field(default_factory=list)
    delivered: int = 0
    sent: int = 0
    _free_s: float = 0.0
    _flight: deque[tuple[float, float, bool]] = field(default_factory=deque)
    _tokens: float = 0.0
    _rng: random.Random = field(default_factory=lambda: random.Random(3))

    def run(self, seconds: float) -> None:
        """Go on for so long; paces and queues are those of this stretch."""
        self.paces, self.queues_s, self.delivered, self.sent = [], [], 0, 0
        end_s = self.now_s + seconds
        while self.now_s < end_s:
            self.now_s += 0.001
            self._acknowledge()
            pace = self.follower.pace_bytes_per_s
            self._tokens = min(self._tokens + pace * 0.001, max(pace * 0.004, SIZE))
            while self._tokens >= SIZE and (len(self._flight) + 1) * SIZE <= self.follower.window_bytes():
                self._tokens -= SIZE
                self._send()
            self.paces.append(pace)
            self.queues_s.append(max(0.0, self._free_s - self.now_s))

    def _send(self) -> None:
        rate, self.sent = self.link(self.now_s), self.sent + SIZE
        lost = self._rng.random() < self.loss or self._free_s - self.now_s > self.buffer_s
        if not lost:
            self._free_s = max(self._free_s, self.now_s) + SIZE / rate
        through_s = max(self._free_s, self.now_s) + BASE_S + self.foreign_s(self.now_s)
        self._flight.append((through_s, self.now_s, lost))

    def _acknowledge(self) -> None:
        acked = missing = 0
        while self._flight and self._flight[0][0] <= self.now_s:
            through_s, sent_s, lost = self._flight.popleft()
            if lost:
                missing += SIZE
            else:
                acked += SIZE
                self.follower.on_rtt(through_s - sent_s, now_s=self.now_s)
        self.delivered += acked
        if acked or missing:
            self.follower.on_progress(acked_bytes=acked, lost_bytes=missing, limited=False, now_s=self.now_s)


def following(share_of_link: float) -> RateFollower:
    """A follower that was given so much that its target is this part of the link."""
    follower = RateFollower(packet_bytes=SIZE)
    follower.follow(share_of_link * LINK * WIRE / HEADROOM, datagram_bytes=SIZE)
    return follower


def late(values: list[float]) -> float:
    """The 95th percentile."""
    return sorted(values)[int(0.95 * len(values))]


def test_a_rate_that_the_path_carries_is_followed_to_the_letter_without_a_queue() -> None:
    path = Path(following(0.9))
    path.run(5)
    assert (min(path.paces), max(path.paces)) == pytest.approx((0.9 * LINK, 0.9 * LINK))
    assert path.delivered / 5 == pytest.approx(0.9 * LINK, rel=0.02)
    assert late(path.queues_s) < 0.005


@pytest.mark.parametrize("share", [1.03, 1.1, 1.5, 4.0])
def test_a_rate_beyond_the_path_fills_it_with_a_short_queue(share: float) -> None:
    path = Path(following(share))
    path.run(3)
    path.run(10)
    assert path.delivered / 10 > 0.88 * LINK
    assert late(path.queues_s) < 0.030
    assert max(path.paces) <= 1.3 * LINK


def test_random_loss_below_the_threshold_changes_nothing_however_long_it_lasts() -> None:
    path = Path(following(0.9), loss=0.01)
    path.run(30)
    assert path.delivered / 30 > 0.97 * 0.9 * LINK * 0.99


def test_a_path_that_drops_what_is_too_much_is_yielded_to() -> None:
    path = Path(following(2.0), buffer_s=0.002)
    path.run(5)
    path.run(10)
    assert 0.85 * LINK < path.delivered / 10 <= LINK
    assert path.sent / 10 < 1.08 * LINK


def test_a_path_that_falls_to_half_and_comes_back_is_followed_both_ways() -> None:
    path = Path(following(0.95), link=lambda now_s: LINK / 2 if 5 <= now_s < 10 else LINK)
    path.run(5)
    path.run(2)
    path.run(3)
    assert 0.42 * LINK < path.delivered / 3 <= 0.5 * LINK * 1.01
    assert late(path.queues_s) < 0.040
    path.run(4)
    path.run(2)
    assert min(path.paces) == pytest.approx(0.95 * LINK)


def test_a_queue_that_is_somebody_elses_takes_no_more_than_the_window_gives_away() -> None:
    path = Path(following(0.5), foreign_s=lambda now_s: 0.040 if now_s >= 3 else 0.0)
    path.run(3)
    path.run(2)
    path.run(6)
    follower = path.follower
    # The window is (base + slack) of the rate; over a round trip with 40 ms more that is 0.62 of it, held, not less.
    assert path.delivered / 6 == pytest.approx(0.5 * LINK * (BASE_S + SLACK_S) / (BASE_S + 0.040), rel=0.05)
    assert follower.pace_bytes_per_s == pytest.approx(0.5 * LINK)


def test_a_window_is_at_most_the_rate_times_the_base_round_trip_and_a_little() -> None:
    follower = following(0.9)
    assert follower.window_bytes() == WINDOW_PACKETS_INITIAL * SIZE
    follower.on_rtt(BASE_S, now_s=0)
    follower.on_rtt(3 * BASE_S, now_s=1)
    assert follower.window_bytes() == pytest.approx(0.9 * LINK * (BASE_S + SLACK_S), abs=1)


def test_an_application_that_sends_little_is_no_sign_of_a_narrow_path() -> None:
    follower = following(0.9)
    now_s = 0.0
    for number in range(400):
        now_s += 0.02
        follower.on_rtt(BASE_S if number < 20 else 3 * BASE_S, now_s=now_s)
        follower.on_progress(acked_bytes=1000, lost_bytes=500, limited=True, now_s=now_s)
    assert not follower.yielding


def test_a_lower_rate_is_followed_at_once_and_so_is_a_higher_one_unless_the_path_is_what_limits() -> None:
    follower = following(0.9)
    follower.follow(0.3 * LINK * WIRE / HEADROOM, datagram_bytes=SIZE)
    assert follower.pace_bytes_per_s == pytest.approx(0.3 * LINK)
    follower.follow(0.6 * LINK * WIRE / HEADROOM, datagram_bytes=SIZE)
    assert follower.pace_bytes_per_s == pytest.approx(0.6 * LINK)
    follower.on_persistent_congestion()
    follower.follow(0.9 * LINK * WIRE / HEADROOM, datagram_bytes=SIZE)
    assert follower.pace_bytes_per_s == pytest.approx(0.3 * LINK)
    for _ in range(40):
        follower.on_persistent_congestion()
    assert follower.pace_bytes_per_s > 10 * SIZE


def busy(rate: EndpointRate, *names: str, now_s: float = 0.0) -> None:
    for name in names:
        rate.on_sent(name, BUSY_BYTES, now_s=now_s)


def test_a_rate_is_divided_equally_among_those_who_send() -> None:
    rate = EndpointRate()
    assert rate.share_bytes_per_s("a", want_bytes_per_s=math.inf, now_s=0) is None
    rate.give(80_000_000, now_s=0)
    busy(rate, "a", "b")
    rate.on_sent("quiet", 200, now_s=0)
    assert rate.share_bytes_per_s("a", want_bytes_per_s=math.inf, now_s=0) == 5e6
    assert rate.share_bytes_per_s("quiet", want_bytes_per_s=math.inf, now_s=0) == pytest.approx(10e6 / 3)
    busy(rate, "a", now_s=0.2)
    assert rate.share_bytes_per_s("a", want_bytes_per_s=math.inf, now_s=0.2) == 10e6
    busy(rate, "b", now_s=0.2)
    rate.forget("b")
    assert rate.share_bytes_per_s("a", want_bytes_per_s=math.inf, now_s=0.2) == 10e6


def test_what_one_cannot_use_goes_to_the_others_and_it_may_recover_up_to_their_level() -> None:
    rate = EndpointRate()
    rate.give(80_000_000, now_s=0)
    busy(rate, "a", "b")
    rate.share_bytes_per_s("a", want_bytes_per_s=1e6, now_s=0)
    rate.share_bytes_per_s("b", want_bytes_per_s=math.inf, now_s=0.01)
    assert rate.share_bytes_per_s("b", want_bytes_per_s=math.inf, now_s=0.02) == 9e6
    assert rate.share_bytes_per_s("a", want_bytes_per_s=1e6, now_s=0.02) == 9e6


def test_a_rate_ends_when_it_is_taken_away_or_not_given_again_in_time() -> None:
    rate = EndpointRate()
    rate.give(8000, now_s=0)
    assert rate.share_bytes_per_s("a", want_bytes_per_s=math.inf, now_s=RATE_VALID_S - 0.01) == 1000
    assert rate.share_bytes_per_s("a", want_bytes_per_s=math.inf, now_s=RATE_VALID_S + 0.01) is None
    rate.give(8000, now_s=10)
    rate.give(None, now_s=10)
    assert rate.share_bytes_per_s("a", want_bytes_per_s=math.inf, now_s=10) is None


@given(st.lists(st.floats(1.0, 1e9), min_size=1, max_size=8), st.integers(8, 10**10))
def test_all_together_never_want_more_than_the_rate_gives(wants: list[float], bits_per_s: int) -> None:
    rate = EndpointRate()
    rate.give(bits_per_s, now_s=0)
    names = [str(number) for number in range(len(wants))]
    busy(rate, *names)
    for name, want in zip(names, wants, strict=True):
        rate.share_bytes_per_s(name, want_bytes_per_s=want, now_s=0)
    levels = [
        rate.share_bytes_per_s(name, want_bytes_per_s=want, now_s=0.01) for name, want in zip(names, wants, strict=True)
    ]
    assert sum(min(want, level or 0) for want, level in zip(wants, levels, strict=True)) <= bits_per_s / 8 * (1 + 1e-9)
    assert min(level or 0 for level in levels) >= bits_per_s / 8 / len(wants) * (1 - 1e-9)


def test_without_a_rate_it_is_cubic_and_goes_on_as_cubic_from_where_it_was_when_the_rate_ends() -> None:
    control = FollowsRate(packet_bytes=SIZE)
    for number in range(8):
        control.on_sent(SIZE, now_s=0.1 * number)
        control.on_rtt(BASE_S, now_s=0.1 * number)
        control.on_acked(10 * SIZE, now_s=0.1 * number)
    assert control.pace_bytes_per_s is None
    assert control.slow_start
    assert control.allowed_bytes() == 90 * SIZE
    control.endpoint.give(80_000_000, now_s=1)
    control.on_sent(SIZE, now_s=1)
    assert control.pace_bytes_per_s == pytest.approx(HEADROOM * 10e6 / WIRE)
    assert control.allowed_bytes() == pytest.approx(HEADROOM * 10e6 / WIRE * (BASE_S + SLACK_S), abs=1)
    control.on_loss(now_s=1.1, sent_at_s=1.05)
    control.on_acked(SIZE, now_s=1.1)
    control.on_sent(SIZE, now_s=1 + RATE_VALID_S + 0.1)
    assert control.pace_bytes_per_s is None
    assert not control.slow_start
    assert control.allowed_bytes() == pytest.approx(HEADROOM * 10e6 / WIRE * BASE_S, rel=0.01)


def test_who_yields_says_how_much_he_wants_and_the_other_connection_takes_the_rest() -> None:
    endpoint = EndpointRate()
    controls = [FollowsRate(packet_bytes=SIZE) for _ in range(2)]
    endpoint.give(80_000_000, now_s=0)
    for control in controls:
        control.endpoint = endpoint
        control.on_sent(BUSY_BYTES, now_s=0)
    controls[0].look(now_s=0.01)
    controls[0].follower.on_persistent_congestion()
    yielded = controls[0].pace_bytes_per_s
    assert yielded is not None
    controls[0].look(now_s=0.02)
    controls[1].look(now_s=0.03)
    assert controls[0].pace_bytes_per_s == yielded
    assert controls[1].pace_bytes_per_s == pytest.approx(HEADROOM / WIRE * (10e6 - WANT * yielded))
