"""Asking peers for their clocks: what is learned, how often it is asked, and what a peer cannot make us do."""

from __future__ import annotations

import math
from collections.abc import Mapping

import pytest

from transport.mesh.one_way_delay import ANSWER_S_MIN, CLOCK_S_MAX, PEERS_MAX, UNANSWERED_MAX, OneWayDelay


class Pair:
    """Two ranks whose clocks are apart; the way between them takes as long as it is told."""

    def __init__(self) -> None:
        self.now_s = 100.0
        self.there_s, self.back_s = 0.003, 0.003
        self.apart_s = -4000.0
        self.answering = True
        self.asked = 0
        self.here = OneWayDelay(self._to_peer)
        self.there = OneWayDelay(self._to_us)

    def _to_peer(self, rank: int, message: Mapping[str, object]) -> None:
        assert (rank, message["op"]) == (1, "when")
        self.asked += 1
        if self.answering:
            self.there.asked(0, float(str(message["at"])), self.now_s + self.there_s + self.apart_s)

    def _to_us(self, rank: int, message: Mapping[str, object]) -> None:
        assert (rank, message["op"]) == (0, "then")
        back_at_s = self.now_s + self.there_s + self.back_s
        self.here.answered(1, float(str(message["at"])), float(str(message["here"])), back_at_s)

    def run(self, seconds: float) -> None:
        for _ in range(round(seconds / 0.1)):
            self.here.ask([1], self.now_s)
            self.now_s += 0.1

    def delay_s(self) -> float:
        found = self.here.outbound(1)
        assert found is not None
        return found.delay_s


def test_only_the_way_there_counts() -> None:
    pair = Pair()
    pair.run(1.0)
    before_s = pair.delay_s()
    pair.back_s = 0.2
    pair.run(1.0)
    assert pair.delay_s() == pytest.approx(before_s, abs=1e-6)
    pair.there_s = 0.053
    pair.run(1.0)
    assert pair.delay_s() == pytest.approx(before_s + 0.05, abs=1e-6)
    assert pair.asked == 30


def test_the_way_towards_us_is_learned_from_the_same_messages_at_either_end() -> None:
    pair = Pair()
    pair.run(1.0)

    def here_s() -> float:
        found = pair.here.inbound(1)
        assert found is not None
        return found.delay_s

    def there_s() -> float:
        found = pair.there.inbound(0)
        assert found is not None
        return found.delay_s

    before_s, other_s = here_s(), there_s()
    pair.back_s = 0.053
    pair.run(1.0)
    assert here_s() == pytest.approx(before_s + 0.05, abs=1e-6)
    assert there_s() == pytest.approx(other_s, abs=1e-6)
    pair.back_s, pair.there_s = 0.003, 0.103
    pair.run(1.0)
    assert here_s() == pytest.approx(before_s, abs=1e-6)
    assert there_s() == pytest.approx(other_s + 0.1, abs=1e-6)
    pair.there.asked(0, math.nan, pair.now_s)
    assert math.isfinite(there_s())


def test_a_peer_that_does_not_answer_is_asked_less_often() -> None:
    pair = Pair()
    pair.answering = False
    pair.run(20.0)
    assert pair.asked <= UNANSWERED_MAX + 20
    assert pair.here.outbound(1) is None
    pair.answering = True
    pair.run(2.0)
    asked = pair.asked
    pair.run(1.0)
    assert pair.asked == asked + 10


def test_only_the_first_few_peers_are_asked() -> None:
    asked = []
    delays = OneWayDelay(lambda rank, _message: asked.append(rank))
    delays.ask(range(100), 1.0)
    assert asked == list(range(PEERS_MAX))


def test_who_asks_too_often_is_not_answered_each_time() -> None:
    answered = []
    delays = OneWayDelay(lambda _rank, message: answered.append(message))
    for number in range(1000):
        delays.asked(1, 0.0, number * 0.001)
    assert len(answered) <= 1 + 1.0 / ANSWER_S_MIN
    delays.asked(2, math.nan, 5.0)
    delays.asked(2, math.inf, 6.0)
    assert len(answered) <= 1 + 1.0 / ANSWER_S_MIN


@pytest.mark.parametrize("shown_s", [2 * CLOCK_S_MAX, -2 * CLOCK_S_MAX, 1e11, -1e11, math.inf, math.nan])
def test_a_clock_that_no_host_has_says_nothing_of_the_way(shown_s: float) -> None:
    delays = OneWayDelay(lambda _rank, _message: None)
    delays.asked(1, shown_s, 10.0)
    assert delays.inbound(1) is None
    delays.ask([1], 10.0)
    delays.answered(1, 10.0, shown_s, 10.1)
    assert delays.inbound(1) is None
    assert delays.outbound(1) is None
    delays.asked(1, 5000.0, 10.2)
    assert delays.inbound(1) is not None


@pytest.mark.parametrize(
    ("at", "here"),
    [(math.nan, 1.0), (1e9, 1.0), (-1e9, 1.0), (10.0, math.inf), (10.0, math.nan)],
)
def test_answers_that_cannot_be_are_ignored(at: float, here: float) -> None:
    delays = OneWayDelay(lambda _rank, _message: None)
    delays.answered(1, 10.0, 1.0, 10.1)  # nobody asked
    delays.ask([1], 10.0)
    delays.answered(1, at, here, 10.1)
    assert delays.outbound(1) is None
    delays.answered(1, 10.0, 5000.0, 10.1)
    assert delays.outbound(1) is not None
    delays.forget(1)
    assert delays.outbound(1) is None
