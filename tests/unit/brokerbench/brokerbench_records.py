"""Raw records of the broker's benchmark with round numbers, so that every figure can be checked in one's head."""

from __future__ import annotations

from typing import Any

HEAD: dict[str, Any] = {
    "kind": "run",
    "settings": {},
    "scenarios": ["sender"],
    "versions": {"commit": "0123456789ab", "dirty": False},
    "machine": {},
}


def block(
    condition: str,
    step_s: float,
    *,
    scenario: str = "sender",
    round_number: int = 0,
    storage_bytes_per_s: float = 0.0,
    compute_bytes_per_s: float = 5e6,
    busy_cores: float = 1.0,
    steps: int = 10,
    settling: int = 2,
) -> dict[str, Any]:
    """Steps of one length over 100 Mbit/s; the settling ones take twice as long, and `whole` alone is to show it."""
    rows, t_s = [], 100.0
    for number in range(steps):
        seconds = step_s * (2 if number < settling else 1)
        for rank in (0, 1):
            row = {"rank": rank, "step": 50 + number, "start_s": t_s, "end_s": t_s + seconds, "step_s": seconds}
            rows.append({**row, "reduce_s": seconds / 2, "cpu_s": 0.01})
        t_s += seconds
    samples = []
    for place in range(int((t_s - 99.0) * 10) + 2):
        at_s = 99.0 + place / 10
        since_s = at_s - 99.0
        interfaces = {
            "to-b": [0, 0, since_s * compute_bytes_per_s, 0],
            "to-s": [0, 0, since_s * storage_bytes_per_s, 0],
        }
        cpu = {"busy_s": since_s * busy_cores, "total_s": since_s * 2, "steal_s": 0.0}
        samples.append({"t_s": at_s, "host": "r", "interfaces": interfaces, "cpu": cpu})
    return {
        "kind": "block",
        "scenario": scenario,
        "condition": condition,
        "round": round_number,
        "rate_bits_per_s": 100_000_000,
        "first_counted": 50 + settling,
        "cpu_s": {"begin": {"rank training a": 1.0}, "end": {"rank training a": 1.0 + (t_s - 100.0) / 4}},
        "counters": {"compute": ["r", "to-b", 2], "storage": ["r", "to-s", 2]},
        "decisions": {},
        "steps": {"training": rows},
        "samples": {"r": samples},
        "sink": [],
    }
