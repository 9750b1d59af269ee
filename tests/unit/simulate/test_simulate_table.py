"""The table says what the figures say."""

from __future__ import annotations

from io import StringIO

from rich.console import Console
from simulated_networks import TWO_HOSTS

from tools.simulate.report import figures, print_table
from tools.simulate.scenario import parse
from tools.simulate.world import Outcome

BITS = {"control": 0.0, "compute": 7e6, "storage": 70e6, "other": 0.0}


def outcome(control: str, *steps: float) -> Outcome:
    ended = [(6.0 + number, lasted_s) for number, lasted_s in enumerate(steps)]
    return Outcome(control, {"J": [(1.0, 99.0), *ended]}, BITS, [0.010, 0.020], 0.5, 0, 1.0)


def test_ratios_are_to_the_idle_run_and_the_first_seconds_do_not_count() -> None:
    report = figures(parse(TWO_HOSTS), [outcome("idle", 0.4, 0.5, 0.6), outcome("none", 1.0, 1.0, 2.0)])
    idle, none = report["controls"]
    assert idle["step_s_median"] == 0.5
    assert none["of_idle_median"] == 2.0
    assert none["bits_per_s"]["storage"] == 10e6


def test_a_job_that_made_no_step_is_said() -> None:
    text = StringIO()
    print_table(Console(file=text, width=160), figures(parse(TWO_HOSTS), [outcome("none")]))
    assert "none: 1 jobs made no step" in text.getvalue()
