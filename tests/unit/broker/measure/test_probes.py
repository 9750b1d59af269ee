"""Round trips of probes while the wall clock, by which the kernel says when a reply came, is set."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from broker.events.log import open_log
from broker.measure.probes import LEAST_S, EchoReply, Probes
from broker.policy.types import ProbePolicy

TARGET, RTT_S, LATER_S = "10.0.0.7", 0.02, 0.1


class Echo:
    """A host that answers each request after `takes_s`; what has come is read `LATER_S` after the request."""

    def __init__(self, clocks: Clocks) -> None:
        self.clocks, self.socket = clocks, object()
        self.waiting: list[EchoReply] = []

    def send(self, address: str, *, sequence: int, payload: bytes) -> bool:
        self.waiting.append(EchoReply(address, sequence, payload, self.clocks.wall() + self.clocks.takes_s))
        return True

    def replies(self) -> Iterator[EchoReply]:
        found, self.waiting = self.waiting, []
        yield from found


class Clocks:
    """Time that goes on as told, and probes that live in it."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.now_s, self.ahead_s, self.takes_s = 1000.0, 0.0, RTT_S
        monkeypatch.setattr("broker.measure.probes.EchoSocket", lambda _: Echo(self))
        self.probes = Probes(mark=lambda _: None, log=open_log(), clock=lambda: self.now_s, wall=self.wall)

    def wall(self) -> float:
        return 1.7e9 + self.now_s + self.ahead_s

    def go(self) -> tuple[float, float]:
        """A request, and its answer read: the last round trip, and the least."""
        settings = ProbePolicy((TARGET,), LATER_S)
        self.now_s += LATER_S
        self.probes.go(settings, interface_of=lambda _: "eth0", now_s=self.now_s)
        samples = self.probes.samples(now_s=self.now_s).get("eth0", ())
        if not samples:
            return 0.0, 0.0
        assert samples[0].rtt_latest_s is not None
        assert samples[0].rtt_s_min is not None
        return samples[0].rtt_latest_s, samples[0].rtt_s_min


@pytest.fixture
def clocks(monkeypatch: pytest.MonkeyPatch) -> Clocks:
    return Clocks(monkeypatch)


def test_an_answer_that_looked_too_quick_is_forgotten_within_a_minute(clocks: Clocks) -> None:
    for _ in range(5):
        clocks.go()
    assert clocks.go() == pytest.approx((RTT_S, RTT_S), abs=1e-5)
    clocks.ahead_s += 0.015
    assert clocks.go() == pytest.approx((0.005, 0.005), abs=1e-5), "it is not to be told from a quick one"
    until_s = clocks.now_s + 2 * LEAST_S
    assert clocks.go() == pytest.approx((RTT_S, 0.005), abs=1e-5)
    while clocks.now_s < until_s:
        clocks.go()
    assert clocks.go() == pytest.approx((RTT_S, RTT_S), abs=1e-5)


def test_one_that_is_off_by_more_than_the_round_trip_counts_for_nothing(clocks: Clocks) -> None:
    for _ in range(5):
        clocks.go()
    for set_by_s in (0.05, -0.5):
        clocks.ahead_s += set_by_s
        assert clocks.go() == pytest.approx((RTT_S, RTT_S), abs=1e-5)


def test_a_queue_of_half_a_minute_does_not_hide_the_least(clocks: Clocks) -> None:
    for _ in range(5):
        clocks.go()
    until_s = clocks.now_s + LEAST_S
    clocks.takes_s = 3 * RTT_S
    clocks.go()
    while clocks.now_s < until_s:
        assert clocks.go() == pytest.approx((3 * RTT_S, RTT_S), abs=1e-5)
