"""Averages over a window: what a counter said then and now, and whether there was more to send all the time."""

from __future__ import annotations

from broker.api.documents.window_average import Average, Averages

WINDOW_S = 60.0


def followed(readings: list[tuple[float, int, bool]]) -> Average | None:
    averages, found = Averages(parts=12), {}
    for now_s, sent_bytes, waiting in readings:
        averages.follow("x", sent_bytes, window_s=WINDOW_S, now_s=now_s, waiting=waiting)
        found = dict(averages.known())
    return found.get("x")


def test_the_average_goes_back_one_window_and_no_further() -> None:
    """80 Mbit/s for a minute, then 8 for two: the minute is forgotten."""
    readings, sent = [], 0
    for second in range(181):
        readings.append((float(second), sent, True))
        sent += 10_000_000 if second < 60 else 1_000_000
    found = followed(readings)
    assert found is not None
    assert found.bits_per_s == 8_000_000
    assert WINDOW_S <= found.over_s <= WINDOW_S * 13 / 12
    assert found.waiting_s >= WINDOW_S


def test_before_a_window_is_over_it_says_how_long_it_has_measured() -> None:
    assert followed([(0.0, 0, True)]) is None
    assert followed([(0.0, 0, True), (0.5, 1000, True)]) == Average(16_000, 0.5, 0.5)


def test_one_reading_with_nothing_waiting_begins_the_wait_anew() -> None:
    found = followed([(float(second), second, second != 70) for second in range(100)])
    assert found is not None
    assert found.waiting_s == 29.0


def test_a_counter_that_goes_back_begins_anew_and_what_is_not_followed_is_forgotten() -> None:
    assert followed([(0.0, 9_000, True), (1.0, 10_000, True), (2.0, 0, True), (3.0, 1_000, True)]) == Average(
        8_000, 1.0, 1.0
    )
    averages = Averages(parts=4)
    averages.follow("x", 0, window_s=1.0, now_s=0.0)
    averages.known()
    assert dict(averages.known()) == {}
    averages.follow("x", 1_000, window_s=1.0, now_s=1.0)
    assert dict(averages.known()) == {}, "it began anew"


def test_what_is_kept_of_a_counter_does_not_grow_with_its_readings() -> None:
    averages = Averages(parts=4)
    for tick in range(10_000):
        averages.follow("x", tick, window_s=2.0, now_s=tick / 100)
        averages.known()
    assert len(averages._known["x"].points) <= 6
