"""What a broker decided, from its recording: the few figures of each tick that the benchmark needs."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any


def ticks(recording: Path) -> list[dict[str, Any]]:
    """One entry a tick: time, and of the first interface the capacity, why, and storage's rate and ceil; of its way in
    the capacity and why, None where nobody looks after that.

    A tick that was cut off at the recording's end, and one without an interface, is left out.
    """
    found = []
    if not recording.exists():
        return []
    with recording.open(encoding="utf-8") as lines:
        for line in lines:
            if not line.endswith("\n"):
                break
            tick = json.loads(line)
            if "now_s" not in tick or not tick["allocation"]["interfaces"]:
                continue
            interface = tick["allocation"]["interfaces"][0]
            storage = next(each for each in interface["classes"] if each["name"] == "storage")
            ways_in = tick["allocation"].get("ingress", ())
            inbound = ways_in[0] if ways_in else None
            found.append(
                {
                    "t_s": tick["now_s"],
                    "capacity_bits_per_s": interface["capacity_bits_per_s"],
                    "why": interface["capacity_reason"]["code"],
                    "storage_rate_bits_per_s": storage["rate_bits_per_s"],
                    "storage_ceil_bits_per_s": storage["ceil_bits_per_s"],
                    "storage_why": storage["reason"]["code"],
                    "inbound_bits_per_s": inbound and inbound["capacity_bits_per_s"],
                    "inbound_why": inbound and inbound["capacity_reason"]["code"],
                }
            )
    return found


def move(recording: Path, target: Path) -> None:
    """Keep a recording elsewhere, so that the next broker begins a new one."""
    if recording.exists():
        target.parent.mkdir(parents=True, exist_ok=True)
        shutil.move(recording, target)
