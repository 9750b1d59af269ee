"""How much of everything a run measures, and for how long: an hour, or four minutes for a quick one."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

KIB, MIB = 2**10, 2**20
ALL = ("all_reduce", "all_gather", "reduce_scatter", "broadcast", "all_to_all")
OTHERS = ALL[1:]
SIZES = tuple(KIB * 4**power for power in range(10))
"""1 KiB to 256 MiB."""


@dataclass(frozen=True, kw_only=True)
class Sweep:
    """Operations, each with every payload; `bounds.PAYLOADS` says what a payload is."""

    operations: tuple[str, ...]
    payload_bytes: tuple[int, ...]


def _all_sweeps() -> Mapping[str, tuple[Sweep, ...]]:
    """Smaller payloads behind slow links, and fewer of them on the five networks of `lan`.

    Gloo over cubic takes 45 s for 16 MiB between two sites.
    """
    return {
        "lan": (
            Sweep(operations=("all_reduce",), payload_bytes=SIZES[:9]),
            Sweep(operations=OTHERS, payload_bytes=(KIB, 16 * KIB, 256 * KIB, MIB, 16 * MIB)),
        ),
        "uneven": (Sweep(operations=ALL, payload_bytes=(*SIZES[:7], 16 * MIB)),),
        "sites": (
            Sweep(operations=("all_reduce",), payload_bytes=(*SIZES[:7], 16 * MIB)),
            Sweep(operations=OTHERS, payload_bytes=(KIB, 64 * KIB, MIB, 4 * MIB)),
        ),
        "host": (Sweep(operations=ALL, payload_bytes=SIZES),),
    }


@dataclass(frozen=True, kw_only=True)
class Settings:
    """One run.

    Args:
        repetitions: turns of the contenders; figures are medians over them. One more comes first and counts nowhere.
        worlds: numbers of ranks at 1 Gbit/s and on one host. offload_worlds: those of them that hosts with offload have
            at 1 Gbit/s, too.
        sweeps: what is measured on the network of each scenario.
        row_bytes: small operations are repeated in one turn until so much was passed, `row_max` times at most.
        urgent_bits_per_s, urgent_worlds: links and numbers of ranks of a large all_reduce of `large_bytes` beside
            which `urgent_count` all_reduces of `urgent_bytes` begin, each after a pause of `urgent_pause_s`.
        training_networks: scenarios of sweeps on whose networks with four ranks models are trained.
        losses: what is trained, and until which loss; seeds: how often. `steps_max` and `training_s_max` end a
            training that does not get there.
        falls: trainings in which a link falls; before_fall_s, after_fall_s: how long each lasts before and after.
        one_s_max: a turn that takes longer fails.
        device: where the tensors of sweeps lie; models are trained on the CPU.
        seconds: of the whole run, divided among scenarios and then among what they measure. Where time is short, there
            are fewer repetitions, then fewer of the large payloads and seeds; the report says what is missing.
    """

    repetitions: int = 5
    worlds: tuple[int, ...] = (2, 4, 8)
    offload_worlds: tuple[int, ...] = (2, 4)
    sweeps: Mapping[str, tuple[Sweep, ...]] = field(default_factory=_all_sweeps)
    row_bytes: int = 4 * MIB
    row_max: int = 32
    urgent_bits_per_s: tuple[int, ...] = (100_000_000, 1_000_000_000)
    urgent_worlds: tuple[int, ...] = (2, 4)
    urgent_bytes: int = 256 * KIB
    large_bytes: int = 64 * MIB
    urgent_count: int = 8
    urgent_pause_s: float = 0.05
    training_networks: tuple[str, ...] = ("lan", "uneven", "sites")
    losses: Mapping[str, float] = field(default_factory=lambda: {"transformer": 0.76, "conv net": 0.2})
    seeds: int = 3
    steps_max: int = 150
    training_s_max: float = 400.0
    falls: int = 5
    before_fall_s: float = 20.0
    after_fall_s: float = 40.0
    one_s_max: float = 300.0
    device: str = "cpu"
    seconds: float = 55 * 60.0

    def row(self, payload_bytes: int) -> int:
        """How many operations of a payload one turn does in a row."""
        return max(1, min(self.row_max, self.row_bytes // payload_bytes))

    def within(self, minutes: float | None) -> Settings:
        """Have the whole take so long; None changes nothing."""
        return self if minutes is None else dataclasses.replace(self, seconds=60 * minutes)

    def repeated(self, repetitions: int | None) -> Settings:
        """Have every measurement repeated so often; None changes nothing."""
        return self if repetitions is None else dataclasses.replace(self, repetitions=repetitions)

    def as_record(self) -> dict[str, Any]:
        """Give the values for the records."""
        return dataclasses.asdict(self)


QUICK = Settings(
    repetitions=3,
    worlds=(2, 4),
    offload_worlds=(2,),
    sweeps={
        "lan": (Sweep(operations=("all_reduce",), payload_bytes=(16 * KIB, MIB, 16 * MIB)),),
        "uneven": (Sweep(operations=("all_reduce",), payload_bytes=(2 * MIB,)),),
        "sites": (Sweep(operations=("all_reduce",), payload_bytes=(MIB,)),),
        "host": (Sweep(operations=("all_reduce",), payload_bytes=(16 * KIB, 16 * MIB)),),
    },
    row_bytes=MIB,
    urgent_bits_per_s=(100_000_000,),
    large_bytes=16 * MIB,
    training_networks=("lan",),
    losses={"transformer": 0.8},
    seeds=1,
    training_s_max=15.0,
    falls=1,
    before_fall_s=5.0,
    after_fall_s=15.0,
    one_s_max=60.0,
    seconds=225.0,
)
