"""Figures, goals and tables of the benchmark of volatile training, of raw records whose figures are easy to see."""

from __future__ import annotations

import io
import json
from dataclasses import asdict
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console
from typer.testing import CliRunner

from tools.collectivesbench import networks
from tools.measure import tables
from tools.measure.records import Writer, read
from tools.volatilebench import figures, report, table
from tools.volatilebench.__main__ import app
from tools.volatilebench.bounds import CHECKS
from tools.volatilebench.schedule import APART, GONE, live_s, plan, plan_of_each
from tools.volatilebench.settings import QUICK, SCENARIOS, Settings

NETWORK = networks.two_sites()
EVERY, TOKENS = 10, 100
OUTAGE = {"how": "killed", "ranks": [1], "begin_s": 20.0, "end_s": 40.0}


def training(contender: str, losses: list[float], *, seed: int = 0, bytes_a_meeting: int = 1000) -> dict[str, Any]:
    """Four workers that meet once a second, of which the first keeps the parameters."""
    lines: dict[str, list[dict[str, Any]]] = {}
    for rank in range(4):
        mine = lines.setdefault(f"h{rank}", [{"joined": True, "t_s": 100.0, "sent_bytes": 7}])
        for number in range(1, len(losses) + 1):
            line = {"t_s": 100.0 + number, "step": number * EVERY, "sent_bytes": 7 + number * bytes_a_meeting}
            mine.append(line | ({"kept": f"{number}.pt"} if rank == 0 else {}))
    kept = {f"{number}.pt": loss for number, loss in enumerate(losses, 1)}
    return {
        "kind": "loss", "scenario": "loss", "case": NETWORK.name, "task": "transformer", "contender": contender,
        "repetition": seed, "tokens": TOKENS, "waits": True, "lines": lines, "losses": kept,
        "ranks": [{"cpu_s": 2.0}] * 4,
    }  # fmt: skip


def churn(commits: list[tuple[float, int]], *, disturbed: bool, weights: str = "w") -> dict[str, Any]:
    """A run of 100 s with so many members at each commit; the second one may hold other weights after the first."""
    lines: dict[str, list[dict[str, Any]]] = {"h0": [], "h1": []}
    losses = {}
    for number, (t_s, members) in enumerate(commits, 1):
        told = {"commit": number, "members": [f"h{rank}" for rank in range(members)], "digest": "d"}
        lines["h0"].append({"t_s": 100.0 + t_s, "weights": "w", "kept": f"{number}.pt", **told})
        lines["h1"].append({"t_s": 100.0 + t_s, "weights": weights if number == 1 else "w", **told})
        losses[f"{number}.pt"] = 4.0 - number / 100
    return {
        "kind": "churn", "scenario": "churn", "case": NETWORK.name, "task": "transformer", "contender": "DiLoCo",
        "disturbed": disturbed, "seconds": 100.0, "begin_s": 100.0, "every": EVERY, "tokens": TOKENS, "lines": lines,
        "losses": losses, "outages": [OUTAGE] if disturbed else [], "network": asdict(NETWORK), "missing": [],
    }  # fmt: skip


def block(*, storage: bool, joining: bool, steps_s: list[float]) -> dict[str, Any]:
    """Steps one after the other from 100 s on; who joins fetches during the last one. Storage gets 40 Mbit/s."""
    steps, now_s = [], 100.0
    for step_s in steps_s:
        steps.append({"begin_s": now_s, "end_s": now_s + step_s})
        now_s += step_s
    last = steps[-1]
    joins = [{"asked_s": last["begin_s"] + 0.1, "joined_s": last["end_s"] - 0.1, "left_s": now_s}]
    samples = [{"t_s": t_s, "interfaces": {"s": [0, 0, int(5e6 * (t_s - 100.0)), 0]}} for t_s in (100.0, 200.0)]
    return {
        "kind": "joiner", "scenario": "joiner", "contender": "hive", "storage": storage, "joining": joining,
        "rate_bits_per_s": 100_000_000, "counter": [2, "s"], "begin_s": 100.0, "end_s": now_s, "steps": steps,
        "joins": joins if joining else [], "samples": samples,
    }  # fmt: skip


