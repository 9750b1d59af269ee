"""CPU seconds of the whole machine around a measurement: what the processes' own figures leave out.

The kernel works for a flow outside any process, too (interrupts, the lab's links), and a shared machine has others.
"""

from __future__ import annotations

import os
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tools.lab import Lab, LabError


@dataclass(frozen=True)
class Reading:
    """At one moment: busy CPU seconds of the machine, and the lab's relay's among them."""

    at_s: float
    busy_s: float
    stolen_s: float
    relay_s: float


def read(lab: Lab | None) -> Reading:
    """Read the counters now."""
    ticks = [int(word) for word in Path("/proc/stat").read_text(encoding="ascii").split("\n", 1)[0].split()[1:]]
    per_s = os.sysconf("SC_CLK_TCK")
    user, nice, system, _idle, _wait, irq, softirq, stolen = ticks[:8]
    busy_s = (user + nice + system + irq + softirq) / per_s
    return Reading(time.monotonic(), busy_s, stolen / per_s, _relay_s(lab))


def between(begin: Reading, end: Reading) -> dict[str, Any]:
    """The raw record of an interval."""
    return {
        "begin_s": begin.at_s,
        "seconds": end.at_s - begin.at_s,
        "busy_s": end.busy_s - begin.busy_s,
        "stolen_s": end.stolen_s - begin.stolen_s,
        "relay_s": end.relay_s - begin.relay_s,
        "cores": os.cpu_count() or 1,
    }


def _relay_s(lab: Lab | None) -> float:
    if lab is None or not any(link.medium == "relay" for link in lab.links.values()):
        return 0.0
    try:
        return float(lab.relay_request({"op": "status"})["cpu_s"])
    except LabError:
        return 0.0  # a relay that does not answer says nothing of the flow; its link then carries nothing either
