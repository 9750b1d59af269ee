"""The benchmarks' arithmetic on records whose figures are plain."""

from __future__ import annotations

import math
from typing import Any

import bench_records as records
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tools.bench import figures
from tools.measure.series import percentile


def test_warm_up_counts_neither_bytes_nor_time_nor_cpu() -> None:
    found = figures.flow(records.flow("native", bytes_per_s=100e6, cpu_s_per_s=0.25))
    assert found["goodput_bits_per_s"] == 800e6
    assert found["sender_cpu_s_per_gb"] == 2.5  # 0.75 s for 300 MB
    assert found["sender_cores"] == 0.25
    assert found["moved_bytes"] == 300_000_000


def test_a_flow_shorter_than_its_warm_up_counts_as_a_whole() -> None:
    first, last = figures.counted([(0.0, 0, 0.0), (0.5, 100, 0.1)], warm_up_s=2.0)
    assert (first[0], last[0]) == (0.0, 0.5)


@pytest.mark.parametrize("samples", [[], [(0.0, 0, 0.0)], [(1.0, 0, 0.0), (1.0, 5, 0.0)]])
def test_a_flow_without_two_moments_is_no_flow(samples: list[tuple[float, int, float]]) -> None:
    with pytest.raises(ValueError, match="two samples"):
        figures.counted(samples, warm_up_s=0.0)


def test_cpu_per_gigabyte_of_nothing_is_infinite_rather_than_cheap() -> None:
    assert figures.cpu_s_per_gb([(0.0, 0, 0.0), (1.0, 0, 0.5)], warm_up_s=0.0) == math.inf


def test_the_machine_pays_what_neither_side_nor_the_relay_did() -> None:
    found = figures.flow(records.flow("native", bytes_per_s=100e6, cpu_s_per_s=0.0, busy_s=6.0, relay_s=2.0))
    assert found["machine_cpu_s_per_gb"] == 20.0  # 6 s for 300 MB
    assert found["relay_cores"] == 0.5
    assert found["other_cores"] == 0.5  # 6 - 2 - both sides' first second, over 4 s
    assert found["idle_share"] == 0.25


def test_memory_is_the_peak_above_what_was_there() -> None:
    assert figures.flow(records.flow("native", bytes_per_s=1e6))["receiver_memory_bytes"] == 500


@pytest.mark.parametrize(
    ("options", "limit"),
    [
        ({"bytes_per_s": 115e6, "busy_s": 8.0}, "link"),  # 920 Mbit/s of 1 Gbit/s, whatever the CPU does
        ({"bytes_per_s": 60e6, "relay_s": 3.6, "busy_s": 8.0}, "lab"),
        ({"bytes_per_s": 60e6, "busy_s": 7.8}, "cpu"),  # 7.8 of the 8 s of two cores
        ({"bytes_per_s": 60e6, "cpu_s_per_s": 0.95}, "cpu"),  # one thread's worth, and a core idle
        ({"bytes_per_s": 60e6, "cpu_s_per_s": 0.3}, "protocol"),
    ],
)
def test_the_limit_is_named(options: dict[str, Any], limit: str) -> None:
    record = records.flow("native", **options)
    assert figures.limit(figures.flow(record), link_bits_per_s=record["rate_bits_per_s"]) == limit


def test_a_link_that_a_flow_shares_is_the_limit_of_both() -> None:
    record = records.flow("native", bytes_per_s=60e6, cpu_s_per_s=0.3)
    record["beside"] = [(float(second), round(57e6 * second), 0.0) for second in range(5)]
    found = figures.flow(record)
    assert found["beside_bits_per_s"] == pytest.approx(456e6)
    assert figures.limit(found, link_bits_per_s=10**9) == "link"  # 480 and 456 Mbit/s
    assert figures.limit({**found, "beside_bits_per_s": 100e6}, link_bits_per_s=10**9) == "protocol"


