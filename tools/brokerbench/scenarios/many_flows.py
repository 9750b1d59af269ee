"""Many flows: what watching storage's connections costs the daemon, with a few and with a thousand.

A thousand connections of which four are busy, and a thousand that all send a little in turn; each without training and
with it, whose bursts are announced. Each is watched for `flow_count_s`, once the daemon has seen its connections.
Nothing is recorded, as by default; then once more with a recording, which writes 400 bytes a tick for each connection
that a decision takes in.
"""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import psutil

from tools.brokerbench import scenes
from tools.brokerbench.programs import flood
from tools.brokerbench.run import Run
from tools.brokerbench.scenarios.shares import JOB, payload_bytes
from tools.brokerbench.settings import Settings
from tools.brokerbench.stage import Job, Stage
from tools.measure.brokers import Seat, configuration, group_of
from tools.measure.crew import MeasureError

SCENARIO = "flows"
HOST = "a"
FEW_FLOWS = 4
SAMPLE_S = 1.0
SEEN_S_MAX = 30.0
"""A thousand connections are made one after the other; and the daemon lists as many every few seconds."""

SETTLE_S = 4.0
"""From when it has seen them: their processes are looked for, and training's first bursts are learned from."""


@dataclass(frozen=True)
class _Load:
    """So many connections, of which so many send all they can; none: all send a little, in turn."""

    name: str
    flows: int
    busy: int
    recorded: bool = False

    def settings(self, base: Settings) -> Settings:
        together = 0 if self.busy else base.rate_bits_per_s // 3
        return dataclasses.replace(base, flows=self.flows, flows_busy=self.busy, flows_bits_per_s=together)


def measure(run: Run) -> None:
    """Each load, without training and then with it."""
    many = run.settings.flow_count
    for load in (
        _Load(f"{FEW_FLOWS} flows", FEW_FLOWS, FEW_FLOWS),
        _Load(f"{many} flows, {FEW_FLOWS} busy", many, FEW_FLOWS),
        _Load(f"{many} flows, all move", many, 0),
        _Load(f"{many} flows, all move, recorded", many, 0, recorded=True),
    ):
        with run.guarded(SCENARIO, load.name):
            _watch(run, load)


def _watch(run: Run, load: _Load) -> None:
    settings = load.settings(run.settings)
    scene = scenes.sender(settings, name=SCENARIO)
    job = Job(name=JOB, compute_s=settings.compute_s, payload_bytes=payload_bytes(settings, scene.rate_bits_per_s))

    def configure(host: str) -> Callable[[Seat], str]:
        text = configuration(
            interface=scene.lab[host].interface,
            rate_bits_per_s=scene.believed_bits_per_s[host],
            group=group_of(settings.user),
            storage_port=flood.PORT,
        )
        return text if load.recorded else lambda seat: _unrecorded(text(seat))

    with Stage(scene, settings, jobs=[job], configure=configure) as stage:
        stage.enter("brokered")
        _await_flows(stage, load.flows)
        for bursts in (False, True):
            go_on = stage.train if bursts else stage.wait
            go_on(SETTLE_S)
            stage.forget()
            found = _sampled(stage, go_on, seconds=settings.flow_count_s)
            if bursts:
                stage.rest()
            name = f"{load.name}, bursts" if bursts else load.name
            run.write("block", SCENARIO, condition=name, **found, **stage.seen())
            (begin_s, begin_cpu_s, _), (end_s, end_cpu_s, resident) = found["daemon"][0], found["daemon"][-1]
            cores = (end_cpu_s - begin_cpu_s) / (end_s - begin_s)
            run.say(f"{SCENARIO}: {name}: {cores:.3f} cores, {resident / 2**20:.0f} MiB, {found['flows']} flows seen")
        stage.leave("brokered")
        if load.recorded:
            run.keep_decisions(stage, tag=f"{SCENARIO}-{load.name.replace(' ', '-').replace(',', '')}")


def _unrecorded(configuration: str) -> str:
    return "".join(line for line in configuration.splitlines(keepends=True) if not line.startswith("record_file"))


def _await_flows(stage: Stage, flows: int) -> None:
    """Wait until the daemon knows of all of storage's connections.

    Raises:
        MeasureError: it does not in time.
    """
    due_s = time.monotonic() + SEEN_S_MAX
    while (seen := _flows_seen(stage)) < flows:
        if time.monotonic() > due_s:
            raise MeasureError(f"the daemon knows {seen} TCP connections of {flows} after {SEEN_S_MAX:g} s")
        stage.wait(SAMPLE_S)


def _flows_seen(stage: Stage) -> int:
    status = stage.brokers.status(HOST)
    return int(status["tcp_connections"]) if status else 0


def _sampled(stage: Stage, go_on: Any, *, seconds: float) -> dict[str, Any]:
    """CPU seconds and resident bytes of the daemon, with its watchdog, each second while everything goes on."""
    name, process = f"broker {HOST}", psutil.Process(stage.brokers.pids[HOST])
    end_s = time.monotonic() + seconds
    rows = [[time.monotonic(), stage.cpu_seconds()[name], process.memory_info().rss]]
    while rows[-1][0] < end_s:
        go_on(SAMPLE_S)
        rows.append([time.monotonic(), stage.cpu_seconds()[name], process.memory_info().rss])
    return {"daemon": rows, "flows": _flows_seen(stage)}
