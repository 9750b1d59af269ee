"""What all scenarios of one run share."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from tools.bench.turns import Attempts
from tools.collectivesbench.budget import Budget
from tools.measure.records import Writer
from tools.volatilebench.algorithms import Algorithm
from tools.volatilebench.settings import Settings

OVERRUN = 1.2
"""Of the time of a run: what was begun within it ends, but nothing begins after so much of it."""
NOBODY = Algorithm(name="all")
"""Stands where a contender's name would, in what is written down of all."""


class Run(Attempts):
    """One run.

    Args:
        logs: where the processes' own words go. work: for what they keep while they run; gone afterwards.
        seconds: of the whole.
    """

    def __init__(
        self,
        settings: Settings,
        writer: Writer,
        say: Callable[[str], None],
        *,
        logs: Path,
        work: Path,
        seconds: float,
    ) -> None:
        super().__init__(writer, say, run_seconds_max=OVERRUN * seconds)
        self.settings, self.logs, self.work = settings, logs, work

    def leave_out(self, scenario: str, what: str, expected_s: float, budget: Budget) -> None:
        """Write down that there is no time for something."""
        why = f"would take {expected_s:.0f} s, and {max(budget.left_s(), 0):.0f} s are left"
        self.write(scenario, NOBODY, kind="failure", error=f"left out: {what}: {why}")
        self.say(f"{scenario}: left out: {what}: {why}")

    def job(self, name: str) -> Path:
        """A new folder's path for a job, of its name."""
        return self.work / name.replace(" ", "-").replace("/", "-")


def turned(items: Sequence[Any], turn: int) -> list[Any]:
    """The order of a turn: it rotates, so that nobody always comes after the same one."""
    first = turn % len(items) if items else 0
    return [*items[first:], *items[:first]]