def test_a_flow_without_a_link_is_never_limited_by_it() -> None:
    found = figures.flow(records.flow("native", bytes_per_s=10e9))
    assert figures.limit(found, link_bits_per_s=None) == "protocol"


def test_what_arrives_after_the_sender_stopped_does_not_make_the_link_faster() -> None:
    # Two messages under way together: half of each was there when the sender stopped, and both ended in half the time.
    rows = [(0.0, 0, 0.0), (1.0, 100, 0.1), (2.0, 200, 0.2), (2.1, 400, 0.3)]
    record = records.flow("native", bytes_per_s=1.0, warm_up_s=0.0)
    record["receiver"] = {"samples": rows}
    record["sender"] = {"samples": rows, "stopped_s": 2.05}
    found = figures.flow(record)
    assert found["goodput_bits_per_s"] == 800.0
    assert found["moved_bytes"] == 400
    assert figures.steady(rows, stopped_s=0.5) == rows  # one sample is no flow: then all of it counts


def test_spread_is_median_and_extremes() -> None:
    assert figures.spread([5.0, 1.0, 3.0]) == {"median": 3.0, "low": 1.0, "high": 5.0, "n": 3}


def test_ratios_are_taken_within_a_repetition() -> None:
    # The machine was twice as fast in the second turn: ratios of medians would mix the two.
    found = figures.ratios({0: 1.0, 1: 4.0, 2: 9.0}, {0: 2.0, 1: 4.0})
    assert found == {"median": 0.75, "low": 0.5, "high": 1.0, "n": 2}
    assert figures.ratios({0: 1.0}, {1: 1.0}) is None


def test_ratios_of_times_are_the_other_way_round() -> None:
    found = figures.ratios({0: 2.0}, {0: 3.0}, inverse=True)
    assert found is not None
    assert found["median"] == 1.5


@given(st.lists(st.floats(min_value=1e-6, max_value=1e3), min_size=1, max_size=50), st.floats(min_value=0, max_value=1))
def test_a_percentile_lies_between_the_extremes(values: list[float], fraction: float) -> None:
    assert min(values) <= percentile(values, fraction) <= max(values) * (1 + 1e-12)


def test_round_trips_give_median_and_99th_percentile_and_empty_sizes_nothing() -> None:
    found = figures.latency(records.latency("native", [0.001] * 99 + [0.101], loaded=True))
    assert found["median_s_1000"] == 0.001
    assert found["p99_s_1000"] == pytest.approx(0.002)  # 1 % of the way from the 99th to the 100th value
    assert found["bulk_bits_per_s"] == 1e9
    assert "median_s_64000" not in found


def test_connections_cost_what_grew_by_their_number() -> None:
    record = {
        "dialled": {"connections": 100, "seconds": 2.0, "cpu_s": 1.0, "before_bytes": 10**6, "after_bytes": 3 * 10**6},
        "accepted": {"before_bytes": 10**6, "after_bytes": 2 * 10**6},
        "idle_cpu_share": [0.01, 0.02],
    }
    found = figures.connections(record)
    assert (found["dialler_bytes"], found["accepter_bytes"]) == (20_000, 10_000)
    assert found["connect_s"] == 0.02


def test_echoes_and_the_flow_beside_count_only_while_the_flow_does() -> None:
    record = records.flow("native", bytes_per_s=1e6, warm_up_s=1.0)
    record["echoes"] = {"asked": 6, "answered": [(0.5, 9.0), (1.0, 0.04), (2.0, 0.05), (3.0, 0.06), (4.5, 9.0)]}
    record["beside"] = [(-1.0, 0, 0.0), (1.0, 50, 0.0), (3.0, 2_000_050, 0.0), (9.0, 9_000_000, 0.0)]
    found = figures.flow(record)
    assert found["echo_median_s"] == 0.05
    assert found["echo_p95_s"] == pytest.approx(0.059)
    assert found["beside_bits_per_s"] == 8_000_000
    assert "echo_median_s" not in figures.flow(records.flow("native", bytes_per_s=1e6))
