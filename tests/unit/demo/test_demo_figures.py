"""Statistics, counters and blocks of the demonstration."""

from __future__ import annotations

import math
import statistics
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from hive_qos.errors import ConfigurationError
from tools.demo.checks import check_figures, goal_figures
from tools.demo.figures import Counters, blocks_of, cell
from tools.demo.fixed import tree
from tools.demo.plan import make_plan
from tools.demo.settings import BATCH_MAX, BATCH_MIN, TRIAL_BATCH, Settings, batch_for
from tools.measure.fixed import SHAPED_SHARE
from tools.measure.sampler import parse_cpu, parse_interfaces
from tools.measure.series import Series, percentile

FINITE = st.floats(min_value=0, max_value=1e6)


@given(st.lists(FINITE, min_size=1, max_size=50), st.floats(min_value=0, max_value=1))
def test_percentile_agrees_with_numpy(values: list[float], fraction: float) -> None:
    assert percentile(values, fraction) == pytest.approx(
        float(np.percentile(values, 100 * fraction)), rel=1e-9, abs=1e-6
    )


@given(st.lists(FINITE, min_size=1, max_size=50))
def test_half_percentile_is_the_median(values: list[float]) -> None:
    assert percentile(values, 0.5) == pytest.approx(statistics.median(values), rel=1e-9, abs=1e-9)


def test_counter_is_interpolated_between_samples_and_held_outside() -> None:
    series = Series((10.0, 11.0, 13.0), (100.0, 200.0, 1000.0))
    assert series.at(10.5) == 150
    assert series.at(12.0) == 600
    assert series.at(9.0) == 100
    assert series.at(20.0) == 1000
    assert series.delta((10.5, 12.0)) == 450
    assert Series((), ()).delta((0.0, 1.0)) == 0  # a run that ended before its first sample can be reported, too


def test_leftover_is_shaped_capacity_minus_training_in_the_same_interval() -> None:
    # 8 Mbit/s is 1 MB/s, shaped to 0.97. In 10 s training moved 6 MB, so 3.7 MB were left, of which storage had 3.
    steps = [step(number, begin=float(number), end=float(number + 1)) for number in range(10)]
    figures = cell([steps], counters(compute_bytes=6e6, storage_bytes=3e6), rate_bits_per_s=8_000_000)
    assert figures["storage_share_of_leftover"] == pytest.approx(3 / 3.7)
    assert figures["storage_share_of_link_leftover"] == pytest.approx(0.75)
    assert figures["storage_bits_per_s"] == pytest.approx(2_400_000)
    assert figures["cpu_share"] == pytest.approx(0.5)


def test_time_between_blocks_counts_nowhere() -> None:
    # Two blocks of 2 s with 6 s between them; counters grow evenly, so storage's rate is that of the whole.
    blocks = [[step(0, begin=0.0, end=2.0)], [step(1, begin=8.0, end=10.0)]]
    figures = cell(blocks, counters(compute_bytes=0, storage_bytes=10e6), rate_bits_per_s=8_000_000)
    assert figures["seconds"] == 4.0
    assert figures["storage_bits_per_s"] == pytest.approx(8_000_000)


def test_a_condition_without_steps_has_no_figures() -> None:
    assert cell([], counters(compute_bytes=0, storage_bytes=0), rate_bits_per_s=1) == {"steps": 0}


def test_the_worst_round_of_storage_is_named() -> None:
    times = (0.0, 2.0, 8.0, 10.0)
    uneven = replace(
        counters(compute_bytes=0, storage_bytes=0), storage_bytes=Series(times, (0.0, 1e6, 1e6, 4e6))
    )  # fmt: skip
    blocks = [[step(0, begin=0.0, end=2.0)], [step(1, begin=8.0, end=10.0)]]
    figures = cell(blocks, uneven, rate_bits_per_s=20_000_000)
    assert figures["storage_bits_per_s"] == pytest.approx(8e6)
    assert figures["storage_bits_per_s_min"] == pytest.approx(4e6)


def test_only_rank_zero_and_only_the_asked_half_is_counted() -> None:
    steps = [
        {**step(0, begin=0, end=1), "rank": rank, "kind": "phase", "condition": "idle", "half": half, "block": block}
        for rank in (0, 1)
        for block, half in ((3, "full"), (4, "half"))
    ]
    assert [[row["block"] for row in rows] for rows in blocks_of(steps, condition="idle", half="half")] == [[4]]


def test_every_half_lasts_longer_than_the_window_of_storages_guarantee() -> None:
    settings = Settings()
    assert settings.half_s > settings.guarantee_window_s
    assert {block.seconds for block in make_plan(settings) if block.kind == "phase"} == {settings.half_s}


def test_half_rate_follows_full_rate_of_the_same_phase() -> None:
    phases = [block for block in make_plan(Settings()) if block.kind == "phase"]
    for full, half in zip(phases[::2], phases[1::2], strict=True):
        assert (full.condition, full.round, full.half) == (half.condition, half.round, "full")
        assert half.half == "half"


