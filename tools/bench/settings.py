"""How much of everything a run measures: a whole one ends within 30 minutes on 2 cores, a quick one within 2."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from typing import Any

from hive_qos.units import format_rate

MIB = 2**20
SCENARIOS = ("loopback", "lan", "loss", "latency", "memory", "congestion")
"""In the order of a run."""

FRAMES, OFFLOAD = "1 Gbit/s", "1 Gbit/s, offload"
"""Cases of `lan` and `latency`: frames as on a wire, and lumps as between a host and its network card."""

OFFLOAD_DELAY = "1 Gbit/s, 1 ms, offload"
"""Case of `lan`: lumps over a link with a delay, each way."""

BESIDE_TCP, DEEP_BUFFER = "beside TCP", "200 ms of buffer"
"""Cases of `congestion`: a TCP flow with cubic on the same link, and a link that keeps much more than is in flight."""


@dataclass(frozen=True, kw_only=True)
class Settings:
    """One run.

    Args:
        repetitions: turns of the contenders in each scenario; figures are medians over them.
        warm_up_s: start of a flow that no goodput counts (slow start).
        loopback_s, lan_s, loss_s, latency_s: how long one measurement of that scenario lasts, warm-up included.
        loss_repetitions: turns there; four rates of loss make it the longest scenario.
        flow_bytes_max: no flow moves more than this.
        lan_bits_per_s: the fast link.
        lan_delay_s: its delay each way, with offload alone: a delay takes 25 us of CPU a frame, a core at 0.5 Gbit/s.
        lan_buffer_s: its queue, as a switch has one.
        loss_bits_per_s, loss_delay_s, losses: the slow lossy link; the delay is each way.
        mixed_bits_per_s, mixed_delay_s: the second link of the latency scenario, slow enough for a real delay.
        bulk_bytes: the bulk transfer of the latency scenario.
        memory_bytes, memory_s: how much passes in the memory scenario, and for how long at most.
        asleep_s: how long the receiver sleeps there.
        idle_connections, idle_connections_s: how many connections are made there, and for how long at most.
        congestion_cases: of the slow link: rates of random loss, and the two above.
        congestion_s, congestion_warm_up_s: one flow there, and its start: controls that search need more of it.
        congestion_lead_s: how long the TCP flow has the link before. congestion_deep_s: the deep buffer.
        congestion_repetitions: turns there.
        run_seconds_max: no measurement begins after this; the report says what is missing.
    """

    repetitions: int = 5
    warm_up_s: float = 0.7
    loopback_s: float = 2.7
    lan_s: float = 3.0
    loss_s: float = 4.0
    loss_repetitions: int = 2
    latency_s: float = 2.0
    latency_repetitions: int = 3
    flow_bytes_max: int = 8 * 10**9
    lan_bits_per_s: int = 1_000_000_000
    lan_delay_s: float = 0.001
    lan_buffer_s: float = 0.01
    loss_bits_per_s: int = 200_000_000
    loss_delay_s: float = 0.02
    losses: tuple[float, ...] = (0.0, 0.001, 0.005, 0.01)
    mixed_bits_per_s: int = 100_000_000
    mixed_delay_s: float = 0.002
    bulk_bytes: int = 10**9
    memory_bytes: int = 4 * 10**9
    memory_s: float = 8.0
    asleep_s: float = 3.0
    idle_connections: int = 1000
    idle_connections_s: float = 15.0
    congestion_cases: tuple[str, ...] = ("0 % loss", "0.1 % loss", "1 % loss", BESIDE_TCP, DEEP_BUFFER)
    congestion_s: float = 6.0
    congestion_warm_up_s: float = 2.0
    congestion_lead_s: float = 2.0
    congestion_deep_s: float = 0.2
    congestion_repetitions: int = 2
    run_seconds_max: float = 1780.0

    @property
    def mixed_case(self) -> str:
        """Of `latency`, on its second link."""
        return f"{format_rate(self.mixed_bits_per_s)}, {2000 * self.mixed_delay_s:g} ms"

    def repeated(self, repetitions: int | None) -> Settings:
        """Have every scenario repeat its measurements so often, within as much more time; None changes nothing."""
        if repetitions is None:
            return self
        names = [field.name for field in dataclasses.fields(self) if field.name.endswith("repetitions")]
        longer = max(1.0, *(repetitions / getattr(self, name) for name in names))
        changed: dict[str, Any] = dict.fromkeys(names, repetitions)
        return dataclasses.replace(self, run_seconds_max=longer * self.run_seconds_max, **changed)

    def as_record(self) -> dict[str, object]:
        """Give the values for the records."""
        return dataclasses.asdict(self)


QUICK = Settings(
    repetitions=2,
    warm_up_s=0.4,
    loopback_s=1.2,
    lan_s=1.4,
    loss_s=2.0,
    loss_repetitions=1,
    latency_s=1.0,
    latency_repetitions=1,
    losses=(0.005,),
    memory_bytes=5 * 10**8,
    memory_s=2.0,
    asleep_s=1.0,
    idle_connections=100,
    idle_connections_s=4.0,
    congestion_cases=("1 % loss",),
    congestion_s=2.0,
    congestion_warm_up_s=0.8,
    congestion_repetitions=1,
    run_seconds_max=105.0,
)