RECORDS: list[dict[str, Any]] = [
    *(
        {"kind": "check", "scenario": "checks", "contender": "one process", "case": check.name, "repetition": seed,
         "value": check.at_most * seed, "cpu_s": 1.0}
        for check in CHECKS
        for seed in range(3)
    ),
    training("DDP gloo", [3.0, 2.0, 1.0], bytes_a_meeting=10_000),
    training("DiLoCo", [3.0, 2.1, 1.1]),
    churn([(float(t_s), 4) for t_s in range(1, 101)], disturbed=False),
    churn([(float(t_s), 3 if 20 <= t_s < 40 else 4) for t_s in range(1, 101)], disturbed=True),
    block(storage=False, joining=False, steps_s=[0.5] * 5),
    block(storage=True, joining=True, steps_s=[0.5] * 4 + [1.0]),
    {"kind": "failure", "scenario": "loss", "contender": "A2CiD2", "error": "[bench] it broke"},
]  # fmt: skip


def test_a_curve_counts_all_workers_tokens_and_bytes() -> None:
    points = figures.curve(training("DiLoCo", [3.0, 2.0]))
    assert points == [(4000.0, 1.0, 4000.0, 3.0), (8000.0, 2.0, 8000.0, 2.0)]


def test_members_that_do_not_wait_have_trained_what_each_has() -> None:
    record = training("AsyncDiLoCo", [3.0, 2.0]) | {"waits": False}
    del record["lines"]["h3"][2]  # it was at step 10 when it ended
    assert [point.tokens for point in figures.curve(record)] == [4000.0, 7000.0]


def test_losses_are_compared_after_as_many_tokens() -> None:
    mine, theirs = figures.curve(training("DiLoCo", [3.0, 2.0, 1.5])), figures.curve(training("DDP gloo", [2.0, 1.0]))
    found = figures.beside(mine, theirs)
    assert found["same_loss"] == pytest.approx(2.0)
    assert found["seconds"] == 2.0
    assert "reached_s" not in found
    assert figures.beside(theirs, mine)["reached_s"] == 1.0


def test_goodput_is_of_what_the_living_could_have_trained() -> None:
    undisturbed = churn([(float(t_s), 4) for t_s in range(1, 101)], disturbed=False)
    record = churn([(float(t_s), 3 if 20 <= t_s < 40 else 4) for t_s in range(1, 101)], disturbed=True)
    assert figures.churn(record, undisturbed)["goodput"] == pytest.approx(1.0)
    late = churn([(float(t_s), 4) for t_s in range(1, 101) if not 20 <= t_s < 40], disturbed=True)
    late["lines"]["h1"].append({"joined": True, "asked_s": 141.0, "t_s": 145.0})
    found = figures.churn(late, undisturbed)
    assert found["join_s"] == pytest.approx(4.0)
    assert found["goodput"] == pytest.approx(320 / 380)
    assert found["longest_s"] == pytest.approx(21.0)


def test_the_loss_under_churn_is_compared_after_as_many_tokens() -> None:
    undisturbed = churn([(float(t_s), 4) for t_s in range(1, 101)], disturbed=False)
    half = churn([(float(t_s), 2) for t_s in range(1, 101)], disturbed=True)  # 3.0 where the other one has 3.5
    assert figures.loss_gap(half, undisturbed) == pytest.approx(3.0 / 3.5 - 1)


def test_a_commit_with_different_weights_is_found() -> None:
    commits = [(1.0, 2), (2.0, 2)]
    assert figures.diverged(churn(commits, disturbed=True)) == []
    assert figures.diverged(churn(commits, disturbed=True, weights="other")) == [(0, 1)]