def phases_of(*, flooded: float, brokered: float = 1.05, stored_bits_per_s: float = 2e6) -> dict[str, Any]:
    """Full-rate figures of a link of 20 Mbit/s; steps are of idle."""
    at_half: dict[str, Any] = {"steps": 0}
    base = {"steps": 30, "storage_share_of_leftover": 1.0, "storage_bits_per_s_min": stored_bits_per_s}
    return {
        "flooded": {"full": {**base, "step_median_of_idle": flooded}, "half": at_half},
        "brokered": {"full": {**base, "step_median_of_idle": brokered}, "half": at_half},
    }


@pytest.mark.parametrize(
    ("flooded", "identical", "holds"), [(2.0, True, True), (1.2, True, False), (2.0, False, False)]
)
def test_a_run_shows_nothing_where_the_flood_harms_nobody_or_weights_differ(
    flooded: float, identical: bool, holds: bool
) -> None:
    checks = check_figures(phases_of(flooded=flooded), weights_identical=identical)
    assert all(entry["passed"] for entry in checks) is holds


@pytest.mark.parametrize(("stored_bits_per_s", "kept"), [(2.0e6, True), (1.9e6, False)])
def test_storages_guarantee_is_judged_by_its_worst_round(stored_bits_per_s: float, kept: bool) -> None:
    phases = phases_of(flooded=2.0, stored_bits_per_s=stored_bits_per_s)
    goals = goal_figures(phases, loss={}, rate_bits_per_s=20_000_000, storage_guarantee=0.1)
    assert [goal["passed"] for goal in goals if "of its guarantee" in goal["name"]] == [kept]


def test_order_of_phases_rotates() -> None:
    phases = [block for block in make_plan(Settings(rounds=2)) if block.kind == "phase" and block.half == "full"]
    assert [block.condition for block in phases[:4]] == ["idle", "flooded", "static", "brokered"]
    assert [block.condition for block in phases[4:]] == ["flooded", "static", "brokered", "idle"]


@pytest.mark.parametrize(
    "wrong",
    [
        {"rounds": 0},
        {"half_s": 0.0},
        {"phases": ("idle", "magic")},
        {"width": 97},
        {"batch": -1},
        {"compute_s": 0.0},
        {"compute_s": math.inf},
    ],
)
def test_settings_that_cannot_work_are_refused(wrong: dict[str, object]) -> None:
    with pytest.raises(ConfigurationError) as caught:
        Settings(**wrong)  # type: ignore[arg-type]  # the point of the test
    assert next(iter(wrong)) in str(caught.value)


@pytest.mark.parametrize(
    ("trial_s", "batch"), [(0.160, 12), (0.054, 36), (0.060, TRIAL_BATCH), (10.0, BATCH_MIN), (0.001, BATCH_MAX)]
)
def test_a_quicker_processor_gets_more_texts_so_that_computing_takes_as_long(trial_s: float, batch: int) -> None:
    assert batch_for(compute_s=0.06, trial_s=trial_s) == batch


def test_static_tree_never_promises_more_than_it_has() -> None:
    lines = tree(40_000_000).commands("eth0")
    rates = {
        line[line.index("classid") + 1]: int(line[line.index("rate") + 1][:-3]) for line in lines if "rate" in line
    }
    assert rates["1:1"] == int(40_000_000 * SHAPED_SHARE)
    assert rates["1:10"] + rates["1:20"] == rates["1:1"]
    ceilings = {line[line.index("ceil") + 1] for line in lines if "ceil" in line}
    assert ceilings == {f"{rates['1:1']}bit"}  # either may have what the other leaves


def test_interface_counters_are_read() -> None:
    text = (
        "Inter-|   Receive              |  Transmit\n"
        " face |bytes packets errs drop fifo frame compressed multicast|bytes packets errs drop fifo colls carrier\n"
        "    lo: 100 2 0 0 0 0 0 0 300 4 0 0 0 0 0 0\n"
        "  e-r1: 1234567 1000 0 0 0 0 0 0 7654321 2000 0 0 0 0 0 0\n"
    )
    assert parse_interfaces(text) == {"lo": [100, 2, 300, 4], "e-r1": [1234567, 1000, 7654321, 2000]}


def test_cpu_time_is_busy_unless_idle_or_waiting() -> None:
    figures = parse_cpu("cpu  100 50 30 800 20 5 5 10 0 0\ncpu0 1 1 1\n", ticks_per_s=100)
    assert figures == {"busy_s": 2.0, "total_s": 10.2, "steal_s": 0.1}


def step(number: int, *, begin: float, end: float) -> dict[str, object]:
    times = {"start_s": begin, "end_s": end, "step_s": end - begin, "cpu_s": 0.1}
    return {"rank": 0, "step": number, **times}


def counters(*, compute_bytes: float, storage_bytes: float) -> Counters:
    """Counters that grow evenly from 0 to 10 s, on a machine that is half busy."""
    times = (0.0, 10.0)
    return Counters(
        compute_bytes=Series(times, (0.0, compute_bytes)),
        storage_bytes=Series(times, (0.0, storage_bytes)),
        cpu_busy_s=Series(times, (0.0, 10.0)),
        cpu_total_s=Series(times, (0.0, 20.0)),
    )
