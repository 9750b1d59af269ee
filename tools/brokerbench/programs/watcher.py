"""Tells of every change of a traffic class in this network namespace, when the kernel does (rtnetlink(7), RTNLGRP_TC).

    python -m tools.brokerbench.programs.watcher --output FILE

Writes a JSON line for each: when, which class (its minor), rate and ceil. Nothing is polled: the kernel says so itself.
It goes before ordinary programs on the processor, so that its own waiting is not taken for the daemon's.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import select
import time
from pathlib import Path

from hive_qos.netlink import NetlinkSocket
from shaping.netlink.fast_path import RTM_NEWTCLASS, decode_class, decode_object
from tools.brokerbench.programs.ending import SECONDS_MAX, Ending

_RTMGRP_TC = 8  # linux/rtnetlink.h


def main() -> None:
    parser = argparse.ArgumentParser(description="Changes of traffic classes, as they come.")
    parser.add_argument("--seconds-max", type=float, default=SECONDS_MAX)
    parser.add_argument("--output", type=Path, required=True)
    options = parser.parse_args()
    ending = Ending(options.seconds_max)
    events = NetlinkSocket(groups=_RTMGRP_TC)
    with contextlib.closing(events), options.output.open("a") as out:
        os.sched_setscheduler(0, os.SCHED_RR, os.sched_param(1))
        while ending.in_time:
            ready = select.select([events, ending.descriptor], [], [], 1.0)[0]
            if ending.descriptor in ready and ending.closed():
                return
            if events in ready:
                messages, now_s = events.receive(), time.monotonic()
                for kind, _, _, body in messages:
                    found = decode_object(kind, body) if kind == RTM_NEWTCLASS else None
                    if found is not None and found.kind == "htb":
                        spec = decode_class(found)
                        rates = {"rate_bits_per_s": spec.rate_bits_per_s, "ceil_bits_per_s": spec.ceil_bits_per_s}
                        out.write(json.dumps({"t_s": now_s, "minor": spec.minor, **rates}) + "\n")
                out.flush()


if __name__ == "__main__":
    main()
