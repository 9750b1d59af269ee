"""Raw records of the collectives' benchmark whose figures are easy to see."""

from __future__ import annotations

from dataclasses import asdict
from itertools import accumulate
from typing import Any

from tools.collectivesbench import networks
from tools.collectivesbench.networks import Network
from tools.collectivesbench.settings import KIB, MIB

M = 16 * MIB
URGENT = 256 * KIB
HEAD = {"kind": "run"}


def record(
    contender: str,
    seconds: float,
    *,
    scenario: str = "lan",
    network: Network | None = None,
    repetition: int = 0,
    size: int = M,
    cpu_s: float = 0.1,
    python_s: float = 0.005,
) -> dict[str, Any]:
    """One turn of one operation, whose ranks start one after another and end together."""
    network = network or networks.equal(2)
    ranks = [
        {"begin_s": 100.0 + rank / 1000, "end_s": 100.0 + seconds, "cpu_s": cpu_s, "python_s": python_s}
        for rank in range(network.ranks)
    ]
    machine = {"busy_s": 1.0, "relay_s": 0.0, "seconds": seconds, "stolen_s": 0.0, "cores": 2}
    return {
        "kind": "collective", "scenario": scenario, "case": network.name, "contender": contender,
        "operation": "all_reduce", "bytes": size, "count": 1, "repetition": repetition,
        "network": asdict(network), "machine": machine, "ranks": ranks,
    }  # fmt: skip


def twice(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """With a second turn of each, just as the first: what a goal is judged by."""
    return [*rows, *({**row, "repetition": row["repetition"] + 100} for row in rows)]


def trained(
    contender: str, steps_s: list[float], *, seed: int = 0, reached: bool = True, fell_s: float | None = None
) -> dict[str, Any]:
    """One training whose steps take so long each, with a loss that only depends on the step."""
    network, ends_s = networks.falling(), list(accumulate(steps_s, initial=100.0))[1:]
    curve = [(end_s, 2.0 / (step + 1)) for step, end_s in enumerate(ends_s)]
    first = {"begin_s": 100.0, "curve": curve, "reached": reached, "gradient_bytes": M, "cpu_s": 1.0}
    kind = "training" if fell_s is None else "falling"
    return {
        "kind": kind, "scenario": kind, "case": network.name, "contender": contender, "task": "transformer",
        "repetition": seed, "loss": 0.1, "fell_s": fell_s, "network": asdict(network),
        "ranks": [first, {"cpu_s": 3.0, "reached": reached}],
    }  # fmt: skip


def urgent(contender: str, alone_s: float, beside_s: list[float], *, covered: list[bool]) -> dict[str, Any]:
    """One turn of urgent operations, whose last rank begins a second after the first; all ranks end together."""
    network = networks.equal(2, bits_per_s=100_000_000)

    def rank(number: int) -> dict[str, Any]:
        def turns(times_s: list[float]) -> list[tuple[float, float]]:
            return [(99.0 + number, 100.0 + took_s) for took_s in times_s]

        everywhere = covered if number else [True] * len(covered)
        return {"alone": turns([alone_s] * 3), "beside": turns(beside_s), "covered": everywhere}

    return {
        "kind": "urgent", "scenario": "urgent", "case": network.name, "contender": contender, "task": "all_reduce",
        "bytes": URGENT, "large_bytes": 64 * MIB, "repetition": 0, "network": asdict(network),
        "ranks": [rank(number) for number in range(2)],
    }  # fmt: skip
