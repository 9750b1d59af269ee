"""Bounds, figures and goals of the collectives' benchmark, from records whose figures are easy to see."""

from __future__ import annotations

from typing import Any

import pytest
from collectivesbench_records import HEAD, URGENT, M, record, trained, twice, urgent

from tools.collectivesbench import bounds, figures, networks, report
from tools.collectivesbench.bounds import WIRE
from tools.collectivesbench.contenders import competing, forced
from tools.collectivesbench.settings import MIB, QUICK, Settings


def goal(found: dict[str, Any], part: str) -> dict[str, Any]:
    (entry,) = [entry for entry in found["goals"] if part in entry["name"]]
    return dict(entry)


@pytest.mark.parametrize("ranks", [2, 4, 8])
def test_equal_links_need_a_ring_s_bytes_for_an_all_reduce(ranks: int) -> None:
    wire_bits = 8 * M * WIRE
    found = bounds.links_s(networks.equal(ranks), "all_reduce", M)
    assert found == pytest.approx(2 * (ranks - 1) / ranks * wire_bits / 1e9)
    for operation in ("all_gather", "reduce_scatter", "all_to_all"):
        assert bounds.links_s(networks.equal(ranks), operation, M) == pytest.approx(found / 2)


def test_a_slow_link_needs_no_more_than_the_tensor_for_an_all_reduce() -> None:
    assert bounds.links_s(networks.uneven(), "all_reduce", M) == pytest.approx(8 * M * WIRE / 25e6)


def test_two_sites_have_to_exchange_one_tensor_and_wait_for_one_way() -> None:
    sites, wire_s = networks.two_sites(), 8 * M * WIRE / 100e6
    assert bounds.links_s(sites, "all_reduce", M) == pytest.approx(wire_s + 0.02)
    assert bounds.links_s(sites, "broadcast", M) == pytest.approx(wire_s + 0.02)
    assert bounds.links_s(sites, "all_gather", M) == pytest.approx(wire_s / 2 + 0.02)
    assert bounds.links_s(sites, "all_to_all", M) == pytest.approx(wire_s + 0.02)


def test_ranks_of_one_host_have_no_links_bound_and_an_unknown_operation_is_refused() -> None:
    assert bounds.links_s(networks.one_host(4), "all_reduce", M) == 0.0
    with pytest.raises(KeyError):
        bounds.links_s(networks.equal(2), "gossip", M)


def test_a_turn_lasts_from_the_first_start_to_the_last_end_and_counts_the_mean_rank_s_cpu() -> None:
    found = figures.collective(record("hive", 0.5))
    assert found["seconds"] == pytest.approx(0.5)
    assert found["cpu_s_per_gb"] == pytest.approx(0.1 * 1e9 / M)
    assert found["python_share"] == pytest.approx(0.05)
    assert found["processors_s"] == pytest.approx(0.1)


def test_a_row_of_operations_counts_for_each_of_them() -> None:
    four = record("hive", 2.0) | {"count": 4}
    assert figures.collective(four)["seconds"] == pytest.approx(0.5)
    assert figures.collective(four)["cpu_s_per_gb"] == pytest.approx(0.025 * 1e9 / M)


def test_a_goal_takes_the_faster_gloo_within_each_repetition() -> None:
    rows = []
    for repetition, slow in enumerate((1.0, 3.0, 1.1)):
        rows += [record("hive", 0.2 * slow, repetition=repetition)]
        rows += [record("gloo cubic", 0.3 * slow, repetition=repetition)]
        rows += [record("gloo bbr", 0.8 * slow, repetition=repetition)]
    found = report.compute(HEAD, rows)
    entry = goal(found, "1 Gbit/s, 2 ranks, all_reduce of 16 to 64 MiB")
    assert entry["value"] == pytest.approx(1.5)
    links_s = bounds.links_s(networks.equal(2), "all_reduce", M)
    assert entry["allowed"] == {"links": pytest.approx(0.33 / links_s), "processors": pytest.approx(3.3)}
    assert entry["passed"] is True
    assert entry["where"] == "all_reduce of 16 MiB"


def test_the_worst_size_decides_and_what_was_not_measured_passes_nothing() -> None:
    rows = [record("hive", 0.2), record("gloo cubic", 0.3)]
    rows += [record("hive", 1.4, size=64 * MIB), record("gloo cubic", 1.0, size=64 * MIB)]
    found = report.compute(HEAD, twice(rows))
    entry = goal(found, "1 Gbit/s, 2 ranks, all_reduce of 16 to 64 MiB")
    assert (entry["where"], entry["passed"]) == ("all_reduce of 64 MiB", False)
    assert goal(found, "1 Gbit/s, 4 ranks, all_reduce of 16 to 64 MiB")["passed"] is None


