"""Simulated networks behave as networks do, and the broker's decision in them as on a host."""

from __future__ import annotations

import json
import statistics
import time
from dataclasses import replace
from pathlib import Path

import pytest
from simulated_networks import TWO_HOSTS
from typer.testing import CliRunner

from broker.law.recording import replay
from broker.policy.toml import load as load_policy
from tools.simulate.__main__ import DEFAULT as SITES
from tools.simulate.__main__ import NO_POLICY, app
from tools.simulate.scenario import Change, load, parse
from tools.simulate.world import Outcome, simulate

POLICY = load_policy(NO_POLICY)
LINK = 40e6


def run(text: str, control: str) -> Outcome:
    return simulate(parse(text), control, policy=POLICY)


def step_s(outcome: Outcome) -> float:
    return statistics.median(lasted_s for at_s, lasted_s in outcome.steps["J"] if at_s > 5)


def test_alone_a_step_takes_what_the_link_allows() -> None:
    outcome = run(TWO_HOSTS, "idle")
    assert 0.3 + 8e6 / LINK < step_s(outcome) < 0.3 + 1.25 * 8e6 / LINK
    assert outcome.delivered_bits["storage"] == 0


def test_storage_alone_fills_the_link_and_no_more() -> None:
    outcome = simulate(replace(parse(TWO_HOSTS), jobs=()), "none", policy=POLICY)
    rate = outcome.delivered_bits["storage"] / 7
    assert 0.9 * LINK < rate <= LINK


def test_bits_are_neither_made_nor_lost() -> None:
    outcome = run(TWO_HOSTS, "none")
    assert sum(outcome.delivered_bits.values()) / 7 <= 1.01 * (LINK + LINK)  # a's way out, and the job's other way


def test_without_control_storage_stretches_the_step_and_with_it_hardly() -> None:
    idle, none, brokered = (step_s(run(TWO_HOSTS, control)) for control in ("idle", "none", "brokered"))
    assert none > 1.2 * idle
    assert brokered < 1.1 * idle


def test_storage_gets_what_training_leaves() -> None:
    brokered = run(TWO_HOSTS, "brokered").delivered_bits
    own_way_s = 7 * 0.97
    assert brokered["storage"] > 0.85 * (LINK * own_way_s - brokered["compute"] / 2)


def test_an_uplink_that_falls_is_found_from_outside() -> None:
    text = TWO_HOSTS.replace('seconds = "12 s"', 'seconds = "30 s"')
    scenario = parse(text)
    fallen = tuple(replace(site, buffer_s=0.2, changes=(Change(8.0, int(LINK / 2)),)) for site in scenario.sites)
    before = simulate(replace(scenario, sites=fallen), "priority", policy=POLICY)
    after = simulate(replace(scenario, sites=fallen), "brokered", policy=POLICY)
    assert statistics.median(after.uplink_delay_s) < 0.3 * statistics.median(before.uplink_delay_s) + 0.005
    assert len(after.steps["J"]) > 1.5 * len(before.steps["J"])
    late = [lasted_s for at_s, lasted_s in after.steps["J"] if at_s > 15]
    assert statistics.median(late) < 1.15 * (0.3 + 8e6 / (LINK / 2))


ONE_SENDER = """
version = 1
seconds = "20 s"
[[site]]
name = "store"
hosts = 1
link = "80 Mbit/s"
[[site]]
name = "home"
hosts = 1
link = "100 Mbit/s"
buffer = "200 ms"
changes = [{ at = "2 s", uplink = "30 Mbit/s" }]
[[copy]]
from = "store/0"
to = "home/0"
streams = 4
"""


def test_one_sender_alone_empties_the_queue_in_front_of_a_receiver_by_the_law_for_his_own_way_out() -> None:
    """It takes two senders to find what a way in carries; one is held by what he finds of his way out."""
    outcomes = {name: run(ONE_SENDER, name) for name in ("none", "leased")}
    delays_s = {name: sorted(outcome.uplink_delay_s) for name, outcome in outcomes.items()}
    loaded = {name: found[int(0.95 * len(found))] for name, found in delays_s.items()}  # one of four queues is loaded
    assert loaded["none"] > 0.15
    assert loaded["leased"] < 0.04
    assert outcomes["leased"].delivered_bits["storage"] > 0.85 * 30e6 * 15


def test_the_same_scenario_gives_the_same_outcome() -> None:
    what = TWO_HOSTS.replace('seconds = "12 s"', 'seconds = "6 s"')
    first, second = run(what, "brokered"), run(what, "brokered")
    assert replace(first, wall_s=0.0) == replace(second, wall_s=0.0)


def test_the_recordings_of_simulated_hosts_replay_to_the_same_bytes(tmp_path: Path) -> None:
    simulate(parse(TWO_HOSTS), "brokered", policy=POLICY, record=tmp_path)
    for path in tmp_path.iterdir():
        with path.open() as lines:
            found = replay(lines)
        assert found.ticks > 100
        assert found.first_difference is None
    assert len(list(tmp_path.iterdir())) == 4


def test_two_hundred_hosts_that_hold_each_other_back_take_seconds_and_what_they_recorded_replays(
    tmp_path: Path,
) -> None:
    what = replace(load(SITES), seconds=0.6)
    began_s = time.process_time()
    outcome = simulate(what, "leased", policy=POLICY, record=tmp_path)
    assert time.process_time() - began_s < 60, "seconds of processor time: less than ten on a core of today"
    hosts = sorted(tmp_path.iterdir())
    assert len(hosts) == 200
    assert outcome.decisions >= 200 * 5
    held = 0
    for number, path in enumerate(hosts):
        lines = path.read_text().splitlines()
        held += any('"leases":[{' in line for line in lines)
        if number % 10 == 0:
            assert replay(lines).first_difference is None, path.name
    assert held > 10, "brokers asked each other"


def test_a_report_of_all_controls_comes_as_json(tmp_path: Path) -> None:
    (tmp_path / "network.toml").write_text(TWO_HOSTS)
    result = CliRunner().invoke(app, [str(tmp_path / "network.toml"), "--seconds", "7", "--json"])
    assert result.exit_code == 0, result.output
    found = json.loads(result.stdout)
    assert [entry["control"] for entry in found["controls"]] == ["idle", "none", "priority", "brokered", "leased"]
    assert found["controls"][3]["decisions"] > 100


@pytest.mark.parametrize("arguments", [["nowhere.toml"], ["--control", "magic"], ["--policy", "nowhere.toml"]])
def test_a_wrong_argument_ends_with_a_sentence(arguments: list[str]) -> None:
    result = CliRunner().invoke(app, arguments)
    assert result.exit_code == 2
    assert "simulate: " in result.output
