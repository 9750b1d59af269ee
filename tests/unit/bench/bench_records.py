"""Raw records with round numbers, so that every figure can be checked in one's head."""

from __future__ import annotations

from typing import Any

HEAD: dict[str, Any] = {"kind": "run", "missing": {}, "settings": {}, "scenarios": ["lan", "latency"], "versions": {}}


def machine(*, seconds: float = 4.0, busy_s: float = 4.0, relay_s: float = 0.0) -> dict[str, Any]:
    return {"begin_s": 0.0, "seconds": seconds, "busy_s": busy_s, "stolen_s": 0.0, "relay_s": relay_s, "cores": 2}


def flow(
    contender: str,
    *,
    bytes_per_s: float,
    cpu_s_per_s: float = 0.5,
    scenario: str = "lan",
    case: str = "1 Gbit/s",
    repetition: int = 0,
    rate_bits_per_s: int | None = 10**9,
    warm_up_s: float = 1.0,
    **of_machine: float,
) -> dict[str, Any]:
    """Four seconds of a steady flow, after a first second in which the receiver got nothing and the CPU was busy."""
    rows = [(0.0, 0, 0.0), *((float(s), round((s - 1) * bytes_per_s), 1 + (s - 1) * cpu_s_per_s) for s in range(1, 5))]
    side = {"samples": rows, "memory": {"before_bytes": 1000, "peak_bytes": 1500}}
    return {
        "kind": "flow",
        "scenario": scenario,
        "case": case,
        "contender": contender,
        "repetition": repetition,
        "warm_up_s": warm_up_s,
        "rate_bits_per_s": rate_bits_per_s,
        "sender": side,
        "receiver": side,
        "machine": machine(**of_machine),
    }


def latency(contender: str, trips_s: list[float], *, loaded: bool, repetition: int = 0) -> dict[str, Any]:
    return {
        "kind": "latency",
        "scenario": "latency",
        "case": "1 Gbit/s",
        "contender": contender,
        "repetition": repetition,
        "loaded": loaded,
        "round_trips_s": {"1000": trips_s, "64000": []},
        "bulk": {"bytes": 5e8, "seconds": 4.0} if loaded else None,
        "machine": machine(),
    }
