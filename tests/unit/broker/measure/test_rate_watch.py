"""Looks between two ticks: what they find, how often they tell of it, and that nobody pays for none."""

from __future__ import annotations

from broker.measure.rate_watch import LOOK_S, REPORTED_LOOKS, RateWatch
from broker.model.values import Watch

RISES, FALLS = Watch("a", 30_000_000, rising=True), Watch("a", 15_000_000, rising=False)


class Counter:
    def __init__(self) -> None:
        self.now_s, self.sent_bytes, self.reads = 0.0, 10**9, 0
        self.rate_watch = RateWatch(self.read, clock=lambda: self.now_s)

    def read(self) -> dict[str, int]:
        self.reads += 1
        return {"a": self.sent_bytes, "b": 0}

    def sends(self, bits_per_s: float, *, for_s: float) -> list[float]:
        """When it was told to decide, from now on."""
        begun_s, reported = self.now_s, []
        while self.now_s < begun_s + for_s - 1e-9:
            self.now_s += 0.001
            self.sent_bytes += int(bits_per_s / 8000)
            if self.rate_watch.look():
                reported.append(round(self.now_s - begun_s, 3))
        return reported


def test_nobody_looks_while_nobody_wants_it() -> None:
    counter = Counter()
    assert counter.sends(90e6, for_s=1.0) == []
    assert counter.reads == 0
    counter.rate_watch.want([RISES])
    counter.sends(0, for_s=1.0)
    assert 0 < counter.reads <= 1.0 / LOOK_S + 1
    counter.rate_watch.want([])
    before = counter.reads
    counter.sends(90e6, for_s=1.0)
    assert counter.reads == before
    assert counter.rate_watch.pace_bits_per_s("a") is None


def test_a_crossing_is_told_within_two_looks_either_way() -> None:
    counter = Counter()
    counter.rate_watch.want([RISES])
    assert counter.sends(2e6, for_s=0.5) == []
    (rise_s, *_) = counter.sends(90e6, for_s=0.05)
    assert rise_s <= 2 * LOOK_S
    pace = counter.rate_watch.pace_bits_per_s("a")
    assert pace is not None
    assert pace > 30_000_000
    counter.rate_watch.want([FALLS])
    assert counter.sends(90e6, for_s=0.5) == []
    (fall_s, *_) = counter.sends(1e6, for_s=0.05)
    assert fall_s <= 2 * LOOK_S


def test_a_crossing_that_changes_nothing_is_told_twice_and_again_after_it_was_away() -> None:
    counter = Counter()
    counter.rate_watch.want([RISES])
    counter.sends(0, for_s=0.1)
    reported = []
    for turn in range(100):
        reported += counter.sends(90e6, for_s=0.1)
        counter.rate_watch.want([Watch("a", 30_000_000 + turn, rising=True)])
    assert len(reported) == REPORTED_LOOKS
    counter.sends(0, for_s=0.1)
    assert counter.sends(90e6, for_s=0.05), "once away, it is news again"


def test_an_interface_that_goes_and_counts_anew_is_no_crossing() -> None:
    counter = Counter()
    counter.rate_watch.want([FALLS])
    counter.sends(90e6, for_s=0.1)
    counter.sent_bytes = 0
    assert counter.sends(90e6, for_s=0.1) == []
    counter.rate_watch.want([Watch("gone", 1, rising=True)])
    assert counter.sends(90e6, for_s=0.1) == []
