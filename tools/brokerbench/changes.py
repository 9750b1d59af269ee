"""Changes: many of a shaped tree under paced datagrams at half the link's rate; and what many flows cost the daemon."""

from __future__ import annotations

import dataclasses
import json
import subprocess
import time
from typing import Any

import psutil

from tools.brokerbench import scenes
from tools.brokerbench.run import Run
from tools.brokerbench.shares import JOB, payload_bytes
from tools.brokerbench.stage import Job, Stage, await_line
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

FEW_FLOWS = 4


def measure(run: Run) -> None:
    """Both parts."""
    for how in HOWS:
        with run.guarded(SCENARIO, how):
            _changes(run, how)
    for flows in (FEW_FLOWS, run.settings.flow_count):
        with run.guarded(SCENARIO, f"{flows} flows"):
            _flows(run, flows)


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
    run.write(
        "block", SCENARIO, condition=how, round=run.rounds(SCENARIO, 1)[0], seconds=seconds, received=received, **found
    )
    lost = received["sent"] - received["received"]
    run.say(f"{SCENARIO}: {how:9} {len(found['rows'])} changes, {lost} of {received['sent']} datagrams lost")


def _flows(run: Run, flows: int) -> None:
    """The daemon watches storage's flows, all of which move now and then, while training goes on beside them."""
    settings = dataclasses.replace(run.settings, flows=flows, flows_bits_per_s=run.settings.rate_bits_per_s // 3)
    scene = scenes.sender(settings, name=SCENARIO)
    job = Job(name=JOB, compute_s=settings.compute_s, payload_bytes=payload_bytes(settings, scene.rate_bits_per_s))
    with Stage(scene, settings, jobs=[job]) as stage:
        stage.enter("brokered")
        stage.train(LEAD_S)
        stage.forget()
        begin_s, begin_cpu_s = time.monotonic(), stage.cpu_seconds()
        stage.train(settings.flow_count_s)
        seconds, end_cpu_s = time.monotonic() - begin_s, stage.cpu_seconds()
        resident = psutil.Process(stage.brokers.pids["a"]).memory_info().rss
        status = stage.brokers.status("a") or {}
        stage.rest()
        seen = stage.seen()
        stage.leave("brokered")
        run.write(
            "block",
            SCENARIO,
            condition=f"{flows} flows",
            round=run.rounds(SCENARIO, 1)[0],
            seconds=seconds,
            cpu_s={"begin": begin_cpu_s, "end": end_cpu_s},
            resident_bytes=resident,
            flows=len(status.get("flows", [])),
            decisions=run.keep_decisions(stage, tag=f"{SCENARIO}-{flows}-flows"),
            **seen,
        )
    cores = (end_cpu_s["broker a"] - begin_cpu_s["broker a"]) / seconds
    run.say(f"{SCENARIO}: {flows} flows: {cores:.3f} cores, {resident / 2**20:.0f} MiB")
