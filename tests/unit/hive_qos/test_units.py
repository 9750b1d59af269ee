"""Rates, sizes, shares and durations as people write them."""

from __future__ import annotations

import contextlib

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hive_qos import units


@pytest.mark.parametrize(
    ("text", "rate_bits_per_s"),
    [
        ("200 Mbit/s", 200_000_000),
        ("1.5 Gbit/s", 1_500_000_000),
        ("800kbit", 800_000),
        (" 2.5 Mbit ", 2_500_000),
        ("10 Tbit/s", 10**13),
        ("1 bit/s", 1),
        # A float would make this 299 999.
        ("0.3 Mbit/s", 300_000),
    ],
)
def test_a_rate_is_read_exactly(text: str, rate_bits_per_s: int) -> None:
    assert units.parse_rate_bits_per_s(text) == rate_bits_per_s


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("0 Mbit/s", "above zero"),
        ("0.1 bit/s", "above zero"),
        ("11 Tbit/s", "beyond every interface"),
        ("-5 Mbit/s", "not a rate"),
        ("5 MB/s", "not a rate"),
        ("5 mbit/s", "not a rate"),
        ("5 Mbps", "not a rate"),
        ("", "not a rate"),
        ("1e9 bit/s", "not a rate"),
        ("nan Mbit/s", "not a rate"),
        ("٣ Mbit/s", "not a rate"),
    ],
)
def test_what_is_no_rate_is_refused_with_a_reason(text: str, says: str) -> None:
    with pytest.raises(ValueError, match=says):
        units.parse_rate_bits_per_s(text)


@given(st.text(max_size=30))
def test_no_text_does_worse_than_value_error(text: str) -> None:
    for parse in (
        units.parse_rate_bits_per_s,
        units.parse_fraction,
        units.parse_duration_s,
        units.parse_size_bytes,
    ):
        with contextlib.suppress(ValueError):
            assert parse(text) >= 0


def test_shares_durations_and_sizes_are_read() -> None:
    assert units.parse_fraction("20 %") == 0.2
    assert units.parse_fraction("100%") == 1.0
    assert units.parse_duration_s("250 ms") == 0.25
    assert units.parse_duration_s("5 min") == 300.0
    assert units.parse_size_bytes("64 KiB") == 65_536
    assert units.parse_size_bytes("1.5 MB") == 1_500_000
    with pytest.raises(ValueError, match="above 100 %"):
        units.parse_fraction("101 %")


@pytest.mark.parametrize(
    ("rate_bits_per_s", "text"),
    [
        (0, "0 bit/s"),
        (999, "999 bit/s"),
        (41_300_000, "41.3 Mbit/s"),
        (40_000_000, "40 Mbit/s"),
        (999_700_000, "1000 Mbit/s"),
        (1_000_000_000, "1 Gbit/s"),
    ],
)
def test_a_rate_is_written_with_three_figures(rate_bits_per_s: int, text: str) -> None:
    assert units.format_rate(rate_bits_per_s) == text


@given(st.integers(min_value=1_000, max_value=units.RATE_BITS_PER_S_MAX))
def test_a_written_rate_reads_back_within_half_a_percent(rate_bits_per_s: int) -> None:
    again = units.parse_rate_bits_per_s(units.format_rate(rate_bits_per_s))
    assert abs(again - rate_bits_per_s) <= 0.005 * rate_bits_per_s


@given(st.lists(st.integers(min_value=1, max_value=10**9), min_size=1, max_size=20))
def test_parts_in_bytes_never_exceed_the_whole(parts_bits_per_s: list[int]) -> None:
    whole = units.bytes_per_s_of(sum(parts_bits_per_s))
    assert sum(map(units.bytes_per_s_of, parts_bits_per_s)) <= whole
