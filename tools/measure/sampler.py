"""Raw counters of one namespace and of the machine, one JSON line every 150 ms, until standard input ends.

Interface counters are the kernel's (/proc/net/dev), CPU figures are of the whole machine (/proc/stat). The sampler
runs in the router, outside the hosts, after the bottleneck: what it counts has crossed the link.
"""

from __future__ import annotations

import argparse
import json
import os
import select
import sys
import time
from pathlib import Path
from typing import TextIO

INTERVAL_S = 0.15
_USER, _NICE, _SYSTEM, _IDLE, _IOWAIT, _IRQ, _SOFTIRQ, _STEAL = range(8)


def parse_interfaces(text: str) -> dict[str, list[int]]:
    """Read /proc/net/dev: interface name to received bytes, received packets, sent bytes, sent packets."""
    counters = {}
    for line in text.splitlines()[2:]:
        name, _, figures = line.partition(":")
        fields = [int(figure) for figure in figures.split()]
        counters[name.strip()] = [fields[0], fields[1], fields[8], fields[9]]
    return counters


def parse_cpu(text: str, *, ticks_per_s: int) -> dict[str, float]:
    """Read the first line of /proc/stat: seconds that the machine's cores were busy, and all their seconds.

    Stolen time counts as busy: another guest had it, nobody here could.
    """
    fields = [int(figure) for figure in text.split("\n", 1)[0].split()[1:9]]
    idle = fields[_IDLE] + fields[_IOWAIT]
    total = sum(fields)
    return {
        "busy_s": (total - idle) / ticks_per_s,
        "total_s": total / ticks_per_s,
        "steal_s": fields[_STEAL] / ticks_per_s,
    }


def sample(host: str) -> dict[str, object]:
    """Take one sample of the namespace that this process is in."""
    ticks_per_s = os.sysconf("SC_CLK_TCK")
    return {
        "t_s": time.monotonic(),
        "host": host,
        "interfaces": parse_interfaces(Path("/proc/net/dev").read_text()),
        "cpu": parse_cpu(Path("/proc/stat").read_text(), ticks_per_s=ticks_per_s),
    }


def run(host: str, out: TextIO) -> None:
    """Write samples at a steady pace until standard input ends."""
    due_s = time.monotonic()
    while True:
        out.write(json.dumps(sample(host)) + "\n")
        out.flush()
        due_s = max(due_s + INTERVAL_S, time.monotonic())
        wait_s = max(0.0, due_s - time.monotonic())
        if select.select([sys.stdin], [], [], wait_s)[0] and not os.read(0, 4096):
            return


def main() -> None:
    parser = argparse.ArgumentParser(description="Sample counters of this network namespace.")
    parser.add_argument("--host", required=True)
    parser.add_argument("--output", type=Path, required=True)
    options = parser.parse_args()
    with options.output.open("a") as out:
        run(options.host, out)


if __name__ == "__main__":
    main()
