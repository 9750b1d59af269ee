"""Every figure, computed from raw records alone: pure functions.

Definitions
- A flow's first `warm_up_s` count nowhere: each side's figures run from its first sample at or after that to its last
  before the sender stopped starting messages (`stopped_s`). Messages that are under way together end together: with
  what was already half there when the clock started, the end of a flow would seem faster than its link.
- goodput: payload bytes that the receiver's program got, times 8, divided by the time.
- CPU seconds a GB of a side: user and system time of its process, all threads, divided by the payload in 10^9 bytes.
  iperf3 gives one percentage for the whole test; its figure includes the start.
- echo_median_s, echo_p95_s: round trips of ICMP echoes over the same link while the flow counts: what its queue adds.
- beside_bits_per_s: what a TCP flow on the same link got in that time.
- machine_cpu_s_per_gb: busy CPU seconds of the whole machine from before the measurement to after it, divided by all
  its payload. It has what the kernel does outside both processes, the lab's links, and whoever else was busy.
- other_cores: what was busy and neither side's nor the relay's. The kernel's own work is in it.
- A figure of a cell is the median over its repetitions, with the smallest and the largest. A ratio is taken within a
  repetition, where both were measured within a minute, and then the median is taken.
- limit: what held a flow back. `link`: its goodput, with that of the TCP flow beside it, was 0.9 of the link's rate
  or more. `lab`: the relay used 0.85 of a
  core, its most. `cpu`: the machine had less than 0.08 of its cores idle, or one side used 0.92 of a core, the most of
  an engine with one thread. `protocol`: none of these, so that windows, losses and waiting for the other side did.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeAlias

from tools.measure.series import percentile

Record: TypeAlias = Mapping[str, Any]
Sample: TypeAlias = Sequence[float]
"""Time in s, payload bytes so far, CPU seconds so far."""

GB = 1e9
LINK_SHARE, RELAY_CORES, IDLE_SHARE, SIDE_CORES = 0.9, 0.85, 0.08, 0.92


def spread(values: Sequence[float]) -> dict[str, float]:
    """Median, smallest, largest and number of at least one value."""
    return {"median": statistics.median(values), "low": min(values), "high": max(values), "n": len(values)}


def steady(samples: Sequence[Sample], *, stopped_s: float | None) -> Sequence[Sample]:
    """What a side noted until the sender stopped; all of it where that is not two samples, or nobody said when."""
    if stopped_s is None:
        return samples
    until = [sample for sample in samples if sample[0] <= stopped_s]
    return until if len(until) > 1 else samples


def counted(samples: Sequence[Sample], *, warm_up_s: float) -> tuple[Sample, Sample]:
    """The first and the last sample that count; where the warm-up leaves nothing, the whole flow counts.

    Raises:
        ValueError: fewer than two samples, or no time between them.
    """
    if len(samples) < 2 or samples[-1][0] <= samples[0][0]:
        raise ValueError("a flow needs two samples and time between them")
    first = next((sample for sample in samples if sample[0] >= samples[0][0] + warm_up_s), samples[0])
    return (samples[0] if first[0] >= samples[-1][0] else first), samples[-1]


def rate_bits_per_s(samples: Sequence[Sample], *, warm_up_s: float) -> float:
    """Payload bits a second of one side."""
    first, last = counted(samples, warm_up_s=warm_up_s)
    return 8 * (last[1] - first[1]) / (last[0] - first[0])


def cpu_s_per_gb(samples: Sequence[Sample], *, warm_up_s: float) -> float:
    """CPU seconds of one side for 10^9 bytes of payload; infinite when nothing passed."""
    first, last = counted(samples, warm_up_s=warm_up_s)
    moved = last[1] - first[1]
    return GB * (last[2] - first[2]) / moved if moved else math.inf


def cores(samples: Sequence[Sample], *, warm_up_s: float) -> float:
    """How many cores one side used on average."""
    first, last = counted(samples, warm_up_s=warm_up_s)
    return (last[2] - first[2]) / (last[0] - first[0])


def flow(record: Record) -> dict[str, float]:
    """The figures of one flow."""
    sender, receiver, machine = record["sender"]["samples"], record["receiver"]["samples"], record["machine"]
    warm_up_s, total_bytes = record["warm_up_s"], receiver[-1][1]
    sides_s = sum(samples[-1][2] - samples[0][2] for samples in (sender, receiver))
    stopped_s = record["sender"].get("stopped_s")
    sender, receiver = steady(sender, stopped_s=stopped_s), steady(receiver, stopped_s=stopped_s)
    found = {
        "goodput_bits_per_s": rate_bits_per_s(receiver, warm_up_s=warm_up_s),
        "sender_cpu_s_per_gb": cpu_s_per_gb(sender, warm_up_s=warm_up_s),
        "receiver_cpu_s_per_gb": cpu_s_per_gb(receiver, warm_up_s=warm_up_s),
        "sender_cores": cores(sender, warm_up_s=warm_up_s),
        "receiver_cores": cores(receiver, warm_up_s=warm_up_s),
        "machine_cpu_s_per_gb": GB * machine["busy_s"] / total_bytes if total_bytes else math.inf,
        "relay_cores": machine["relay_s"] / machine["seconds"],
        "other_cores": (machine["busy_s"] - machine["relay_s"] - sides_s) / machine["seconds"],
        "idle_share": 1 - (machine["busy_s"] + machine["stolen_s"]) / (machine["seconds"] * machine["cores"]),
        "moved_bytes": total_bytes,
    }
    if "echoes" in record:
        begin_s, end_s = sender[0][0] + warm_up_s, sender[-1][0]
        trips_s = [trip_s for at_s, trip_s in record["echoes"]["answered"] if begin_s <= at_s <= end_s]
        if trips_s:
            found["echo_median_s"], found["echo_p95_s"] = statistics.median(trips_s), percentile(trips_s, 0.95)
    if "beside" in record:
        found["beside_bits_per_s"] = _within(record["beside"], sender[0][0] + warm_up_s, sender[-1][0])
    for name in ("sender", "receiver"):
        if "memory" in record[name]:
            memory = record[name]["memory"]
            found[f"{name}_memory_bytes"] = memory["peak_bytes"] - memory["before_bytes"]
    return found


def _within(samples: Sequence[Sample], begin_s: float, end_s: float) -> float:
    """Payload bits a second of the samples in an interval; 0 where there are not two."""
    inside = [sample for sample in samples if begin_s <= sample[0] <= end_s]
    return rate_bits_per_s(inside, warm_up_s=0.0) if len(inside) > 1 else 0.0


def limit(figures: Mapping[str, float], *, link_bits_per_s: int | None) -> str:
    """What held a flow back; see the top of this file."""
    passed_bits_per_s = figures["goodput_bits_per_s"] + figures.get("beside_bits_per_s", 0.0)
    if link_bits_per_s and passed_bits_per_s >= LINK_SHARE * link_bits_per_s:
        return "link"
    if figures["relay_cores"] >= RELAY_CORES:
        return "lab"
    cores_of_a_thread = max(figures["sender_cores"], figures["receiver_cores"])
    if figures["idle_share"] < IDLE_SHARE or cores_of_a_thread >= SIDE_CORES:
        return "cpu"
    return "protocol"


def latency(record: Record) -> dict[str, float]:
    """Median and 99th percentile of the round trips of each size, and what bulk got meanwhile."""
    found: dict[str, float] = {}
    for size, trips_s in record["round_trips_s"].items():
        if trips_s:
            found[f"median_s_{size}"] = statistics.median(trips_s)
            found[f"p99_s_{size}"] = percentile(trips_s, 0.99)
            found[f"trips_{size}"] = len(trips_s)
    if record["bulk"] is not None:
        found["bulk_bits_per_s"] = 8 * record["bulk"]["bytes"] / record["bulk"]["seconds"]
    return found


def connections(record: Record) -> dict[str, float]:
    """What idle connections cost."""
    dialled, accepted = record["dialled"], record["accepted"]
    count = dialled["connections"]
    found = {"connections": count, "idle_cores_dialler": record["idle_cpu_share"][0]}
    found["idle_cores_accepter"] = record["idle_cpu_share"][1]
    if "statistics_cpu_share" in record:  # not in records of before
        found["statistics_cores"] = record["statistics_cpu_share"]
    if count:
        found["connect_cpu_s"] = dialled["cpu_s"] / count
        found["connect_s"] = dialled["seconds"] / count
        found["dialler_bytes"] = (dialled["after_bytes"] - dialled["before_bytes"]) / count
        found["accepter_bytes"] = (accepted["after_bytes"] - accepted["before_bytes"]) / count
    return found


BY_KIND: Mapping[str, Callable[[Record], dict[str, float]]] = {
    "flow": flow,
    "latency": latency,
    "connections": connections,
}


def ratios(
    values: Mapping[int, float], references: Mapping[int, float], *, inverse: bool = False
) -> dict[str, float] | None:
    """Value over reference (or the other way round) within each repetition that has both; None where none has.

    Args:
        values, references: repetition to figure.
    """
    both = [(values[key], references[key]) for key in sorted(values.keys() & references.keys())]
    found = [
        (reference / value) if inverse else (value / reference) for value, reference in both if value and reference
    ]
    return spread(found) if found else None
