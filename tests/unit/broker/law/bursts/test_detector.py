"""Bursts that nobody announced: when one is taken to have begun and ended, and what is never taken for one."""

from __future__ import annotations

from broker.law.bursts import detector
from broker.law.inbound_state import ObservedState
from broker.model.values import Burst, ClassSample, InterfaceSample

LINK = 100_000_000


class Host:
    """Class counters that grow as told, and what `observed` makes of them."""

    def __init__(self) -> None:
        self.now_s = 0.0
        self.sent = {"compute": 0, "storage": 0}
        self.state = ObservedState()
        self.announced_s: float | None = None

    def sends(
        self, compute: float, storage: float = 2e6, *, for_s: float = 0.1, pace: float | None = None,
        announced: bool = False, link: int = LINK,
    ) -> Burst | None:  # fmt: skip
        self.now_s = round(self.now_s + for_s, 6)
        self.sent["compute"] += int(compute * for_s / 8)
        self.sent["storage"] += int(storage * for_s / 8)
        classes = tuple(ClassSample(name, sent) for name, sent in self.sent.items())
        sample = InterfaceSample("a", None, 0.0, classes, pace_bits_per_s=None if pace is None else int(pace))
        self.announced_s = self.now_s if announced else self.announced_s
        self.state, burst = detector.follow(
            self.state, sample, slower_bits_per_s=link, announced_s=self.announced_s, now_s=self.now_s
        )
        return burst


def test_a_burst_begins_with_what_training_sends_and_ends_when_it_has_been_quiet() -> None:
    host = Host()
    assert host.sends(0) is None
    assert host.sends(0) is None
    first = host.sends(40e6)
    assert first is not None
    assert first.uid == detector.USER
    assert host.sends(90e6) is not None
    assert host.sends(0, for_s=0.02) is not None, "a ring waits for its neighbours now and then"
    assert detector.quiet_in_s(host.state, now_s=host.now_s) is not None
    assert host.sends(0, for_s=0.04) is None
    second = host.sends(90e6)
    assert second is not None
    assert second.step == first.step + 1


def test_a_look_between_two_ticks_is_enough() -> None:
    host = Host()
    host.sends(0)
    assert host.sends(10e6, for_s=0.05) is None
    assert host.sends(20e6, for_s=0.05, pace=90e6) is not None, (
        "since the last counters little was sent; just now, much"
    )
    assert host.sends(60e6, for_s=0.02, pace=1e6) is not None
    assert host.sends(60e6, for_s=0.06, pace=1e6) is None, "over: of what the counters say it is only the beginning"


def test_storage_that_leaves_is_no_burst() -> None:
    host = Host()
    for _ in range(20):
        assert host.sends(1e6, 90e6, pace=91e6) is None
    assert host.state.training_s is None


def test_nothing_is_guessed_of_what_was_announced() -> None:
    host = Host()
    host.sends(0)
    for _ in range(5):
        assert host.sends(90e6, announced=True) is None
    assert host.state.training_s is None
    assert host.sends(90e6) is None, "counted from before its end"
    assert host.sends(90e6, for_s=0.01) is None, "the same figure"
    assert host.sends(90e6) is not None


def test_counters_that_go_back_or_are_missing_say_nothing() -> None:
    host = Host()
    host.sends(0)
    host.sends(0)
    host.sent = {"compute": -10_000_000, "storage": 0}
    assert host.sends(0) is None
    state, burst = detector.follow(host.state, None, slower_bits_per_s=LINK, announced_s=None, now_s=host.now_s + 0.1)
    assert burst is None
    assert state.counted_s is None


def test_the_decision_asks_to_be_called_for_the_other_side_of_where_it_is() -> None:
    host = Host()
    host.sends(0)
    waits = detector.watch("a", host.state, slower_bits_per_s=LINK)
    assert (waits.rising, waits.bits_per_s) == (True, LINK * 3 // 10)
    host.sends(90e6)
    comes = detector.watch("a", host.state, slower_bits_per_s=LINK)
    assert comes.rising is False
    assert comes.bits_per_s < waits.bits_per_s
