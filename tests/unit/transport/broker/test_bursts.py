"""What the broker is told of bursts, with a clock that the test moves."""

from __future__ import annotations

from typing import Any

from transport.broker.bursts import DEADLINE_S_DEFAULT, DEADLINE_SLACK, PAUSE_S, BurstTracker

MB = 10**6


def step(tracker: BurstTracker, now_s: float, buckets: list[int], took_s: float = 0.4) -> list[Any]:
    """One training step: buckets at intervals of 10 ms, all done after `took_s`; the announcements made."""
    made = [tracker.begun(now_s + 0.01 * i, i, {"10.0.0.2": size}) for i, size in enumerate(buckets)]
    for i in range(len(buckets)):
        tracker.ended(now_s + took_s, i)
    assert tracker.tick(now_s + took_s + PAUSE_S / 2) is None
    assert tracker.tick(now_s + took_s + PAUSE_S) == tracker.step
    assert tracker.tick(now_s + took_s + 1.0) is None
    return [one for one in made if one is not None]


def test_the_first_burst_is_announced_bucket_by_bucket():
    tracker = BurstTracker()
    made = step(tracker, 10.0, [MB, 2 * MB])
    assert [one.bytes_by_destination for one in made] == [{"10.0.0.2": MB}, {"10.0.0.2": 2 * MB}]
    assert (made[0].step, made[0].deadline_s, made[0].next_s) == (1, DEADLINE_S_DEFAULT, None)


def test_later_bursts_are_announced_whole_at_their_first_bucket():
    tracker = BurstTracker()
    step(tracker, 10.0, [MB, 2 * MB])
    (made,) = step(tracker, 11.0, [MB, 2 * MB])
    assert (made.step, made.bytes_by_destination) == (2, {"10.0.0.2": 3 * MB})
    assert abs(made.deadline_s - 0.4 * DEADLINE_SLACK) < 1e-9
    (made,) = step(tracker, 12.0, [MB, 2 * MB])
    assert made.next_s == 1.0


def test_a_burst_that_grows_is_announced_by_the_difference():
    tracker = BurstTracker()
    step(tracker, 10.0, [MB])
    made = step(tracker, 11.0, [MB, 3 * MB])
    assert [one.bytes_by_destination for one in made] == [{"10.0.0.2": MB}, {"10.0.0.2": 3 * MB}]


def test_barriers_begin_no_burst():
    tracker = BurstTracker()
    assert tracker.begun(10.0, 0, {"10.0.0.2": 0}) is None
    tracker.ended(10.1, 0)
    assert tracker.tick(20.0) is None
    assert tracker.next_wake_s() == float("inf")


def test_an_end_counts_once_and_only_for_what_began():
    tracker = BurstTracker()
    tracker.begun(10.0, "one", {"10.0.0.2": MB})
    tracker.begun(10.0, "other", {"10.0.0.2": MB})
    tracker.ended(10.1, "one")
    tracker.ended(10.2, "one")
    tracker.ended(10.3, "nobody")
    assert tracker.tick(11.0) is None
    tracker.ended(11.0, "other")
    tracker.ended(20.0, "other")
    assert tracker.next_wake_s() == 11.0 + PAUSE_S
    assert tracker.tick(11.0 + PAUSE_S) == 1


def test_a_long_pause_says_nothing_of_the_period():
    tracker = BurstTracker()
    step(tracker, 10.0, [MB])
    step(tracker, 11.0, [MB])
    (made,) = step(tracker, 500.0, [MB])
    assert made.next_s is None
