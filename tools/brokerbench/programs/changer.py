"""Changes a host's tree many times a second, as the broker does or as a script does that builds it anew.

    python -m tools.brokerbench.programs.changer --interface eth0 --rate 100000000 --changes 1000 --how ours \
        --held 10.3.1.2 --state DIR --output FILE

The broker's way changes rates, and lets jobs and held addresses come and go, those under load among them.

Prints `up` when the tree stands, begins when standard input says something, writes one JSON object with a row for each
change (when, how long it took, bytes in storage's queue before and after, and how many left it meanwhile), prints
`done`, and puts everything back when standard input ends: until then the last tree stands.
"""

from __future__ import annotations

import argparse
import json
import random
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from shaping.journal import Journal
from shaping.kernel import RealKernel
from shaping.model.names import DESTINATION_MINOR, JOB_MINOR
from shaping.model.observations import ClassCounters
from shaping.model.shapes import ClassShape, DestinationShape, InterfaceShape, JobShape, Rule
from shaping.shaper import Shaper
from tools.brokerbench.programs.flood import PORT
from tools.measure.fixed import FixedTree

PAUSE_S = 0.01
SEED = 1
CAPACITY_SHARE = (0.75, 0.97)
"""Of the link; paced traffic at half of it always fits."""


JOB_SHARE, JOB_CEIL_SHARE_MIN = (0.02, 0.1), 0.6
"""Of compute's rate, so that all jobs fit at once; and of the link, so that paced traffic fits into one."""

DESTINATION_SHARE = 0.05
"""Of storage's rate: all addresses at once take less than half of it."""

ELSEWHERE = tuple(f"198.51.100.{number}" for number in range(1, 2 * len(DESTINATION_MINOR)))
"""Addresses of the documentation (RFC 5737), to which nobody sends: more than there are leaves, so that leaves change
hands."""


def shape(interface: str, *, rate_bits_per_s: int, held: Sequence[str], dice: random.Random) -> InterfaceShape:
    """A shape with other rates, jobs and addresses each time, paced traffic at half the link's rate inside.

    Args:
        held: addresses under load, which get a leaf of their own every other time.
    """
    capacity = int(rate_bits_per_s * dice.uniform(*CAPACITY_SHARE))
    compute, storage = int(0.55 * rate_bits_per_s), int(rate_bits_per_s * dice.uniform(0.02, 0.12))
    slots = sorted(dice.sample(range(len(JOB_MINOR)), dice.randint(0, len(JOB_MINOR))))
    listed = [address for address in held if dice.random() < 0.5]
    listed += dice.sample(ELSEWHERE, dice.randint(0, len(DESTINATION_MINOR) - len(listed)))
    kept = int(DESTINATION_SHARE * storage)
    return InterfaceShape(
        interface=interface,
        capacity_bits_per_s=capacity,
        classes=(
            ClassShape("control", int(0.02 * rate_bits_per_s), capacity, 0),
            ClassShape("compute", compute, capacity, 1),
            ClassShape("storage", storage, int(dice.uniform(storage, capacity)), 3),
            ClassShape("other", int(rate_bits_per_s * dice.uniform(0.02, 0.05)), capacity, 2),
        ),
        rules=(Rule(target="storage", port=PORT),),
        jobs=tuple(
            JobShape(
                slot,
                rate_bits_per_s=int(compute * dice.uniform(*JOB_SHARE)),
                ceil_bits_per_s=int(dice.uniform(JOB_CEIL_SHARE_MIN * rate_bits_per_s, capacity)),
                priority=1,
                weight=dice.choice((0.5, 1.0, 2.0)),
            )
            for slot in slots
        ),
        destinations=tuple(
            DestinationShape(address, rate_bits_per_s=kept, ceil_bits_per_s=int(dice.uniform(kept, capacity)))
            for address in dice.sample(listed, len(listed))
        ),
    )


