"""Changes: many of a shaped tree under paced datagrams at half the link's rate.

Rates change, and jobs and addresses that storage is held back for come and go: the job that the datagrams belong to,
and the address that storage goes to, too.
"""

from __future__ import annotations

import json
import subprocess
import time
from typing import Any

from tools.brokerbench import scenes
from tools.brokerbench.run import Run
from tools.brokerbench.stage import Stage, await_line
from tools.measure.programs import close_input

SCENARIO = "changes"
HOWS = ("none", "steady", "rebuilt", "ours")
"""No tree at all; our tree, unchanged; a script that deletes it and builds it anew each time; the daemon's own way."""

ONE_CORE = 'for each in /sys/class/net/*/queues/rx-*/rps_cpus; do echo 1 > "$each"; done'
"""What a veth gets is taken by whichever core sent it, and two cores overtake each other. A card with one queue does
not do that; here one core takes all (the kernel's networking/scaling.rst), so that disorder comes from a tree."""

START_S_MAX, LEAD_S, UNCHANGED_S = 15.0, 1.0, 10.0
CHANGE_S_MAX = 0.25
"""A change, with what it is measured by: a few milliseconds on an idle machine."""


def measure(run: Run) -> None:
    """Each way."""
    for how in HOWS:
        with run.guarded(SCENARIO, how):
            _changes(run, how)


def _changes(run: Run, how: str) -> None:
    """Storage keeps a queue in the tree, datagrams pass at their pace, and the tree changes."""
    settings = run.settings
    rate = settings.rate_bits_per_s
    with Stage(scenes.sender(settings, name=SCENARIO), settings) as stage:
        for namespace in (stage.lab.wires, *(node.namespace for node in (*stage.lab.hosts.values(), stage.lab["r"]))):
            subprocess.run(["ip", "netns", "exec", namespace, "sh", "-c", ONE_CORE], check=True, timeout=10.0)
        target, output, changed = stage.lab["b"].address, stage.work / "received.json", stage.work / "changes.json"
        receiver = stage.program("b", "paced", "receive", "--address", target, "--output", str(output))
        await_line(receiver, "up", seconds=START_S_MAX)
        stage.start_storage()
        if how != "none":
            arguments = ["--interface", stage.lab["a"].interface, "--rate", str(rate)]
            arguments += ["--how", "rebuilt" if how == "rebuilt" else "ours"]
            number = 0 if how == "steady" else settings.changes
            arguments += ["--changes", str(number), "--output", str(changed)]
            arguments += ["--held", stage.scene.target_address, "--held", target]
            changer = stage.program("a", "changer", *arguments, "--state", str(stage.work / "changer"))
            await_line(changer, "up", seconds=START_S_MAX)
        sender = stage.program("a", "paced", "send", "--address", target, "--rate", str(rate // 2))
        stage.wait(LEAD_S)
        begin_s = time.monotonic()
        found: dict[str, Any] = {"rows": [], "dropped": {}}
        if how in ("none", "steady"):
            stage.wait(UNCHANGED_S)
        if how != "none":
            assert changer.stdin is not None
            changer.stdin.write(b"begin\n")
            changer.stdin.flush()
            await_line(changer, "done", seconds=START_S_MAX + settings.changes * CHANGE_S_MAX)
            found = json.loads(changed.read_text())
        seconds = time.monotonic() - begin_s
        close_input(sender)
        receiver.wait(START_S_MAX)
        if how != "none":
            close_input(changer)
        received = json.loads(output.read_text())
    run.write("block", SCENARIO, condition=how, seconds=seconds, received=received, **found)
    lost = received["sent"] - received["received"]
    run.say(f"{SCENARIO}: {how:9} {len(found['rows'])} changes, {lost} of {received['sent']} datagrams lost")
