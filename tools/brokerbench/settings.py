"""Everything about a run that can be chosen. A whole run takes an hour and three quarters on a machine with two cores:
12 to 15 minutes for each scenario of training and for the way in, 9 to 12 for capacity and jobs, 2 to 6 for the others.
"""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass

from hive_qos.errors import ConfigurationError

MBIT = 1_000_000
SCENARIOS = (
    "sender",
    "receiver",
    "fresh",
    "remote",
    "capacity",
    "inbound",
    "jobs",
    "flows",
    "faults",
    "hold",
)
"""In the order of a run."""

IDLE = "idle"
VARIANTS = ("none", "static", "priority", "quiet", "brokered")
"""Who controls: nobody; a fixed split without borrowing; HTB priority alone; our broker without announcements; ours."""


@dataclass(frozen=True, kw_only=True)
class Settings:
    """One run.

    Args:
        rate_bits_per_s: of the bottleneck. A tenth of the issue's 1 Gbit/s: frames of the lab cost 7 to 10 CPU seconds
            a GB each side, so that two cores would be the limit at 1 Gbit/s, not the link.
        remote_bits_per_s: of the remote bottleneck; the hosts' own links have `rate_bits_per_s`.
        remote_delay_s, remote_buffer_s: of that bottleneck, each way; the buffer is unmanaged.
        buffer_s: of every other link.
        flows: of storage. flows_busy: so many of them want all there is and the rest is silent, 0 for all of them.
        flows_bits_per_s: what all want together, each a little in turn; 0 for all there is.
        compute_s: what a step computes. communication_s: what its all_reduce takes of an idle bottleneck, by design.
        busy: compute on a core rather than asleep.
        rounds: turns of the variants. steps: of each in each round; the first `settling_steps` of them do not count.
        calm_steps: without storage before each block with it. As long as a flood stands its windows grow at the cost of
            training's: four blocks of the same variant in a row took 2.1, 3.2 and 3.9 times the idle step, and 2.3
            after twelve idle steps. So all begin from the same.
        block_seconds_max: no block lasts longer; it then has fewer steps, and the report says how many.
        flood_s: storage has the link to itself for so long before training goes on: TCP has left slow start.
        variants: that take turns.
        fresh_rounds: starts of everything, each with a flood.
        capacity_rates: of the changing link, one after the other. capacity_parts_s: how long each.
        capacity_rounds: turns of the variants there, and where the way in changes.
        jobs_s: how long two jobs and storage share the link. jobs_rounds: turns.
        flow_count: connections that a broker watches, and flow_count_s, for how long.
        hold_requests: between two brokers.
        engine: of the transport.
        user: who trains and stores; an ordinary user.
        scenario_seconds_max: no block of a scenario begins so long after the scenario did, however long those before it
            took; the report says what is missing. The longest take 15 minutes of a whole run on a machine with two
            cores, and so fit on one that takes twice as long, too.
    """

    rate_bits_per_s: int = 100 * MBIT
    remote_bits_per_s: int = 40 * MBIT
    remote_delay_s: float = 0.005
    remote_buffer_s: float = 0.2
    buffer_s: float = 0.1
    flows: int = 4
    flows_busy: int = 0
    flows_bits_per_s: int = 0
    compute_s: float = 0.14
    communication_s: float = 0.21
    busy: bool = False
    variants: tuple[str, ...] = VARIANTS
    rounds: int = 5
    steps: int = 46
    settling_steps: int = 6
    calm_steps: int = 10
    block_seconds_max: float = 120.0
    flood_s: float = 1.5
    fresh_rounds: int = 20
    capacity_rates: tuple[int, ...] = (100 * MBIT, 30 * MBIT, 70 * MBIT)
    capacity_parts_s: tuple[float, ...] = (7.0, 10.0, 12.0)
    capacity_rounds: int = 3
    jobs_s: float = 65.0
    jobs_rounds: int = 2
    flow_count: int = 1000
    flow_count_s: float = 30.0
    hold_requests: int = 200
    engine: str = "auto"
    user: str = "nobody"
    scenario_seconds_max: float = 2400.0

    def __post_init__(self) -> None:
        rounds = ("rounds", "fresh_rounds", "capacity_rounds", "jobs_rounds")
        for name in (*rounds, "flows", "flow_count", "hold_requests"):
            if getattr(self, name) < 1:
                raise ConfigurationError(name, getattr(self, name), "has to be at least 1")
        for variant in self.variants:
            if variant not in VARIANTS:
                raise ConfigurationError("variants", variant, f"there are {', '.join(VARIANTS)}")
        if not 0 <= self.settling_steps < self.steps:
            raise ConfigurationError("settling_steps", self.settling_steps, "has to leave steps to count")

    @property
    def conditions(self) -> tuple[str, ...]:
        """Of a round, each once: training alone, then with storage under each variant."""
        return (IDLE, *self.variants)

    def as_record(self) -> dict[str, object]:
        """Give the values for the records."""
        return dataclasses.asdict(self)


QUICK = Settings(
    rounds=1,
    steps=16,
    settling_steps=4,
    calm_steps=4,
    flood_s=1.0,
    fresh_rounds=2,
    capacity_parts_s=(6.0, 6.0, 8.0),
    capacity_rounds=1,
    jobs_s=12.0,
    jobs_rounds=1,
    flow_count=200,
    flow_count_s=6.0,
    hold_requests=20,
    scenario_seconds_max=600.0,
)
