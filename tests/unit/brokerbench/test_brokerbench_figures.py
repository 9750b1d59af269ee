"""The broker's benchmark: its arithmetic on records whose figures are plain."""

from __future__ import annotations

import pytest
from brokerbench_records import block
from hypothesis import given
from hypothesis import strategies as st

from tools.brokerbench.figures import blocks


@pytest.mark.parametrize(
    ("values", "index"),
    [([5.0, 5.0], 1.0), ([1.0, 0.0], 0.5), ([1.0, 0.0, 0.0, 0.0], 0.25), ([0.0, 0.0], 1.0), ([3.0, 1.0], 0.8)],
)
def test_jains_index(values: list[float], index: float) -> None:
    assert blocks.jain(values) == pytest.approx(index)


@given(
    st.lists(st.just(0.0) | st.floats(min_value=1e-3, max_value=1e9), min_size=1, max_size=20),
    st.floats(min_value=0.01, max_value=100),
)
def test_jains_index_depends_on_proportions_alone(values: list[float], factor: float) -> None:
    index = blocks.jain(values)
    assert 1 / len(values) - 1e-9 <= index <= 1 + 1e-9
    assert blocks.jain([factor * value for value in values]) == pytest.approx(index, rel=1e-6)


BAND = {"low": 25.0, "high": 30.0}


@pytest.mark.parametrize(
    ("times_s", "values", "found"),
    [
        ([0, 1, 2, 3, 4], [97, 97, 97, 28, 28], 1.0),  # the change is at 2; at 3 it is in the band, and stays
        ([0, 1, 2.1, 2.2, 2.3, 4], [97, 97, 28, 97, 28, 28], 0.3),  # out again before it had stayed: counts anew
        ([0, 1, 2.1, 2.2], [97, 97, 28, 28], None),  # the series ends before it has stayed
        ([0, 1, 3, 4], [97, 97, 60, 50], None),
        ([0, 1, 3], [28, 28, 28], 0.0),  # it was there already
        ([], [], None),
    ],
)
def test_a_change_is_followed_when_the_band_is_reached_for_good(
    times_s: list[float], values: list[float], found: float | None
) -> None:
    got = blocks.followed_within(times_s, values, change_s=2.0, **BAND)
    assert got == (None if found is None else pytest.approx(found))


def test_the_longest_gap_counts_the_ends_of_the_interval_too() -> None:
    samples = [(0.0, 0), (1.0, 10), (1.5, 10), (2.0, 10), (3.5, 20), (4.0, 30), (9.0, 40)]
    assert blocks.gaps(samples, begin_s=0.5, end_s=4.5) == 2.5  # from 1.0 to 3.5
    assert blocks.gaps(samples, begin_s=4.0, end_s=8.0) == 4.0  # nothing came at all after 4.0
    assert blocks.gaps([], begin_s=0.0, end_s=3.0) == 3.0


def test_settling_steps_count_beside_the_settled_figures_only() -> None:
    found = blocks.shares([block("idle", 0.5)])["idle"]
    assert found["step_s"]["median"] == found["step_s"]["high"] == 0.5
    assert found["step_s"]["n"] == 8
    assert found["compute_bits_per_s"] == pytest.approx(40e6)
    assert (found["whole"]["step_s"]["n"], found["whole"]["step_s"]["high"]) == (10, 1.0)
    assert (found["ratio"]["p95"], found["whole"]["ratio"]["p95"]) == (1.0, pytest.approx(2.0))


def test_what_storage_lacks_while_a_block_settles_shows_beside_what_it_gets_then() -> None:
    record = block("brokered", 0.5, storage_bytes_per_s=6e6)  # two steps of 1 s, eight of 0.5 s
    for sample in record["samples"]["r"]:  # nothing in the first two seconds
        sample["interfaces"]["to-s"][2] = max(0.0, sample["t_s"] - 102.0) * 6e6
    found = blocks.shares([record])["brokered"]
    assert found["storage_of_left"]["all"] == pytest.approx(6 / 7.125)
    assert found["whole"]["storage_of_left"]["all"] == pytest.approx(4 / 6 * 6 / 7.125)


def test_a_ratio_is_taken_to_the_idle_steps_of_the_same_round() -> None:
    # The machine was twice as slow in the second round: a ratio of medians over both would say something else.
    records = [
        block("idle", 0.4),
        block("none", 0.8, storage_bytes_per_s=1e6),
        block("none", 2.0, round_number=1, storage_bytes_per_s=1e6),
        block("idle", 0.8, round_number=1),
        block("brokered", 0.44, round_number=2),  # a round without idle gives no ratio
    ]
    found = blocks.shares(records)
    assert (found["none"]["ratio"]["low"], found["none"]["ratio"]["high"]) == (pytest.approx(2.0), pytest.approx(2.5))
    assert found["idle"]["ratio"]["median"] == 1.0
    assert "ratio" not in found["brokered"]


def test_storage_is_judged_by_what_training_leaves_of_the_shaped_rate() -> None:
    # 97 Mbit/s are 12.125 MB/s; training takes 5 of them, storage has 6 of the 7.125 that are left
    found = blocks.shares([block("brokered", 0.5, storage_bytes_per_s=6e6)])["brokered"]
    assert found["storage_of_left"]["all"] == pytest.approx(6 / 7.125)
    assert found["storage_bits_per_s"] == pytest.approx(48e6)


def test_where_one_device_carries_both_the_sink_counts_storage() -> None:
    record = block("brokered", 0.5)
    record["counters"]["storage"] = None
    record["sink"] = [[99.0, 0], [120.0, 21 * 1448_000]]
    found = blocks.shares([record])["brokered"]
    assert found["storage_bits_per_s"] == pytest.approx(8 * 1514_000)


@pytest.mark.parametrize(
    ("busy_cores", "storage_bytes_per_s", "limit"),
    [(1.9, 1e6, "cpu"), (0.5, 7e6, "network"), (0.5, 1e6, "waiting")],
)
def test_the_limit_is_named(busy_cores: float, storage_bytes_per_s: float, limit: str) -> None:
    record = block("none", 0.5, busy_cores=busy_cores, storage_bytes_per_s=storage_bytes_per_s)
    assert blocks.shares([record])["none"]["limit"] == limit


def test_a_block_without_a_counted_step_is_left_out() -> None:
    assert blocks.shares([block("none", 0.5, steps=2, settling=2)]) == {}