def ours(options: argparse.Namespace, begin: Callable[[], None], end: Callable[[dict[str, Any]], None]) -> None:
    """Change by the shaper, as the daemon does."""
    dice, rows = random.Random(SEED), []

    def another() -> InterfaceShape:
        return shape(options.interface, rate_bits_per_s=options.rate, held=options.held, dice=dice)

    def storage() -> ClassCounters:
        return shaper.counters(options.interface).classes["storage"]

    came_or_went = {"jobs": 0, "destinations": 0}
    with Shaper(RealKernel(), Journal(options.state)) as shaper:
        standing = another()
        shaper.attach(standing)
        begin()
        for _ in range(options.changes):
            wanted = another()
            before = storage()
            begin_s = time.monotonic()
            shaper.apply(wanted)
            took_s = time.monotonic() - begin_s
            after = storage()
            rows.append(
                [begin_s, took_s, before.backlog_bytes, after.backlog_bytes, after.sent_bytes - before.sent_bytes]
            )
            came_or_went["jobs"] += len(_slots(standing) ^ _slots(wanted))
            came_or_went["destinations"] += len(_addresses(standing) ^ _addresses(wanted))
            standing = wanted
            time.sleep(PAUSE_S)
        counters = shaper.counters(options.interface)
        dropped = {name: found.dropped_packets for name, found in counters.classes.items()}
        end({"rows": rows, "dropped": dropped, "came_or_went": came_or_went})
        shaper.detach(options.interface)


def _slots(shape: InterfaceShape) -> set[int]:
    return {job.slot for job in shape.jobs}


def _addresses(shape: InterfaceShape) -> set[str]:
    return {destination.address for destination in shape.destinations}


def rebuilt(options: argparse.Namespace, begin: Callable[[], None], end: Callable[[dict[str, Any]], None]) -> None:
    """Change by deleting the tree and building it anew, as a shell script does."""
    dice, rows = random.Random(SEED), []

    def build() -> None:
        rate = int(options.rate * dice.uniform(*CAPACITY_SHARE))
        tree = FixedTree(rate_bits_per_s=rate, storage_share=0.1, borrowing=True, port=PORT)
        lines = ["qdisc del dev {0} root", *(" ".join(words[1:]) for words in tree.commands(options.interface))]
        text = "\n".join(lines).replace("{0}", options.interface) + "\n"
        subprocess.run(["tc", "-force", "-batch", "-"], input=text, text=True, capture_output=True, check=False)

    def backlog() -> int:
        words = ["tc", "-j", "-s", "qdisc", "show", "dev", options.interface]
        found = json.loads(subprocess.run(words, capture_output=True, text=True, check=True).stdout)
        return next((int(each.get("backlog", 0)) for each in found if each["handle"] == "20:"), 0)

    build()
    begin()
    for _ in range(options.changes):
        before = backlog()
        begin_s = time.monotonic()
        build()
        took_s = time.monotonic() - begin_s
        rows.append([begin_s, took_s, before, backlog(), 0])  # its counters went with it
        time.sleep(PAUSE_S)
    end({"rows": rows, "dropped": {}})
    subprocess.run(["tc", "qdisc", "del", "dev", options.interface, "root"], check=True)


def main() -> None:
    parser = argparse.ArgumentParser(description="Many changes of a tree.")
    parser.add_argument("--interface", required=True)
    parser.add_argument("--rate", type=int, required=True)
    parser.add_argument("--changes", type=int, required=True)
    parser.add_argument("--how", choices=["ours", "rebuilt"], required=True)
    parser.add_argument("--held", action="append", default=[], metavar="ADDRESS")
    parser.add_argument("--state", type=Path, required=True)
    parser.add_argument("--output", type=Path, required=True)
    options = parser.parse_args()

    def begin() -> None:
        print("up", flush=True)
        sys.stdin.readline()

    def end(found: dict[str, Any]) -> None:
        options.output.write_text(json.dumps(found) + "\n")
        print("done", flush=True)
        sys.stdin.read()

    (ours if options.how == "ours" else rebuilt)(options, begin, end)


if __name__ == "__main__":
    main()