def test_a_run_that_was_begun_anew_is_counted_and_what_was_lost_with_the_state_is_not() -> None:
    undisturbed = churn([(float(t_s), 2) for t_s in range(1, 101)], disturbed=False)
    lost, anew = (churn([(t_s, 2), (t_s + 1.0, 2)], disturbed=True) for t_s in (1.0, 91.0))
    for host, lines in anew["lines"].items():
        for line in lines:
            line.update(run=7, digest="e", weights="x")
        lost["lines"][host] += lines
    found = figures.churn(lost, undisturbed)
    assert (found["anew"], found["diverged"], found["compared"]) == (1.0, 0.0, 4.0)
    assert found["tokens"] == 2 * 2 * EVERY * TOKENS
    assert found["longest_s"] == 91.0


def test_what_torchrun_did_twice_counts_once() -> None:
    lines = [{"t_s": 101.0, "step": 10, "world": 4}, {"t_s": 102.0, "step": 20, "world": 4}]
    again = [{"t_s": 110.0, "joined": True, "world": 3}, {"t_s": 112.0, "step": 20, "world": 3}]
    record = churn([], disturbed=True) | {"lines": {"h0": lines, "h1": again}}
    assert figures.committed_tokens(record) == (4 + 3) * EVERY * TOKENS


def test_only_steps_that_overlap_a_fetch_are_compared_with_idle_ones() -> None:
    idle = block(storage=False, joining=False, steps_s=[0.5] * 5)
    found = figures.joiner(block(storage=True, joining=True, steps_s=[0.5] * 4 + [1.0]), idle)
    assert found["step"] == pytest.approx(2.0)
    assert found["storage"] == pytest.approx(2.0)
    assert found["fetch_s"] == pytest.approx(0.8)


def test_a_joiner_that_holds_up_one_step_in_five_misses_the_goal_of_the_mean_alone_and_the_longest_is_shown() -> None:
    idle, joined = (block(storage=False, joining=one, steps_s=[0.5] * 4 + [1.5]) for one in (False, True))
    joined["joins"] = [{"asked_s": 100.1, "joined_s": 103.4, "left_s": 103.5}]
    found = report.compute({"scenarios": ["joiner"], "settings": {"every": EVERY}}, [idle, joined])["goals"]
    verdicts = [(one["value"], one["passed"], one["where"]) for one in found if "somebody fetches" in one["name"]]
    assert verdicts == [(1.0, True, "longest: 3"), (pytest.approx(1.4), False, "longest: 3")]