def test_a_cell_of_one_turn_is_judged_by_no_goal_unless_another_misses_it() -> None:
    name = "1 Gbit/s, 2 ranks, all_reduce of 16 to 64 MiB"
    single = [record("hive", 9.0, size=64 * MIB), record("gloo cubic", 1.0, size=64 * MIB)]
    good, bad = ([record("hive", seconds), record("gloo cubic", 0.3)] for seconds in (0.2, 0.4))
    for others, turns, value, passed in (
        (twice(good), 1, 1 / 9, None),
        (twice(bad), 2, 0.75, False),
        ([], 1, 1 / 9, None),
    ):
        entry = goal(report.compute(HEAD, [*others, *single]), name)
        assert (entry["turns"], entry["value"], entry["passed"]) == (turns, pytest.approx(value), passed)


def test_what_was_to_be_measured_and_was_not_passes_no_goal_and_hides_none() -> None:
    sweep = {"operations": ["all_reduce"], "payload_bytes": [MIB, 16 * MIB, 64 * MIB]}
    settings = Settings(worlds=(2,), offload_worlds=()).as_record() | {"sweeps": {"lan": [sweep]}}
    head = {**HEAD, "scenarios": ["lan", "urgent", "falling", "training"], "settings": settings}
    rows = twice([record("hive", 0.2), record("gloo cubic", 0.3), record("gloo cubic", 1.0, size=64 * MIB)])
    found = report.compute(head, rows)
    entry = goal(found, "1 Gbit/s, 2 ranks, all_reduce of 16 to 64 MiB")
    assert (entry["value"], entry["where"], entry["passed"]) == (None, "1 of 2 missing", None)
    assert goal(found, "from 256 KiB: times Gloo")["where"] == "2 of 3 missing"
    names = {entry["name"].split(" ")[0] for entry in found["goals"]}
    assert names == set("123456") | {"7"}
    assert [entry["name"] for entry in found["goals"] if entry["passed"]] == []
    rows += twice([record("hive", 9.0, size=64 * MIB)])
    assert goal(report.compute(head, rows), "1 Gbit/s, 2 ranks, all_reduce of 16 to 64 MiB")["passed"] is False


def test_a_loss_that_no_seed_reaches_misses_its_goal() -> None:
    rows = twice([trained(name, [1.0], reached=name != "hive") for name in ("hive", "gloo cubic")])
    assert goal(report.compute(HEAD, rows), "the loss is reached")["passed"] is False


def test_hosts_with_offload_are_a_network_of_their_own_with_the_same_goals() -> None:
    settings = Settings()
    for network in networks.SWEPT["lan"](settings.worlds, settings.offload_worlds):
        assert network.offload is ("offload" in network.name)
        links = networks.lab_of(network, congestion="cubic").plan.links
        assert [link.spec.offload for link in links] == [network.offload] * network.ranks
    rows = [
        record(name, seconds, network=networks.equal(2, offload=offload))
        for offload, times in ((False, (0.2, 0.3)), (True, (0.2, 0.2)))
        for name, seconds in zip(("hive", "gloo cubic"), times, strict=True)
    ]
    found = report.compute(HEAD, twice(rows))
    assert goal(found, "1 Gbit/s, 2 ranks, all_reduce of 16 to 64 MiB")["passed"] is True
    with_offload = goal(found, "1 Gbit/s, offload, 2 ranks, all_reduce of 16 to 64 MiB")
    assert (with_offload["value"], with_offload["at_least"], with_offload["passed"]) == (1.0, 1.3, False)


def test_a_compression_that_competes_between_two_sites_has_goals_of_its_own() -> None:
    sites = networks.two_sites()
    times = {"hive": 2.0, "hive int8": 1.0, "gloo cubic": 45.0, "gloo bbr": 2.5}
    rows = [record(name, seconds, scenario="sites", network=sites) for name, seconds in times.items()]
    found = report.compute(HEAD, twice(rows))
    assert goal(found, "two sites, hive: times gloo bbr")["passed"] is False
    assert goal(found, "two sites, hive int8: times gloo bbr")["value"] == pytest.approx(2.5)
    assert goal(found, "two sites, hive int8: times gloo cubic")["passed"] is True


def test_a_latency_goal_is_hive_s_time_of_gloo_s() -> None:
    rows = [record("hive", 0.0011, size=1024), record("gloo cubic", 0.001, size=1024)]
    entry = goal(report.compute(HEAD, twice(rows)), "2 ranks, under 64 KiB")
    assert entry["value"] == pytest.approx(1.1)
    assert entry["passed"] is True


def test_the_first_repetition_is_in_no_figure() -> None:
    rows = [record("hive", 9.0, repetition=-1), record("hive", 0.2), record("gloo cubic", 0.3)]
    cell = report.compute(HEAD, rows)["cells"][0]
    assert cell["figures"]["seconds"]["n"] == 1
    assert cell["figures"]["seconds"]["high"] == pytest.approx(0.2)


def test_a_forced_algorithm_competes_beside_the_chosen_one_and_one_host_needs_one_gloo() -> None:
    names = [contender.name for contender in competing(algorithms=["ring"], compressions=["int8"])]
    assert names == ["hive", "hive ring", "hive int8", "gloo cubic", "gloo bbr"]
    assert forced("ring").environment == (("HIVE_ALGORITHM", "ring"),)
    assert [contender.name for contender in competing(bbr=False)] == ["hive", "gloo cubic"]


