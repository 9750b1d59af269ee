"""How much of everything a run measures: two hours, or 24 minutes for a quick one."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

SCENARIOS = ("checks", "loss", "churn", "joiner")
"""In the order of a run."""
CONTEXT, WINDOWS, PICTURES = 64, 4, 8
"""256 bytes in a step of each worker: it takes a model of a million parameters 50 ms on one core."""
TOKENS = {"transformer": CONTEXT * WINDOWS, "small transformer": CONTEXT * WINDOWS, "conv net": PICTURES}
"""Of a worker's step of each task; a picture counts as one."""


@dataclass(frozen=True, kw_only=True)
class Settings:
    """One run.

    Args:
        minutes: of each scenario in a run of the ordinary length. What one does not use, those after it have.
        workers: in the lab; churn has twice as many, as one in eight is to be lost for good.
        seeds: how often everything is trained; figures are medians over them.
        every: inner steps between two meetings.
        networks: of `loss`, by the names of the collectives' benchmark. tasks: what is trained there.
        steps: inner steps of a training. training_s_max: one that takes longer ends where it is.
        checks_steps: inner steps of a training of `checks`, after as many of DDP's.
        churn_workers: how many, half of them at each site. churn_every: inner steps between two meetings there.
        step_s: what a step takes there, mostly asleep: as on an accelerator, so that whoever is lost leaves no
            processor to the others.
        churn_s: how long members come and go. lost_every_s: one is lost so often, for away_s, or `each` of them is;
            apart_s: how long both sites are cut from each other. restart_s: what torchrun runs undisturbed for its
            rate.
        joins: how often somebody joins while storage floods.
        joiner_steps: steps before the first one joins.
    """

    minutes: Mapping[str, float] = field(
        default_factory=lambda: {"checks": 25.0, "loss": 60.0, "churn": 25.0, "joiner": 10.0}
    )
    workers: int = 4
    seeds: int = 3
    every: int = 20
    networks: tuple[str, ...] = ("lan", "uneven", "sites")
    tasks: tuple[str, ...] = ("transformer", "conv net")
    steps: int = 400
    training_s_max: float = 120.0
    checks_steps: int = 600
    churn_workers: int = 8
    churn_every: int = 10
    step_s: float = 0.25
    churn_s: float = 360.0
    lost_every_s: float = 60.0
    each: bool = False
    away_s: float = 10.0
    apart_s: float = 30.0
    restart_s: float = 60.0
    joins: int = 6
    joiner_steps: int = 20

    def seconds_of(self, scenario: str) -> float:
        """What a scenario may take, when those before it took no less than theirs."""
        return 60 * self.minutes[scenario]

    def scaled(self, minutes: float | None) -> Settings:
        """Have all scenarios together take so long; None changes nothing."""
        if minutes is None:
            return self
        part = minutes / sum(self.minutes.values())
        return dataclasses.replace(self, minutes={name: part * each for name, each in self.minutes.items()})

    def of(self, **fields: float | None) -> Settings:
        """With other values; None changes nothing."""
        given: dict[str, Any] = {name: value for name, value in fields.items() if value is not None}
        return dataclasses.replace(self, **given)

    def as_record(self) -> dict[str, Any]:
        """Give the values for the records."""
        return dataclasses.asdict(self)


QUICK = Settings(
    minutes={"checks": 7.0, "loss": 6.0, "churn": 8.0, "joiner": 3.0},
    seeds=1,
    networks=("sites",),
    tasks=("small transformer",),
    steps=160,
    training_s_max=30.0,
    checks_steps=300,
    churn_workers=4,
    churn_s=100.0,
    lost_every_s=25.0,
    away_s=8.0,
    apart_s=12.0,
    restart_s=30.0,
    joins=2,
    joiner_steps=10,
)