@pytest.mark.parametrize("settings", [Settings(), QUICK])
def test_outages_do_not_overlap_and_one_in_eight_is_lost_for_good(settings: Settings) -> None:
    network = networks.two_sites(settings.churn_workers // 2)
    outages = plan(settings, network)
    for one, after in pairwise(outages):
        assert one.end_s < after.begin_s
    assert [one.how for one in outages].count(APART) == 1
    assert outages[-1].how == GONE
    assert len(outages[-1].ranks) == max(1, network.ranks // 8)
    assert (
        0
        < live_s([asdict(one) for one in outages], network.ranks, settings.churn_s)
        < (network.ranks * settings.churn_s)
    )


@pytest.mark.parametrize("settings", [Settings(each=True), QUICK])
def test_each_worker_is_lost_as_often_as_it_should_be_and_one_in_eight_for_good(settings: Settings) -> None:
    network = networks.two_sites(settings.churn_workers // 2)
    outages = plan_of_each(settings, network)
    assert max(one.end_s for one in outages) <= settings.churn_s
    assert [one.how for one in outages].count(APART) == 1
    assert [one.how for one in outages].count(GONE) == max(1, network.ranks // 8)
    assert any(one.end_s > after.begin_s for one, after in pairwise(outages))
    for rank in range(network.ranks):
        begins_s = [one.begin_s for one in outages if one.ranks == (rank,)]
        assert len(begins_s) == int(settings.churn_s / settings.lost_every_s)
        assert {round(after - begin, 6) for begin, after in pairwise(begins_s)} == {settings.lost_every_s}


def test_outages_of_a_rank_that_overlap_count_once() -> None:
    outages = [
        {"how": "killed", "ranks": [1], "begin_s": 20.0, "end_s": 40.0},
        {"how": "sites apart", "ranks": [1, 2], "begin_s": 30.0, "end_s": 60.0},
        {"how": "killed", "ranks": [2], "begin_s": 35.0, "end_s": 45.0},
    ]
    assert live_s(outages, 3, 100.0) == 300.0 - 40.0 - 30.0


def test_every_scenario_has_its_minutes() -> None:
    for settings in (Settings(), QUICK, Settings().scaled(12.0)):
        assert set(settings.minutes) == set(SCENARIOS)
    assert sum(Settings().scaled(12.0).minutes.values()) == pytest.approx(12.0)


@pytest.fixture
def directory(tmp_path: Path) -> Path:
    writer = Writer(tmp_path)
    writer.write({"kind": "run", "scenarios": list(SCENARIOS), "settings": {"every": EVERY}})
    for record in RECORDS:
        writer.write(record)
    writer.close()
    return tmp_path


def test_a_report_is_strict_json_with_every_goal(directory: Path) -> None:
    found = report.compute(*read(directory))
    json.loads(json.dumps(found), parse_constant=pytest.fail)
    verdicts = {goal["name"]: goal["passed"] for goal in found["goals"]}
    assert all(verdicts[f"checks  {check.what}"] for check in CHECKS)  # the median is the bound itself
    assert verdicts["churn  DiLoCo: goodput, of live capacity"]
    assert verdicts["loss  DiLoCo: bytes, of DDP gloo's for as many tokens"]
    assert not verdicts["loss  DiLoCo: of DDP gloo's after as many tokens"]
    assert verdicts["loss  StreamingDiLoCo: of DDP gloo's after as many tokens"] is None
    assert not verdicts["joiner  storage floods, somebody joins: a step while somebody fetches, of an idle one"]
    assert not verdicts[
        "joiner  storage floods, somebody joins: a step while somebody fetches, of an idle one: the mean"
    ]


def test_a_training_without_the_reference_beside_it_reaches_no_goal() -> None:
    """The reference of the second seed failed, or there was no time for it."""
    loss = {"scenarios": ["loss"], "settings": {"every": EVERY}}
    both = [training(name, [3.0, 2.0]) for name in ("DDP gloo", "DiLoCo")]
    second = training("DiLoCo", [9.0, 9.0], seed=1)
    for records, value in ((both, 1.0), ([*both, second], 1.0), ([second], None)):
        found = report.compute(loss, records)["goals"]
        (entry,) = [one for one in found if one["name"].startswith("loss  DiLoCo: of")]
        assert (entry["value"], entry["passed"]) == (value, None if value is None else True)


def test_one_run_with_a_member_that_failed_or_with_other_bits_misses_its_goal() -> None:
    times = [(float(t_s), 4) for t_s in range(1, 101)]
    undisturbed, well = (churn(times, disturbed=one) for one in (False, True))
    for bad in ({**well, "missing": ["[bench] h1 died"]}, churn(times, disturbed=True, weights="other")):
        found = report.compute({"scenarios": ["churn"], "settings": {"every": EVERY}}, [undisturbed, well, bad, well])
        assert [
            one["passed"] for one in found["goals"] if one["at_most" if "at_most" in one else "value"] == 0.0
        ].count(False) == 1


def test_each_row_of_a_table_has_all_its_columns_and_what_is_missing_is_named(directory: Path) -> None:
    found = report.compute(*read(directory))
    for _, heads, rows in table.sections(found):
        assert {len(row) for row in rows} == {len(heads)}
    assert "| two sites of two | transformer | DiLoCo | 1.1 |" in tables.markdown(table.sections(found), found)
    out = io.StringIO()
    tables.print_report(Console(file=out, width=250), table.sections(found), found)
    assert "Failed: loss: A2CiD2: [bench] it broke" in out.getvalue()


def test_an_unknown_scenario_and_an_odd_number_of_workers_are_refused() -> None:
    refused = CliRunner().invoke(app, ["lan"])
    assert refused.exit_code == 2
    assert "no scenario lan; there are checks, loss" in refused.output
    assert CliRunner().invoke(app, ["--workers=5"]).exit_code == 2