def test_small_operations_are_repeated_and_large_ones_are_not() -> None:
    settings = Settings()
    assert settings.row(1024) == 32
    assert settings.row(MIB) == 4
    assert settings.row(256 * MIB) == 1
    assert settings.repetitions >= 5
    assert QUICK.repeated(None) is QUICK
    assert QUICK.repeated(7).repetitions == 7


def test_a_training_takes_until_the_step_with_the_loss() -> None:
    found = figures.training(trained("hive", [0.5, 0.5, 1.0]))
    assert found == {"reached": 1.0, "steps": 3, "cpu_s_per_step": pytest.approx(2 / 3), "seconds": pytest.approx(2.0)}


def test_a_training_without_the_loss_has_no_time_and_fails_its_goal() -> None:
    rows = [trained("hive", [1.0], reached=False), trained("hive", [1.0], seed=1)]
    rows += [trained("gloo cubic", [1.0], seed=seed) for seed in (0, 1)]
    found = report.compute(HEAD, rows)
    assert goal(found, "the loss is reached")["passed"] is False
    assert goal(found, "to the same loss: times Gloo")["value"] == pytest.approx(1.0)


LINKS_S = 1.5 * 8 * M * WIRE / 100e6
FALLEN_S = 8 * M * WIRE / 25e6


def test_the_plan_follows_when_three_steps_in_a_row_need_what_links_and_computing_need() -> None:
    before, after = [LINKS_S + 1.0] * 4, [FALLEN_S + 1.0] * 9
    disturbed = [40.0, 40.0, FALLEN_S, 40.0]
    found = figures.falling(trained("hive", before + disturbed + after, fell_s=100.0 + sum(before) + 2.0))
    assert found["before_s"] == pytest.approx(LINKS_S + 1.0)
    assert (found["after_s"], found["expected_s"]) == (pytest.approx(FALLEN_S + 1.0), pytest.approx(FALLEN_S + 1.0))
    assert found["follow_s"] == pytest.approx(sum(disturbed) - 2.0)


def test_a_plan_that_settles_on_slow_steps_never_follows() -> None:
    before, after = [LINKS_S] * 4, [1.5 * FALLEN_S] * 9
    found = figures.falling(trained("hive", before + after, fell_s=100.0 + sum(before)))
    assert found["after_s"] == pytest.approx(1.5 * FALLEN_S)
    assert found["follow_s"] == pytest.approx(sum(after))


def test_steps_that_were_never_disturbed_follow_at_once() -> None:
    assert figures.falling(trained("hive", [FALLEN_S] * 30, fell_s=100.0 + 3 * FALLEN_S))["follow_s"] == 0.0


def test_a_fall_with_few_steps_after_it_says_nothing() -> None:
    rows = [trained("hive", [0.5] * 8, fell_s=103.0)]
    with pytest.raises(ValueError, match="say nothing"):
        figures.falling(rows[0])
    assert report.compute(HEAD, rows)["cells"] == []


def test_a_loss_that_knows_of_the_fall_fails_its_goal() -> None:
    ours, theirs = (trained(name, [0.5] * 30, fell_s=103.2) for name in ("hive", "gloo cubic"))
    assert goal(report.compute(HEAD, twice([ours, theirs])), "loss, apart")["passed"] is True
    end_s, loss = ours["ranks"][0]["curve"][20]
    ours["ranks"][0]["curve"][20] = (end_s, 1.05 * loss)
    entry = goal(report.compute(HEAD, twice([ours, theirs])), "loss, apart")
    assert entry["value"] == pytest.approx(0.05)
    assert entry["passed"] is False


def test_an_urgent_operation_counts_while_the_large_one_is_under_way_on_every_rank() -> None:
    found = figures.urgent(urgent("hive", 0.02, [0.03, 0.05, 0.9], covered=[True, True, False]))
    assert (found["alone_s"], found["seconds"]) == (pytest.approx(0.02), pytest.approx(0.04))
    assert found["times_alone"] == pytest.approx(2.0)
    assert found["worst_s"] == pytest.approx(0.05)
    assert found["links_s"] == pytest.approx(8 * URGENT * WIRE / 100e6)
    with pytest.raises(ValueError, match="had ended"):
        figures.urgent(urgent("hive", 0.02, [0.03], covered=[False]))


def test_an_urgent_operation_may_take_twice_its_time_alone_and_what_a_chunk_takes_on_the_link() -> None:
    chunk_s = 8 * figures.CHUNK_BYTES * WIRE / 100e6
    for over, passed in ((-0.001, True), (0.001, False)):
        rows = [
            urgent("hive", 0.02, [chunk_s + 0.04 + over], covered=[True]),
            urgent("gloo cubic", 0.02, [0.3], covered=[True]),
        ]
        assert goal(report.compute(HEAD, twice(rows)), "urgent beside")["passed"] is passed
