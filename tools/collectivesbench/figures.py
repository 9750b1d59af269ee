"""Every figure, computed from raw records alone: pure functions.

Definitions
- seconds: of one operation, from the first rank's start behind the barrier to the last one's end, divided by the
  number of operations in a row.
- cpu_s_per_gb: user and system time of a rank's process, all threads, for 10^9 bytes of payload; the ranks' mean.
- python_share: of the ranks' CPU time, that of threads which Python knows, native code that they call included. It is
  an upper bound of what Python uses.
- links_s: what the links need at least. processors_s: the CPU time of all ranks and of the lab's relay, divided by the
  machine's cores. bound_s: the larger of both. of_bound: bound_s by seconds.
- A figure of a cell is the median over its repetitions, with the smallest and the largest. A ratio is taken within a
  repetition, and then the median is taken.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, TypeAlias

from tools.bench.figures import GB
from tools.collectivesbench import bounds
from tools.collectivesbench.networks import Network

Record: TypeAlias = Mapping[str, Any]


def collective(record: Record) -> dict[str, float]:
    """The figures of one turn.

    Raises:
        ValueError: its clock says that nothing took any time.
    """
    ranks, count, machine = record["ranks"], record["count"], record["machine"]
    seconds = (max(rank["end_s"] for rank in ranks) - min(rank["begin_s"] for rank in ranks)) / count
    if seconds <= 0:
        raise ValueError(f"an operation that took {seconds} s")
    cpu_s, python_s = sum(rank["cpu_s"] for rank in ranks), sum(rank["python_s"] for rank in ranks)
    network = network_of(record)
    found = {
        "seconds": seconds,
        "cpu_s_per_gb": cpu_s / len(ranks) * GB / (count * record["bytes"]),
        "links_s": bounds.links_s(network, record["operation"], record["bytes"]),
        "processors_s": bounds.processors_s(cpu_s=cpu_s + machine["relay_s"], cores=machine["cores"]) / count,
    }
    if cpu_s:
        found["python_share"] = min(1.0, python_s / cpu_s)
    found["bound_s"] = max(found["links_s"], found["processors_s"])
    return found | {"of_bound": found["bound_s"] / seconds}


def network_of(record: Record) -> Network:
    """The network as it was measured on."""
    raw = dict(record["network"])
    for key in ("links_bits_per_s", "site_ranks"):
        raw[key] = tuple(raw[key])
    return Network(**raw)
