"""The capacity law on every simulated link that it is judged by (judged_links has the links and the goals).

Those that take seconds of a processor are marked `long`: who changes the law runs `make test-long`.
"""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from changing_link import Changing
from judged_links import SCENARIOS
from link_figures import egress
from seeds import assert_most, over_seeds

from broker.law.recording import replay
from broker.policy.toml import load

LONG = {
    "large windows", "small windows", "late probes, twice", "half", "declining", "late hosts", "late probes",
    "unannounced", "slow 20", "slow 10", "slow, a moment", "short buffer", "third", "rise",
    "rise to less", "reports lost", "slow 5",
}  # fmt: skip


def judged() -> Iterator[object]:
    for name, scenario in SCENARIOS.items():
        if scenario.goals:
            yield pytest.param(name, marks=[pytest.mark.long] if name in LONG else [])


def test_the_long_ones_are_among_them() -> None:
    assert set(SCENARIOS) >= LONG


@pytest.mark.parametrize("name", list(judged()))
def test_the_law_keeps_its_goals(name: str) -> None:
    scenario = SCENARIOS[name]
    found = over_seeds(scenario.seeds, scenario.run)
    missed = []
    for goal in scenario.goals:
        try:
            figures = [figures[goal.figure] for figures in found]
            assert_most(figures, goal.share, at_least=goal.at_least, at_most=goal.at_most)
        except AssertionError as error:
            missed.append(f"{goal.figure}: {error}")
    assert not missed, "\n".join(missed)


def test_what_both_hosts_recorded_replays_to_the_same_bytes() -> None:
    def rate(at_s: float) -> float:
        return 100e6 if at_s < 5 else 30e6 if at_s < 13 else 70e6

    world = Changing(load(egress(100)), rate, window_bytes=460_000.0, seed=2).run(23.0)
    for host in (world.a, world.b):
        assert replay(host.lines).first_difference is None
